"""What a run's directory tells somebody who looks at it, whatever state it was left in."""

import errno
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Slipway

from slipway.cli.runs import CLEAR, WATCH, watch_run
from slipway.cli.runs import shown as shown_status
from slipway.inspect.report_run import describe_ending
from slipway.inspect.runs import read_row
from slipway.inspect.status import find_run, read_status, status_json, status_lines
from slipway.launch.attempt.stops import Stops
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.node_directory import Beat, NodeDirectory
from slipway.launch.run_directory.run_lock import RunLock
from slipway.process.folder_lock import FolderLock, this_process
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.protocol.files import OUTCOMES, rank_file, read_json, write_json

FIRST = {
    "word": "failed",
    "node_rank": 0,
    "host": "n0",
    "rank": 1,
    "evidence": "ValueError: bad",
    "time": 1000.0,
    "advice": "look at it",
}
FAILED = {"code": 1, "word": "failed", "first": FIRST, "attempt": 2}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(name: str = "gpt-1", outcome: dict[str, Any] | None = None, beats: int = 0, **record: Any) -> Path:
    run = Path("runs", name)
    (run / "node-0" / "heartbeat").mkdir(parents=True)
    write_json(run / "run.json", {"workload": "gpt", "started": 1.0, "attempt": 2, **record})
    if outcome:
        write_json(run / "outcome.json", outcome)
    for rank in range(beats):
        write_json(
            NodeDirectory(run / "node-0").heartbeat_file(rank),
            {"phase": "train", "step": 7, "steps": 20, "monotonic": 1.0},
        )
    return run


@contextmanager
def held(run: Path) -> Iterator[None]:
    with Stops() as stops, RunLock(run / "node-0" / "launcher.json", print, stops):
        yield


def test_a_run_is_found_by_its_path_by_its_name_and_as_the_newest() -> None:
    older, newer = make("gpt-1"), make("linear-1", workload="linear", started=2.0)
    assert find_run("runs/gpt-1", Path("runs")) == find_run("gpt-1", Path("runs")) == older
    assert find_run("", Path("runs")) == newer


def test_a_run_whose_launcher_runs_here_is_meant_before_a_newer_one_of_another_container() -> None:
    here, elsewhere = make("gpt-1"), make("linear-1", workload="linear", started=2.0)
    with held(here):
        assert find_run("", Path("runs")) == here
        lock = read_json(here / "node-0" / "launcher.json")
        write_json(elsewhere / "node-0" / "launcher.json", lock | {"space": "another boot pid:[1]"})
        assert find_run("", Path("runs")) == here
    assert find_run("", Path("runs")) == elsewhere


@pytest.mark.parametrize(("name", "says"), [("gpt-2", "for example gpt-1"), ("zzz", "gpt-1"), ("runs", "gpt-1")])
def test_a_run_that_is_not_there_is_told_with_the_nearest(name: str, says: str) -> None:
    make("gpt-1")
    with pytest.raises(LaunchError, match=says) as caught:
        find_run(name, Path("runs"))
    assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize(
    ("name", "said"), [("", "run in elsewhere"), ("gpt-1", "run gpt-1, neither here nor in elsewhere")]
)
def test_where_there_are_no_runs_that_is_said(name: str, said: str) -> None:
    with pytest.raises(LaunchError, match=f"There is no {said}. Give the path"):
        find_run(name, Path("elsewhere"))


def test_somebody_elses_run_that_may_not_be_read_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", forbid)
    with pytest.raises(
        LaunchError, match=r"^theirs/gpt-1/run.json cannot be read by user \d+: Permission denied"
    ) as caught:
        find_run("theirs/gpt-1", Path("runs"))
    assert caught.value.code == CONFIGURATION


def test_a_run_under_way_shows_its_holder_and_its_ranks() -> None:
    run = make(beats=2, outcome=FAILED | {"attempt": 1})
    (run / "snapshots" / "step-00000005").mkdir(parents=True)
    failed = [{"attempt": number, **FIRST} for number in range(1, 8)] + [{}]
    booked = {"seconds": {"training": 90.0, "starting": 10.0}, "attempts": 1, "until": 1.0}
    write_json(run / "node-0/ledger.json", booked | {"failures": failed})
    with held(run):
        status = read_status(run)
        lines = "\n".join(status_lines(status))
    assert status.alive
    assert "  time        1 min 40 s (90.0 % training, 10.0 % starting)" in lines
    assert "  failed      attempt 7, 1970-01-01 00:16:40 UTC: node 0 (n0), rank 1: ValueError: bad" in lines
    assert lines.count("  failed  ") == 5, "the newest"
    assert status_json(status)["failures"] == failed
    assert status_json(status)["ledger"]["seconds"] == {"starting": 10.0, "training": 90.0}
    assert f"process id {os.getpid()}" in lines
    assert "step 5" in lines
    assert lines.count("7/20") == 2
    assert "ended" not in lines, "the verdict is of the attempt before"
    told = json.loads(json.dumps(status_json(status)))
    assert (told["alive"], told["attempt"], told["snapshot"], told["outcome"]) == (True, 2, 5, None)
    assert [(rank["rank"], rank["phase"], rank["step"], rank["steps"]) for rank in told["ranks"]] == [
        (0, "train", 7, 20),
        (1, "train", 7, 20),
    ]


def test_a_rank_that_all_wait_for_and_replicas_that_differed_are_shown() -> None:
    run = make()
    for rank, own in ((0, 0.05), (1, 0.0612)):
        told = {"own": own, "slow": [1, 0.224], "waited": {"1": 3.5, "x": 1, "2": "y"}, "again": 0.5}
        beat = {"phase": "train", "step": 7, "steps": 20, "monotonic": 1.0, **told}
        write_json(NodeDirectory(run / "node-0").heartbeat_file(rank), beat)
    rows = [{"time": 1000.0, "step": 6, "nodes": ["node 1 (n1)"], "text": "rank 1 differs from the others in w"}, 7, {}]
    rows.append({**rows[0], "text": "rank 1 computed wrongly", "kind": "arithmetic"})  # type: ignore[dict-item]
    write_json(run / "replicas.json", {"differences": rows})
    with held(run):
        status = read_status(run)
    lines = status_lines(status)
    assert "  slow        rank 1 makes all others wait: it is 22% slower than the others" in lines
    assert (
        "  replicas    differed at step 6, 1970-01-01 00:16:40 UTC, node 1 (n1): rank 1 differs from the others in w"
        in lines
    )
    assert "  arithmetic  wrong at step 6, 1970-01-01 00:16:40 UTC, node 1 (n1): rank 1 computed wrongly" in lines
    table = [line.split() for line in lines[-3:]]
    assert table[0] == ["rank", "phase", "step", "own", "ms/step", "last", "heartbeat"]
    assert [row[:4] for row in table[1:]] == [["0", "train", "7/20", "50.0"], ["1", "train", "7/20", "61.2"]]
    told = json.loads(json.dumps(status_json(status)))
    assert told["slow"] == {"rank": 1, "slower": 0.224}
    assert [rank["own"] for rank in told["ranks"]] == [0.05, 0.0612]
    assert told["replicas"] == [{**rows[0], "kind": "replicas"}, rows[-1]]
    assert status.beats[0].waited == {1: 3.5}
    assert status.beats[0].again == 0.5


@pytest.mark.parametrize("odd", ["x", [1], ["a", 2], [1, "b"], [-1, 0.5], [1, -0.5], [10**20, 1], {"rank": 1}, 7])
def test_a_slow_rank_that_makes_no_sense_is_none(odd: object) -> None:
    run = make()
    write_json(
        NodeDirectory(run / "node-0").heartbeat_file(0),
        {"phase": "train", "step": 7, "monotonic": 1.0, "slow": odd, "own": -1, "waited": {"3": -1}, "again": "x"},
    )
    with held(run):
        [beat] = read_status(run).beats
    assert (beat.slow, beat.own, beat.waited, beat.again) == (None, None, {}, 0.0)


def test_a_heartbeat_that_goes_while_it_is_looked_at_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(beats=2)
    monkeypatch.setattr(NodeDirectory, "beats", lambda _: {0: Beat(0), 7: Beat(7)})
    status = read_status(run)
    assert ([beat.rank for beat in status.beats], len(status.ages)) == ([0], 1)


def test_a_run_that_ended_shows_its_verdict() -> None:
    run = make(outcome=FAILED)
    lines = "\n".join(status_lines(read_status(run)))
    assert "the workload failed: node 0 (n0), rank 1: ValueError: bad" in lines
    assert "look at it" in lines
    assert "exit code   1" in lines
    assert status_json(read_status(run))["alive"] is False
    assert status_json(read_status(run))["ledger"] is None


def test_the_stacks_of_a_hang_are_shown_with_its_verdict_and_in_the_report() -> None:
    stacks = ["rank 1 (node 0) is at b.py:2 g()", "    at a.py:1 f()"]
    hang = FIRST | {"stacks": stacks, "advice": "look above; for more type `slipway logs /r --rank 1`"}
    status = read_status(make(outcome=FAILED | {"first": hang}))
    lines = status_lines(status)
    assert f"  stacks      {stacks[0]}" in lines
    assert f"              {stacks[1]}" in lines
    assert "  what to do  look above; for more type slipway logs /r --rank 1" in lines
    assert ("stacks", "\n".join(stacks)) in describe_ending(status).facts


@pytest.mark.parametrize("outcome", [None, FAILED | {"attempt": 1}, {"attempt": 2}, FAILED | {"first": None}])
def test_a_run_whose_launcher_was_killed_has_no_verdict(outcome: dict[str, Any] | None) -> None:
    run = make(outcome=outcome)
    write_json(run / "node-0" / "launcher.json", this_process(1.0)._asdict() | {"started": 1})
    assert "without a verdict" in "\n".join(status_lines(read_status(run)))


def test_a_verdict_counts_for_its_own_attempt_only(tmp_path: Path) -> None:
    assert RunDirectory(make("a", outcome=FAILED)).outcome_json == FAILED
    assert RunDirectory(make("b", outcome=FAILED, attempt=3)).outcome_json == {}
    write_json(tmp_path / "outcome.json", FAILED)
    assert RunDirectory(tmp_path).outcome_json == FAILED, "a node without the record of node 0"


def test_the_commands_tell_what_is_missing(slipway: Slipway) -> None:
    for command in ("status", "stop"):
        answer = slipway(command, "absent")
        assert (answer.code, answer.out) == (78, "")
        assert "There is no run absent, neither here nor in runs" in answer.err
    make(outcome=FAILED)
    answer = slipway("stop", "gpt-1")
    assert answer.code == 78
    assert "it ended with exit code 1" in answer.err
    assert slipway("status").code == 0
    assert slipway("status", SLIPWAY_RUNS="elsewhere").code == 78
    assert slipway("status", "--runs", "runs", SLIPWAY_RUNS="elsewhere").code == 0
    Path(".env").write_text("SLIPWAY_RUNS=elsewhere\n")
    assert slipway("status").code == 78
    Path(".env").unlink()
    assert json.loads(slipway("status", "--json").out)["outcome"]["code"] == 1


def test_a_mistake_in_the_env_file_keeps_nobody_from_looking_at_a_run(slipway: Slipway) -> None:
    make("../mine/gpt-1")
    Path(".env").write_text('SLIPWAY_RUNS=mine\nWORKLOAD="gpt"\nSLIPWAY_RUN=1\n')
    assert "gpt-1" in slipway("status", WORKLOAD="'gpt'", NCCL_DEBUG='"INFO"').out
    assert slipway("plan").code == CONFIGURATION
    Path(".env").write_text('SLIPWAY_RUNS="mine"\n')
    assert "quotes" in slipway("status").err


def test_a_request_is_written_for_the_launcher(slipway: Slipway) -> None:
    run = make()
    with held(run):
        answer = slipway("stop", "gpt-1")
    assert answer.code == 0, answer.err
    assert f"process id {os.getpid()}" in answer.out
    assert json.loads((run / "stop").read_text())["outcome"] == "cancelled"


@pytest.mark.parametrize(("written", "code"), [({"time": 1.0}, 1), ({"time": 1e11}, 0), ({}, 1)])
def test_a_script_without_launcher_finds_the_request_in_its_node_folder(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, written: dict[str, float], code: int
) -> None:
    run = make()
    node = NodeDirectory(run / "node-0")
    lock = FolderLock(node.lock)
    lock.take(this_process(2.0, script=("train.py", "--lr", "1")), print)

    def end(seconds: float) -> None:
        write_json(
            rank_file(node.path, OUTCOMES, 0), {"outcome": "cancelled", "message": "cancelled at step 7", **written}
        )
        lock.release()

    (node.path / OUTCOMES).mkdir()
    monkeypatch.setattr("slipway.cli.runs.time.sleep", end)
    answer = slipway("stop", "gpt-1", "--wait")
    assert (answer.code, answer.err) == (code, "")
    assert f"asked `train.py --lr 1` with process id {os.getpid()}" in answer.out
    assert answer.out.endswith("cancelled at step 7\n" if code == 0 else "ended without a report\n")
    assert json.loads((node.path / "stop").read_text())["outcome"] == "cancelled"
    assert not (run / "stop").exists()


def test_a_job_of_several_nodes_shows_those_that_run_now_and_not_those_that_left() -> None:
    run = make(beats=1, nodes=2)
    left = run / "node-1"
    (left / "heartbeat").mkdir(parents=True)
    write_json(NodeDirectory(left).heartbeat_file(1), {"phase": "finish", "step": 5, "steps": 20, "monotonic": 1.0})
    with held(run):
        status = read_status(run)
        lines = "\n".join(status_lines(status))
    assert [beat.rank for beat in status.beats] == [0]
    assert "running     node 0: the launcher with process id" in lines
    assert status_json(status)["holders"][0]["node"] == 0


@pytest.mark.parametrize(
    ("written", "shown", "line"),
    [
        ({"spares": [{"node": 2, "host": "gpu2"}]}, [{"node": 2, "host": "gpu2"}], "  spare       node 2 (gpu2)"),
        ({"spares": []}, [], "  spare       no spare node is here"),
        (None, None, ""),
        ({"spares": "none"}, [], "  spare       no spare node is here"),
    ],
)
def test_the_spare_nodes_of_a_job_are_shown(written: dict[str, Any] | None, shown: list[Any] | None, line: str) -> None:
    run = make(nodes=2)
    with held(run):
        if written:
            write_json(run / "node-0" / "spares.json", written)
        status = read_status(run)
    assert status_json(status)["spares"] == shown
    assert [one for one in status_lines(status) if one.startswith("  spare")] == ([line] if line else [])


def test_a_job_that_waits_for_nodes_says_so_and_shows_no_ranks() -> None:
    run = make(beats=1, nodes=2)
    write_json(run / "node-0" / "waiting.json", {"attempt": 3, "since": time.time() - 40})
    with held(run):
        status = read_status(run)
        lines = "\n".join(status_lines(status))
    assert re.search(r"waiting     for nodes, since 4\d s, for attempt 3", lines)
    assert "last heartbeat" not in lines
    assert status_json(status)["waiting"]["attempt"] == 3


def test_a_users_script_leaves_no_snapshots_of_ours() -> None:
    assert "snapshot" not in "\n".join(status_lines(read_status(make(workload="own"))))


def test_all_runs_are_listed_with_the_newest_first(slipway: Slipway) -> None:
    make("gpt-1", outcome=FAILED, started=100.0)
    make("linear-2", workload="linear", started=300.0, beats=1)
    make("gpt-3", started=200.0)
    said = slipway("runs")
    head, *rows = said.out.splitlines()
    assert head.split() == ["run", "started", "step", "state"]
    assert [row.split()[0] for row in rows] == ["linear-2", "gpt-3", "gpt-1"]
    assert rows[2].endswith("the workload failed")
    assert rows[1].endswith("without a verdict")
    assert rows[0].split()[-4:] == ["7", "without", "a", "verdict"]
    listed = json.loads(slipway("runs", "--json", "--last", "1").out)
    assert listed == [
        {
            "run": "linear-2",
            "workload": "linear",
            "started": 300.0,
            "step": 7,
            "alive": False,
            "state": "without a verdict",
        }
    ]
    few = slipway("runs", "--last", "2")
    assert len(few.out.splitlines()) == 3
    assert "not shown: 1 older run; for all type slipway runs --last 3" in few.err


def test_a_run_under_way_and_one_that_hangs_are_listed_as_such() -> None:
    run = make(beats=1)
    with held(run):
        assert read_row(read_status(run)).state == "running"
        write_json(run / "node-0" / "hang.json", {"text": "rank 1"})
        assert read_row(read_status(run)).state == "hangs"


def test_damaged_records_are_listed(slipway: Slipway) -> None:
    run = make()
    (run / "run.json").write_text("{")
    make("gpt-2", started="soon")
    assert [row.split()[:2] for row in slipway("runs").out.splitlines()[1:]] == [["gpt-2", "–"], ["gpt-1", "–"]]


def test_where_there_is_no_run_to_list_that_is_said(slipway: Slipway) -> None:
    assert slipway("runs").code == CONFIGURATION
    assert "slipway run" in slipway("runs").err


def test_a_node_that_is_to_stop_is_shown_with_the_reason() -> None:
    run, why = make(beats=1), "AWS interruption notice (stop, without a deadline)"
    with held(run):
        write_json(run / "node-0/stop", {"outcome": "stopped", "signal": "SIGTERM", "name": f"{why}\x1b[2J"})
        status = read_status(run)
    assert f"  stopping    node 0: {why}" in status_lines(status)
    assert status_json(status)["stopping"] == [{"node": 0, "why": why}]


def test_watching_shows_what_changed_until_the_run_ends() -> None:
    run = make(beats=1)
    with held(run):
        running = read_status(run)
    ended = read_status(make("gpt-2", outcome=FAILED))
    looks, shown, waited = iter([running, running, ended]), list[str](), list[float]()
    watch_run(lambda: next(looks), shown.append, waited.append, clear=False)
    assert ["running" in text for text in shown] == [True, False]
    assert "the workload failed" in shown[1]
    assert waited == [WATCH, WATCH]


def test_watching_on_a_terminal_replaces_what_was_shown() -> None:
    ended, shown = read_status(make(outcome=FAILED)), list[str]()
    watch_run(lambda: ended, shown.append, lambda seconds: None, clear=True)
    assert shown[0].startswith(CLEAR)


def test_rows_are_broken_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FIRST | {
        "evidence": "ValueError: " + " ".join(["something"] * 30),
        "advice": "type slipway logs --rank 1 " * 5,
    }
    found = read_status(make(outcome=FAILED | {"first": first}))
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("slipway.cli.runs.columns_of", lambda out: 80)
    rows = shown_status(found).split("\n")
    assert max(map(len, rows)) < 80
    words = " ".join(row.strip() for row in rows).split()
    assert words.count("something") == 30


class Terminal:
    """A stdout that is one."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1
