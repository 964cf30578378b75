"""From what was seen while the workers ran to one word, its evidence and advice."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nccl_texts import CLOSED, DUPLICATE, SHM, nccl_error
from stand_ins import write_files

from slipway.launch.attempt.ending import Facts, HangSeen, StopSeen, choose_outcome, is_cause_known
from slipway.launch.resolve.advice import advise
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.launch.verdict.block import what_to_do
from slipway.launch.verdict.cause import Cause, said
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.protocol.cgroups import count_ooms
from slipway.protocol.files import write_json
from slipway.protocol.tracebacks import ProgramEnd

NOW = 1000.0
KILLED, ABORTED, ENDED = -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM


def failure(rank: int, exitcode: int, time: float = 5.0) -> dict[str, Any]:
    """What the agent tells of a worker."""
    return {"rank": rank, "local_rank": rank, "pid": 100 + rank, "exitcode": exitcode, "time": time}


def file(outcome: str, time: float = 4.0, **more: Any) -> dict[str, Any]:
    """What a worker writes about its own end."""
    return {"outcome": outcome, "step": 10, "snapshot": None, "message": outcome, "exception": None, "where": None,
            "time": time, **more}  # fmt: skip


CRASH = file("failed", exception="ValueError: bad batch", where="train.py:12 in step")
LOST = file("peer", 1.0, exception="RuntimeError: Connection closed by peer")


ECHO = ["RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:11174"]
WAITED = [
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
]
BOOM = ["[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: boom"]
BAD = ["Traceback (most recent call last):", '  File "model.py", line 2', "    if x", "SyntaxError: expected ':'"]
DENIED = "PermissionError: [Errno 13] Permission denied: '{}'"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
SHOT = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."


@pytest.mark.parametrize(
    ("records", "failures", "known"),
    [
        ({}, [], False),
        ({0: file("finished"), 1: file("stopped")}, [], False),
        ({}, [failure(1, KILLED)], True),
        ({}, [failure(1, 3)], True),
        ({0: LOST}, [failure(0, 1)], False),  # rank 1 may still be writing down why
        ({0: LOST}, [], False),
        ({}, [failure(0, ABORTED)], False),  # by gloo, which lost rank 1
        ({0: LOST, 1: CRASH}, [failure(0, 1)], True),
        ({0: LOST}, [failure(0, 1), failure(1, KILLED)], True),
        ({1: CRASH}, [], True),
        ({1: CRASH}, [failure(1, 1)], True),
    ],
)
def test_the_first_cause_is_known_once_a_rank_failed_that_did_not_lose_another(
    records: dict[int, dict[str, Any]], failures: list[dict[str, Any]], known: bool
) -> None:
    assert is_cause_known(records, failures) == known


STOPS = {"stop": "word", "signal": "name"} | {
    name: name for name in ("numbers", "killed", "impatient", "disk", "notice", "short")
}
HANGS = {"hang": "text", "behind": "rank", "hung": "time"}


def end(folder: Path, files: dict[int, dict[str, Any]] | None = None, **facts: Any) -> Outcome:
    """The ending of a node with ranks 0 and 1."""
    (folder / "outcome").mkdir()
    for rank, content in (files or {}).items():
        write_json(folder / "outcome" / f"rank-{rank}.json", content)
    stop = StopSeen(**{field: facts.pop(name) for name, field in STOPS.items() if name in facts})
    hang = (
        HangSeen(**{field: facts.pop(name) for name, field in HANGS.items() if name in facts})
        if "hang" in facts
        else None
    )
    given = {"node_rank": 0, "host": "n0", "builtin": True, "ranks": (0, 1), "stop": stop, "hang": hang, **facts}
    return choose_outcome(Facts(**given), NodeDirectory(folder), NOW)


def helps(outcome: Outcome, runtime: str = "host", run: Path | None = None) -> str:
    """What people are told to do about it."""
    return what_to_do(outcome, partial(advise, runtime=runtime), run)


DONE = {0: file("finished", message="val_loss 1.5"), 1: file("finished", message="other")}
SAVED = {0: file("stopped", message="saved step 10"), 1: file("stopped")}
STOP = {"stop": "stopped", "signal": "SIGTERM", "numbers": (signal.SIGTERM,)}
CANCEL = {"stop": "cancelled", "signal": "SIGINT", "numbers": (signal.SIGINT,)}


@pytest.mark.parametrize(
    ("files", "facts", "word", "rank", "says"),
    [
        # It ended as asked.
        (DONE, {}, "finished", None, "val_loss 1.5"),
        ({}, {"builtin": False}, "finished", None, ""),
        (SAVED, STOP, "stopped", None, "saved step 10"),
        ({0: file("cancelled"), 1: file("cancelled")}, {"stop": "cancelled", "signal": "SIGINT"}, "cancelled", None, ""),
        (DONE, STOP, "finished", None, "val_loss 1.5"),  # the signal came after the last step
        ({}, {"builtin": False, **STOP}, "stopped", None, "after SIGTERM"),
        ({}, {"builtin": False, "status": 1, "failures": [failure(0, ENDED)], **STOP}, "stopped", 0, "as requested"),
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(0, -signal.SIGINT)], **CANCEL},
            "cancelled", 0, "SIGINT",
        ),
        ({}, {"status": 1, **STOP}, "stopped", None, "before the workers had started"),
        # A worker failed.
        ({}, {"builtin": False, "status": 1, "failures": [failure(1, 3)]}, "failed", 1, "exit code 3"),
        ({}, {"builtin": False, "status": 1, "failures": [failure(1, 75)]}, "failed", 1, "exit code 75"),
        ({}, {"status": 1, "failures": [failure(0, KILLED)]}, "failed", 0, "somebody killed it (kill -9)"),
        ({}, {"status": 1, "failures": [failure(0, KILLED)], "ooms": 1}, "failed", 0, "out of memory"),
        ({}, {"status": 1, "failures": [failure(0, -signal.SIGSEGV)]}, "failed", 0, "SIGSEGV"),
        ({}, {"status": 1, "failures": [failure(0, -60)]}, "failed", 0, "60"),
        ({}, {"status": 1, "failures": [failure(0, -signal.SIGHUP)]}, "failed", 0, "SIGHUP"),
        # An out-of-memory kill elsewhere in the container explains no other signal.
        ({}, {"status": 1, "failures": [failure(0, -signal.SIGSEGV)], "ooms": 1}, "failed", 0, "SIGSEGV"),
        ({}, {"status": 1, "failures": [failure(0, ABORTED)], "ooms": 1}, "failed", 0, "SIGABRT"),
        ({1: CRASH}, {"status": 1, "failures": [failure(1, 1)]}, "failed", 1, "ValueError: bad batch"),
        ({0: file("configuration", message="--data: no such file")}, {"status": 1}, "configuration", 0, "no such file"),
        ({0: file("unhealthy")}, {"status": 1}, "unhealthy", 0, ""),
        ({0: file("no-progress")}, {"status": 1}, "no-progress", 0, ""),
        ({0: file("unhealthy", 1.0, exception=ECC), 1: CRASH}, {"status": 1}, "unhealthy", 0, "ECC"),
        # A file that a script imports is no Python: the same at every start.
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(1, 1)], "last": {1: BAD}},
            "configuration", 1, "exit code 1: SyntaxError: expected ':'",
        ),
        # Several did: who has a reason of its own explains the others.
        ({0: LOST, 1: CRASH}, {"status": 1, "failures": [failure(0, 1)]}, "failed", 1, "ValueError"),
        # A script's rank that is still ending when its peers, which lost it, have failed.
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(0, 1)], "last": {0: ECHO, 1: BOOM}},
            "failed", 1, "ValueError: boom",
        ),
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(0, 1)], "last": {0: ECHO, 1: ["step 3"]}},
            "failed", 0, "Connection closed by peer",
        ),
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(0, 1)], "last": {0: ECHO, 1: [SHOT]}},
            "failed", 0, "Connection closed by peer",
        ),
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(0, 1)], "last": {0: ECHO, 1: [ECC]}},
            "unhealthy", 1, "ECC",
        ),
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(0, 1)], "last": {0: WAITED, 1: BOOM}},
            "failed", 1, "ValueError: boom",
        ),
        (
            {}, {"builtin": False, "status": 1, "failures": [failure(0, 1)], "last": {0: ECHO},
                 "ended": {1: ProgramEnd("ValueError: boom", "own.py:3")}},
            "failed", 1, "ValueError: boom",
        ),
        (
            {}, {"builtin": False, "status": 1, "ranks": (0, 1, 2), "failures": [failure(0, 1)], "last": {0: ECHO, 1: BOOM, 2: BOOM}},
            "failed", 1, "ValueError: boom",
        ),
        # One of ours writes its reason down; what it only printed it may have handled.
        ({0: LOST}, {"status": 1, "failures": [failure(0, 1)], "last": {1: BOOM}}, "peer", 0, "Connection closed by peer"),
        ({0: LOST, 1: LOST | {"time": 0.5}}, {"status": 1}, "peer", 1, "Connection closed by peer"),
        ({0: LOST}, {"status": 1, "failures": [failure(1, KILLED, 9.0), failure(0, 1)]}, "failed", 1, "SIGKILL"),
        ({0: CRASH, 1: CRASH | {"time": 3.0}}, {"status": 1}, "failed", 1, "ValueError"),
        ({0: CRASH, 1: file("failed", 9.0)}, {"status": 1, "failures": [failure(1, 1, 2.0)]}, "failed", 0, "ValueError"),
        ({}, {"builtin": False, "status": 1, "failures": [failure(0, ENDED), failure(1, 3)], **STOP}, "failed", 1, "exit code 3"),
        # No process or thread can be made any more.
        (
            {1: file("unhealthy", exception="RuntimeError: can't start new thread")}, {"status": 1},
            "unhealthy", 1, "can't start new thread",
        ),
        (
            {}, {"status": 1, "failures": [failure(0, 1)],
                 "last": {0: ["libgomp: Thread creation failed: Resource temporarily unavailable"]}},
            "unhealthy", 0, "libgomp",
        ),
        # The right to write to the run directory, and to nothing else, was taken away: wrong before the start, and later.
        ({}, {"status": 1, "failures": [failure(0, 1)], "last": {0: [DENIED.format("/r/x/snapshots/y")]}, "run": Path("/r/x")}, "configuration", 0, "/r/x"),
        ({0: file("failed", exception=DENIED.format("/r/x/y"))}, {"status": 1, "run": Path("/r/x")}, "configuration", 0, "/r/x"),
        ({0: file("failed", exception=DENIED.format("/r/xy"))}, {"status": 1, "run": Path("/r/x")}, "failed", 0, "/r/xy"),
        # Killed a moment before or during a stop, with a snapshot of this attempt; a crash stays one.
        ({0: LOST}, {"status": 1, "failures": [failure(1, KILLED)], "saved": 20, **STOP}, "stopped", 1, "snapshot of step 20"),
        ({0: LOST}, {"status": 1, "failures": [failure(1, KILLED)], "saved": 20, **CANCEL}, "cancelled", 1, "SIGINT, while rank 1"),
        ({0: LOST}, {"status": 1, "failures": [failure(1, KILLED)], **STOP}, "failed", 1, "SIGKILL"),
        ({0: LOST}, {"status": 1, "failures": [failure(1, KILLED)], "saved": 20}, "failed", 1, "SIGKILL"),
        ({0: LOST}, {"status": 1, "failures": [failure(1, KILLED)], "saved": 20, "ooms": 1, **STOP}, "failed", 1, "memory"),
        ({0: LOST}, {"status": 1, "failures": [failure(1, -signal.SIGSEGV)], "saved": 20, **STOP}, "failed", 1, "SIGSEGV"),
        ({0: LOST, 1: CRASH}, {"status": 1, "saved": 20, **STOP}, "failed", 1, "ValueError"),
        # The grace was over.
        ({0: file("stopped")}, {"status": -9, "killed": True, **STOP}, "peer", 1, "SIGTERM: rank 1 had not ended"),
        ({}, {"status": -9, "killed": True, **STOP}, "peer", 0, "ranks 0, 1"),
        ({}, {"status": -9, "killed": True, "moved": True, **STOP}, "peer", 0, "were killed"),
        ({}, {"status": -9, "killed": True, "moved": False, **STOP}, "stopped", None, "before the first step: there was nothing to save"),
        ({}, {"status": -9, "killed": True, **CANCEL}, "cancelled", 0, "were killed"),
        ({}, {"status": -9, "killed": True, "impatient": True, **CANCEL}, "cancelled", None, "at the second Ctrl-C"),
        # It hung; what was asked for in vain does not change that, but what its user ended stays ended.
        ({}, {"status": -9, "hang": "hang: behind: rank 1", "behind": 1}, "peer", 1, "rank 1"),
        ({}, {"status": -9, "hang": "hang: x", "behind": 1, "killed": True, **STOP}, "peer", 1, "hang"),
        ({}, {"status": -9, "hang": "hang: x", "behind": 1, **CANCEL}, "cancelled", 1, "hang"),
        ({}, {"status": -9, "hang": "hang: x", "behind": 0, "failures": [failure(1, KILLED)]}, "peer", 0, "hang"),
        # Who told its own reason explains the hang of those that wait for it; an echo does not.
        ({0: CRASH}, {"status": -9, "hang": "hang: x", "behind": 1}, "failed", 0, "ValueError: bad batch"),
        ({0: LOST}, {"status": -9, "hang": "hang: x", "behind": 1}, "peer", 1, "hang"),
        ({0: file("unhealthy")}, {"status": -9, "hang": "hang: x", "behind": 1}, "unhealthy", 0, ""),
        # Who told that all is done did it, whatever became of the process afterwards.
        (DONE, {"status": 1, "failures": [failure(0, -signal.SIGABRT)]}, "finished", None, "val_loss 1.5"),
        (SAVED, {"status": -9, "killed": True, **STOP}, "stopped", None, "saved step 10"),
        (DONE, {"status": -9, "hang": "hang: x", "behind": 0}, "finished", None, "val_loss 1.5"),
        ({0: DONE[0]}, {"status": 1, "failures": [failure(0, -6), failure(1, KILLED)]}, "failed", 1, "SIGKILL"),
        # Something around the workers failed.
        ({}, {"status": -9, "lost": "node 1"}, "peer", None, "because of node 1"),
        ({}, {"status": -9, "lost": "node 1", "still": 20.0}, "lost", None, "was frozen for 20 s"),
        (DONE, {"lost": "node 1", "still": 20.0}, "lost", None, "the other nodes counted it as lost"),
        ({}, {"status": -9}, "failed", None, "torchrun was ended by SIGKILL"),
        ({}, {"status": -1}, "failed", None, "torchrun was ended by SIGHUP"),
        ({}, {"status": -60}, "failed", None, "torchrun was ended by signal 60"),  # one that has no name
        ({}, {"status": 1, "agent_log": "x\nOSError: no space\n\n"}, "failed", None, "torchrun ended with 1: OSError: no space"),
        ({}, {"status": 1, "agent_log": ""}, "failed", None, "no message"),
        (
            {}, {"status": 1, "agent_log": "x\nBlockingIOError: [Errno 11] Resource temporarily unavailable"},
            "unhealthy", None, "torchrun ended with 1: BlockingIOError",
        ),
        ({}, {"status": 1, "agent_log": "Timeout waiting\nlast"}, "peer", None, "last"),
    ],
)  # fmt: skip
def test_each_ending_has_its_word_and_evidence(
    tmp_path: Path, files: dict[int, dict[str, Any]], facts: dict[str, Any], word: str, rank: int | None, says: str
) -> None:
    outcome = end(tmp_path, files, **facts)
    assert (outcome.word, outcome.rank) == (word, rank)
    assert says in outcome.evidence
    assert (outcome.node_rank, outcome.host) == (0, "n0")


def test_a_limit_of_processes_is_named(tmp_path: Path) -> None:
    thread = file("unhealthy", exception="RuntimeError: Resource temporarily unavailable")
    assert "ulimit -u" in helps(end(tmp_path, {0: thread}, status=1))


def test_an_abort_after_a_crash_is_its_consequence(tmp_path: Path) -> None:
    """NCCL's watchdog aborts the ranks that lost another one (SIGABRT), later and without a word in a file."""
    outcome = end(
        tmp_path, {0: CRASH | {"time": 5.0}}, status=1, failures=[failure(0, 1, 5.1), failure(1, ABORTED, 9.0)]
    )
    assert (outcome.rank, outcome.evidence) == (0, "ValueError: bad batch")


def test_a_launcher_that_ran_out_of_memory_says_so(tmp_path: Path) -> None:
    assert "out of memory" in end(tmp_path, status=-9, ooms=1).evidence


def test_a_worker_that_wrote_half_a_file_is_told_by_its_status(tmp_path: Path) -> None:
    write_files(tmp_path, {"outcome/rank-0.json": '{"outcome": "fin'})
    facts = Facts(0, "n0", True, (0,), started=True, status=1, failures=[failure(0, KILLED)])
    assert "SIGKILL" in choose_outcome(facts, NodeDirectory(tmp_path), NOW).evidence


@pytest.mark.parametrize(
    ("files", "failures", "time"),
    [
        ({0: CRASH | {"time": 4}}, [failure(0, 1, 6.0)], 4.0),
        ({0: CRASH | {"time": None}}, [failure(0, 1, 6.0)], 6.0),
        ({0: CRASH | {"time": "soon"}}, [], NOW),
        ({}, [failure(0, 3, 6.0)], 6.0),
    ],
)
def test_when_it_happened_is_told_by_the_worker_then_by_torchrun(
    tmp_path: Path, files: dict[int, dict[str, Any]], failures: list[dict[str, Any]], time: float
) -> None:
    assert end(tmp_path, files, status=1, failures=failures).time == time


@pytest.mark.parametrize(
    ("facts", "time"),
    [
        ({"lost": "node 1", "still": 20.0}, NOW - 20),
        ({"hang": "hang: x", "hung": NOW - 5}, NOW - 5),
        ({"hang": "hang: x"}, NOW),
    ],
)
def test_a_launcher_was_lost_when_it_froze_and_workers_hung_when_that_was_noticed(
    tmp_path: Path, facts: dict[str, Any], time: float
) -> None:
    assert end(tmp_path, status=-9, **facts).time == time


@pytest.mark.parametrize(("status", "word"), [(0, "finished"), (1, "peer"), (-9, "peer")])
def test_a_node_that_others_left_ended_by_itself_or_because_of_them(tmp_path: Path, status: int, word: str) -> None:
    assert end(tmp_path, builtin=False, status=status, lost="node 1").word == word


@pytest.mark.parametrize(
    ("ranks", "files", "says", "rank"),
    [
        ((0,), {}, "SIGTERM: rank 0 had not ended when the grace period was over, and was killed", 0),
        ((0, 1), {}, "SIGTERM: ranks 0, 1 had not ended when the grace period was over, and were killed", 0),
        ((0, 1), {0: file("stopped")}, "SIGTERM: rank 1 had not ended when the grace period was over, and was killed", 1),
        ((2, 3), {2: LOST, 3: LOST}, "SIGTERM: ranks 2, 3 had not ended when the grace period was over, and were killed", 2),
    ],
)  # fmt: skip
def test_who_had_not_ended_when_the_grace_was_over_is_named(
    tmp_path: Path, ranks: tuple[int, ...], files: dict[int, dict[str, Any]], says: str, rank: int
) -> None:
    outcome = end(tmp_path, files, ranks=ranks, status=-9, killed=True, **STOP)
    assert (outcome.evidence, outcome.rank) == (says, rank)


NOTICED = {"stop": "stopped", "signal": "AWS interruption notice (stop)", "notice": True}


def test_a_machine_that_goes_away_is_why_a_job_stopped_or_lost_what_it_could_not_save(tmp_path: Path) -> None:
    for name, files, facts, word, cause in (
        ("saved", SAVED, {}, "stopped", "noticed"),
        ("late", {}, {"status": -9, "killed": True, "short": True}, "peer", "overtaken"),
        ("in a short grace", {}, {"status": -9, "killed": True}, "peer", "late"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        outcome = end(folder, files, **NOTICED | facts)
        assert (name, outcome.word, outcome.cause.kind) == (name, word, cause)
        assert outcome.evidence.startswith("AWS interruption notice (stop): ")


@pytest.mark.parametrize(
    ("files", "facts", "evidence"),
    [
        ({0: file("finished", message=""), 1: file("finished", message="b")}, {}, "b"),
        ({1: file("finished", message="b"), 0: file("finished", message="a")}, {}, "a"),
        ({0: file("finished", message="")}, {"ranks": (0,)}, ""),
        ({0: file("stopped", message=""), 1: file("stopped", message="")}, STOP, "SIGTERM"),
        ({0: file("finished", message="a"), 1: file("stopped", message="b")}, STOP, "b"),
        ({0: file("stopped", message="a"), 1: file("cancelled", message="b")}, CANCEL, "b"),
    ],
)
def test_the_first_rank_that_has_something_to_say_says_it(
    tmp_path: Path, files: dict[int, dict[str, Any]], facts: dict[str, Any], evidence: str
) -> None:
    assert end(tmp_path, files, **facts).evidence == evidence


@pytest.mark.parametrize(
    ("failures", "facts", "word", "rank"),
    [
        # As shells count signals, and as Python does.
        ([failure(0, 128 + signal.SIGTERM)], STOP, "stopped", 0),
        ([failure(0, -signal.SIGTERM)], STOP, "stopped", 0),
        ([failure(0, 128 + signal.SIGINT)], STOP, "failed", 0),
        ([failure(0, signal.SIGTERM)], STOP, "failed", 0),
        # Who failed before explains who ended as asked, whoever was first; a signal from outside explains a failure.
        ([failure(0, -signal.SIGTERM, 1.0), failure(1, 3, 9.0)], STOP, "failed", 1),
        ([failure(0, -signal.SIGINT, 1.0), failure(1, 3, 9.0)], CANCEL, "failed", 1),
        ([failure(0, 3, 1.0), failure(1, KILLED, 9.0)], {}, "failed", 1),
        ([failure(0, 3, 1.0), failure(1, -signal.SIGHUP, 9.0)], {}, "failed", 1),
        ([failure(0, ABORTED, 1.0), failure(1, 3, 9.0)], {}, "failed", 1),
        ([failure(0, ABORTED, 1.0), failure(1, KILLED, 9.0)], {}, "failed", 1),
        ([failure(0, 3, 9.0), failure(1, 3, 1.0)], {}, "failed", 1),
        ([failure(1, 3, 1.0), failure(0, 3, 1.0)], {}, "failed", 0),
    ],
)
def test_of_several_scripts_ranks_the_cause_comes_before_its_consequences(
    tmp_path: Path, failures: list[dict[str, Any]], facts: dict[str, Any], word: str, rank: int
) -> None:
    outcome = end(tmp_path, builtin=False, status=1, failures=failures, **facts)
    assert (outcome.word, outcome.rank) == (word, rank)


@pytest.mark.parametrize("word", ["usage", "gone", ""])
def test_a_word_that_nobody_knows_is_a_failure(tmp_path: Path, word: str) -> None:
    assert end(tmp_path, {0: file(word)}, status=1).word == "failed"


@pytest.mark.parametrize(
    ("number", "builtin", "word"),
    [("28", True, "unhealthy"), ("122", True, "unhealthy"), ("5", True, "unhealthy"), ("30", True, "unhealthy"),
     ("2", True, "failed"), ("12", True, "failed"), ("28", False, "failed")],
)  # fmt: skip
def test_a_disk_too_full_for_the_worker_to_say_so_is_noticed(
    tmp_path: Path, number: str, builtin: bool, word: str
) -> None:
    """A script may write where it likes: a full disk is then its own affair."""
    last = {0: [f"OSError: [Errno {number}] it failed"]}
    assert end(tmp_path, builtin=builtin, status=1, failures=[failure(0, 1)], last=last).word == word


@pytest.mark.parametrize(
    ("facts", "word", "says"),
    [
        ({"disk": "the stop flag cannot be written"}, "unhealthy", "the stop flag cannot be written"),
        ({"status": -9, "ooms": 1}, "failed", "out of memory"),
        ({"status": -15, "ooms": 1}, "failed", "torchrun was ended by SIGTERM"),
        ({"status": -1, "ooms": 1}, "failed", "torchrun was ended by SIGHUP"),
        ({"status": 1, "ooms": 1}, "failed", "torchrun ended with 1: no message"),
        ({"status": 1, "started": True, "agent_log": "Timeout"}, "failed", "torchrun ended with 1: Timeout"),
        ({"status": 1, "agent_log": "it timed out"}, "peer", "torchrun ended with 1: it timed out"),
        ({"status": 2, "agent_log": "no such option"}, "failed", "torchrun ended with 2"),
        ({"status": 1, "started": True, **STOP}, "failed", "torchrun ended with 1: no message"),
        ({"status": 1, "agent_log": " first \n last \n \n"}, "failed", "torchrun ended with 1: last"),
    ],
)
def test_where_no_worker_failed_its_parent_did(tmp_path: Path, facts: dict[str, Any], word: str, says: str) -> None:
    outcome = end(tmp_path, **facts)
    assert outcome.word == word
    assert says in outcome.evidence
    assert not says.startswith("torchrun ended") or outcome.evidence.startswith(says)


def test_the_time_and_place_of_the_first_cause_are_kept(tmp_path: Path) -> None:
    outcome = end(tmp_path, {1: CRASH}, status=1, failures=[failure(1, 1, 6.0)])
    assert (outcome.time, outcome.where) == (4.0, "train.py:12 in step")


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (["loss 1.0", "  ", ""], "exit code 3; it said last: loss 1.0"),
        (["Traceback (most recent call last):", "ValueError: bad", "[W] destroying"], "exit code 3: ValueError: bad"),
        (["[rank1]: torch.cuda.OutOfMemoryError: CUDA"], "exit code 3: torch.cuda.OutOfMemoryError: CUDA"),
        ([], "exit code 3"),
    ],
)
def test_what_a_script_said_last_is_evidence(tmp_path: Path, last: list[str], says: str) -> None:
    assert end(tmp_path, builtin=False, status=1, failures=[failure(1, 3)], last={1: last}).evidence == says


# As torch's data loader ends where /dev/shm is full.
BUS = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (LOST, "--resume auto"),
        (file("unhealthy", message="no CUDA-capable device"), "nvidia-smi"),
        (file("failed", exception="OutOfMemoryError: CUDA out of memory"), "--batch-size"),
        (file("configuration", message="--data: no such file"), ""),
        (file("configuration", exception="SyntaxError: expected ':'"), "correct that line"),
        (CRASH, "`slipway logs --rank 0`"),
        (file("no-progress", message="the loss is not finite"), ""),
    ],
)
def test_what_a_worker_wrote_decides_what_to_do(tmp_path: Path, content: dict[str, Any], advice: str) -> None:
    told = helps(end(tmp_path, {0: content}, status=1))
    assert (advice in told) if advice else told == ""


def test_an_exception_beside_an_out_of_memory_kill_says_both(tmp_path: Path) -> None:
    """The kernel may have killed a data loader, and the worker only noticed."""
    crash = file("failed", exception="RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.")
    outcome = end(tmp_path, {0: crash}, status=1, failures=[failure(0, 1)], ooms=1)
    assert "DataLoader" in outcome.evidence
    assert "out-of-memory kills were counted" in outcome.evidence
    assert "more memory" in helps(outcome)


def test_the_last_frame_of_a_scripts_traceback_is_where_it_failed(tmp_path: Path) -> None:
    said = [
        "Traceback (most recent call last):",
        '  File "/home/me/own.py", line 9, in <module>',
        "    main()",
        '[rank1]:   File "/home/me/data.py", line 4, in batch',
        "ValueError: bad",
    ]
    assert (
        end(tmp_path, builtin=False, status=1, failures=[failure(1, 1)], last={1: said}).where == "data.py:4 in batch"
    )
    (tmp_path / "outcome").rmdir()
    assert end(tmp_path, builtin=False, status=1, failures=[failure(1, 1)], last={1: ["no traceback"]}).where is None


def stderr(text: str, *, uncaught: bool = False) -> list[str]:
    """What a rank printed that died of an error of NCCL's: Python's traceback, or its watchdog's end, with what torch adds."""
    if uncaught:
        first = "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
        stack = [
            "Exception raised from run at ProcessGroupNCCL.cpp:2139 (most recent call first):",
            *["frame #1: ??"] * 30,
        ]
        return [
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            *(first + text).splitlines(),
            *stack,
        ]
    traceback = ["Traceback (most recent call last):", '  File "train.py", line 7, in main']
    said = f"torch.distributed.DistBackendError: {text}".splitlines()
    left = "[rank1]:[W1123 16:00:00.1 ProcessGroupNCCL.cpp:1524] Warning: destroy_process_group() was not called"
    return [*(f"[rank1]: {line}" for line in (*traceback, *said)), left]


@pytest.mark.parametrize("builtin", [True, False])
@pytest.mark.parametrize(
    ("name", "last", "word", "advice"),
    [
        ("ncclInvalidUsage", DUPLICATE, "configuration", "--nproc-per-node"),
        ("ncclInvalidUsage", "Bootstrap : no socket interface found", "configuration", "NCCL_SOCKET_IFNAME"),
        ("ncclSystemError", SHM, "unhealthy", "remount,size=1g /dev/shm"),
        ("ncclUnhandledCudaError", "Cuda failure 'CUDA driver version is insufficient for …'", "unhealthy", "525.60.13"),
        ("ncclUnhandledCudaError", "Failed to CUDA calloc async 608 bytes", "failed", "slipway logs --rank"),
        ("ncclInternalError", "Proxy append mismatch", "failed", "slipway logs --rank"),
    ],
)  # fmt: skip
def test_what_nccl_said_last_decides_for_a_users_script_too(
    tmp_path: Path, builtin: bool, name: str, last: str, word: str, advice: str
) -> None:
    said = {1: stderr(nccl_error(name, last))}
    outcome = end(tmp_path, builtin=builtin, status=1, failures=[failure(1, 1)], last=said)
    assert (outcome.word, outcome.where) == (word, "train.py:7 in main")
    assert outcome.evidence == f"exit code 1: torch.distributed.DistBackendError: {name}: Last error: {last}"
    assert advice in helps(outcome)
    assert outcome.independent


STALLED = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600068 milliseconds"


@pytest.mark.parametrize(
    ("builtin", "word", "text"),
    [
        (True, "peer", nccl_error("ncclRemoteError", CLOSED)),
        (False, "peer", nccl_error("ncclRemoteError", CLOSED)),
        (True, "peer", STALLED),
        (False, "peer", STALLED),
    ],
)
def test_an_abort_of_nccls_watchdog_is_the_echo_of_a_lost_node(
    tmp_path: Path, builtin: bool, word: str, text: str
) -> None:
    """It comes seconds before the silence of a node is told."""
    said = {1: stderr(text, uncaught=True)}
    survivor = end(tmp_path, builtin=builtin, status=1, failures=[failure(1, ABORTED)], last=said)
    assert (survivor.word, survivor.independent) == (word, False)
    assert survivor.evidence.startswith("SIGABRT: [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog")
    verdict = judge([survivor, Outcome(1, "n1", "lost", NOW + 9, cause=Cause(text="no heartbeat for 30 s"))])
    assert (verdict.word, verdict.code(0)) == ("lost", 76)


REFUSED = "socketPollConnect: connect to 10.0.0.7<48123> returned Connection refused, exceeded error retry count after 35 attempts"
REMOTE = {
    "NCCL's remote error": stderr(nccl_error("ncclRemoteError", REFUSED)),
    "NCCL's system error": stderr(nccl_error("ncclSystemError", REFUSED)),
    "the watchdog": stderr(STALLED),
    "gloo's time-out": WAITED,
}


@pytest.mark.parametrize("remote", REMOTE)
@pytest.mark.parametrize("other", [*REMOTE, "a lost connection", "not ended", "left"])
@pytest.mark.parametrize("first", [0, 1])
def test_where_every_failure_is_a_remote_error_it_is_76_whichever_rank_is_read_first(
    tmp_path: Path, remote: str, other: str, first: int
) -> None:
    said = {first: REMOTE[remote], 1 - first: REMOTE.get(other, ECHO if other == "a lost connection" else ["step 3"])}
    failed = [failure(first, 1, 5.0)]
    failed += [failure(1 - first, 1, 4.0 + 2 * first)] if other in (*REMOTE, "a lost connection") else []
    left = {1 - first: 4.5} if other == "left" else {}
    outcome = end(tmp_path, builtin=False, status=1, failures=failed, last=said, left=left)
    assert (outcome.word, outcome.independent) == ("peer", False)
    assert judge([outcome]).code(0) == 76


@pytest.mark.parametrize("times", [(1.0, 2.0), (2.0, 1.0)])
def test_the_same_goes_for_nodes(times: tuple[float, float]) -> None:
    lost = Outcome(0, "n0", "failed", times[0], cause=said("exit code 1: RuntimeError: Connection closed by peer"))
    waited = Outcome(1, "n1", "peer", times[1], cause=said(WAITED[0]))
    verdict = judge([lost, waited])
    assert (verdict.word, verdict.code(0), verdict.first.node_rank) == ("peer", 76, 1)


@pytest.mark.parametrize("builtin", [True, False])
def test_a_collective_whose_time_is_over_lost_a_peer_in_a_script_too(tmp_path: Path, builtin: bool) -> None:
    outcome = end(tmp_path, builtin=builtin, status=1, failures=[failure(0, 1)], last={0: WAITED})
    assert (outcome.word, outcome.independent, outcome.rank) == ("peer", False, 0)
    assert judge([outcome]).code(0) == 76


@pytest.mark.parametrize(
    ("facts", "meanwhile"),
    [
        ({"left": {1: 3.04}}, "rank 1 had ended with exit code 0, 2.0 s earlier"),
        ({"left": {1: 5.5}}, "rank 1 had ended with exit code 0, 0.5 s later"),
        ({}, "rank 1 had not ended"),
        ({"printed": {1: ["epoch 3", "  ", ""]}}, "rank 1 had not ended, its last line was: epoch 3"),
        ({"printed": {1: [""]}, "last": {0: ECHO, 1: ["a warning"]}}, "rank 1 had not ended, its last line was: a warning"),
        ({"places": {1: "step 3 of 20, train"}}, "rank 1 had not ended, step 3 of 20, train"),
        ({"ranks": (0,)}, ""),
        ({"failures": [failure(0, 1), failure(1, 1, 6.0)], "last": {0: ECHO, 1: ECHO}}, ""),
        (
            {"ranks": tuple(range(8)), "left": dict.fromkeys(range(1, 8), 4.0)},
            "; ".join(
                [
                    *(f"rank {rank} had ended with exit code 0, 1.0 s earlier" for rank in range(1, 5)),
                    "only the first 4 of ranks 1-7 are listed",
                ]
            ),
        ),
        # What a rank got over that left with 0, or long before the end, is nobody's reason.
        ({"last": {0: ECHO, 1: BOOM}, "left": {1: 4.0}}, "rank 1 had ended with exit code 0, 1.0 s earlier"),
        ({"last": {0: ECHO, 1: [*BOOM, *["step"] * 200]}}, "rank 1 had not ended, its last line was: step"),
        ({"last": {0: ECHO, 1: [*BOOM, *["step"] * 199]}}, ""),
        ({"last": {0: ECHO, 1: BOOM}}, ""),  # it has a reason of its own, and is the first cause
        ({"last": {0: ["ValueError: mine"]}}, ""),
        (STOP, ""),
    ],
)  # fmt: skip
def test_where_all_that_failed_lost_somebody_it_is_told_what_the_others_did(
    tmp_path: Path, facts: dict[str, Any], meanwhile: str
) -> None:
    given = {"builtin": False, "status": 1, "failures": [failure(0, 1)], "last": {0: ECHO}, **facts}
    assert end(tmp_path, **given).meanwhile == meanwhile[:250]


def test_a_node_that_is_ended_because_of_another_says_where_its_ranks_stood(tmp_path: Path) -> None:
    outcome = end(tmp_path, builtin=False, status=-9, lost="node 1", left={0: NOW - 3}, printed={1: ["epoch 3"]})
    assert (
        outcome.meanwhile
        == "rank 0 had ended with exit code 0, 3.0 s earlier; rank 1 had not ended, its last line was: epoch 3"
    )


RECORDED = {
    "message": {
        "message": "KeyError: 'x'",
        "extraInfo": {
            "py_callstack": "Traceback (most recent call last):\n  File \"a.py\", line 7, in f\nKeyError: 'x'\n"
        },
    }
}


@pytest.mark.parametrize(
    ("record", "evidence", "where"),
    [
        (RECORDED, "exit code 1: KeyError: 'x'", "a.py:7 in f"),
        ({}, "exit code 1; it said last: thousands of lines", None),
        ({"message": "KeyError"}, "exit code 1; it said last: thousands of lines", None),
        ({"message": {"extraInfo": {"py_callstack": 3}}}, "exit code 1; it said last: thousands of lines", None),
    ],
)
def test_what_torchs_record_wrote_counts_before_what_is_left_of_stderr(
    tmp_path: Path, record: dict[str, Any], evidence: str, where: str | None
) -> None:
    (tmp_path / "outcome").mkdir()
    write_json(tmp_path / "outcome" / "error-1.json", record)
    last = {1: ["thousands of lines"]}
    facts = Facts(0, "n0", False, (0, 1), started=True, status=1, failures=[failure(1, 1)], last=last)
    outcome = choose_outcome(facts, NodeDirectory(tmp_path), NOW)
    assert (outcome.evidence, outcome.where) == (evidence, where)


def test_an_abort_of_nccls_watchdog_over_a_broken_gpu_is_no_echo(tmp_path: Path) -> None:
    text = "CUDA error: uncorrectable NVLink error detected during the execution\nSearch for `cudaErrorNvlinkUncorrectable'"
    outcome = end(tmp_path, status=1, failures=[failure(1, ABORTED)], last={1: stderr(text, uncaught=True)})
    assert (outcome.word, outcome.independent) == ("unhealthy", True)


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        ({"failures": [failure(0, KILLED)], "ooms": 1}, "more memory"),
        ({"killed": True, **STOP}, "--grace-seconds"),
        ({"builtin": False, "failures": [failure(0, 1)], "last": {0: [BUS]}, "runtime": "docker"}, "--shm-size 1g"),
        ({"failures": [failure(0, 3)], "run": Path("/a run"), "store_port": 29501}, "`slipway logs '/a run' --rank 0`"),
        ({"builtin": False, "failures": [failure(0, 1)], "last": {0: BAD}}, "correct that line"),
        ({"hang": "hang: x", "behind": 3, "run": Path("/r")}, "`slipway logs /r --rank 3`"),
        ({"hang": "hang: x"}, "`slipway logs --rank 0`"),
        ({"failures": [failure(0, 1)], "last": {0: ["OSError: [Errno 28] No space left on device"]}}, "free some space"),
        ({"failures": [failure(0, 1)], "last": {0: ["OSError: [Errno 30] Read-only file system"]}}, "mount, dmesg"),
        ({"disk": "[Errno 28] No space left on device: 'stop'"}, "use another one (--runs DIR); then start again, with --resume auto if"),
        ({"disk": "[Errno 28] No space left on device", "runtime": "docker"}, "or mount a folder of another one there (-v of docker run);"),
        ({"failures": [failure(0, 1)], "last": {0: [DENIED.format("/r/x")]}, "run": Path("/r")}, "ls -ld"),
        ({"lost": "node 1"}, ""),
    ],
)  # fmt: skip
def test_advice_is_given_where_there_is_some(tmp_path: Path, facts: dict[str, Any], advice: str) -> None:
    seen = {name: value for name, value in facts.items() if name != "runtime"}
    told = helps(end(tmp_path, status=1, **seen), facts.get("runtime", "host"), facts.get("run"))
    assert (advice in told) if advice else told == ""


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"}, 2),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "oom_kill 1\n"}, 1),
        ({"proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.oom_control": "under_oom 0\noom_kill 4\n"}, 4),
        ({"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\n"}, 0),
    ],
)  # fmt: skip
def test_out_of_memory_kills_are_counted(tmp_path: Path, files: dict[str, str], count: int) -> None:
    assert count_ooms(write_files(tmp_path, files)) == count


@pytest.mark.parametrize(("device", "word"), [("cpu", "failed"), ("cuda", "unhealthy")])
def test_a_script_that_wants_a_gpu_where_there_is_none_is_its_own_fault(tmp_path: Path, device: str, word: str) -> None:
    said = {1: ["RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"]}
    assert end(tmp_path, builtin=False, device=device, status=1, failures=[failure(1, 1)], last=said).word == word


LOGGED = [
    "ERROR:root:no checkpoint yet",
    "Traceback (most recent call last):",
    '  File "train.py", line 4, in <module>',
    "    open('/nonexistent/last.ckpt')",
    "FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/last.ckpt'",
    *(f"step {step}" for step in range(40)),
]


@pytest.mark.parametrize(
    ("exitcode", "more", "evidence"),
    [
        (1, ["validation set is empty: give --val"], "exit code 1; it said last: validation set is empty: give --val"),
        (3, [], "exit code 3; it said last: step 39"),
        (KILLED, [], "SIGKILL: somebody killed it (kill -9), no out-of-memory kill was counted here"),
        (-signal.SIGSEGV, [], "SIGSEGV; it said last: step 39"),
    ],
)
def test_an_exception_that_was_handled_is_neither_the_reason_nor_the_place(
    tmp_path: Path, exitcode: int, more: list[str], evidence: str
) -> None:
    outcome = end(tmp_path, builtin=False, status=1, failures=[failure(1, exitcode)], last={1: [*LOGGED, *more]})
    assert (outcome.evidence, outcome.where) == (evidence, None)


NO_STORE = "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (localhost, {})."


@pytest.mark.parametrize(
    ("port", "store_port", "told"), [(12355, 29501, True), (29501, 29501, False), (12355, 0, False)]
)
def test_a_script_that_sets_a_port_of_its_own_is_told_where_the_store_is(
    tmp_path: Path, port: int, store_port: int, told: bool
) -> None:
    outcome = end(
        tmp_path,
        builtin=False,
        status=1,
        failures=[failure(1, 1)],
        last={1: stderr(NO_STORE.format(port))},
        store_port=store_port,
    )
    says = (
        f"looks for torch's store at localhost, port {port}, and torchrun's is at port {store_port}: remove the lines"
    )
    assert (says in helps(outcome)) is told
