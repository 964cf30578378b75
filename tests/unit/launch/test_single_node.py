"""A single node's attempts: what the next one starts with, and what is left of the last."""

import signal
from pathlib import Path

import pytest
from environments import PER_PROCESS
from made_jobs import make_job, tried
from stand_ins import FREE_PORT, make_sources

from slipway.launch.attempt.stops import Stop, Stops
from slipway.launch.next_attempt import announce, decide_next, give_up, stopped_here
from slipway.launch.node import Node, SingleNode, with_free_port
from slipway.launch.rendezvous.messages import AttemptStart
from slipway.launch.run_directory.run import Run
from slipway.launch.several_nodes import agree
from slipway.launch.verdict.block import block, outcome_json, what_to_do
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.restarts import AttemptHistory, Ending
from slipway.launch.verdict.verdict import judge


@pytest.mark.parametrize(
    ("words", "environ", "limit"),
    [
        (["linear"], {}, 3),
        (["train.py"], {}, 0),
        (["linear"], {"SLIPWAY_MAX_RESTARTS": "0"}, 0),
        (["train.py"], {"SLIPWAY_MAX_RESTARTS": "7"}, 7),
    ],
)
def test_our_workloads_are_started_again_three_times_and_a_script_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], environ: dict[str, str], limit: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert make_job(*words, environ=environ).restarts == limit


@pytest.mark.parametrize(
    ("resume", "snapshot", "following"),
    [
        ("none", False, "auto"),
        ("none", True, "auto"),
        ("auto", True, "auto"),
        ("/old/run", True, "auto"),
        ("/old/run", False, "/old/run"),  # nothing of its own yet: it begins there again
        ("auto of /old/run", False, "/old/run"),  # what it had of its own was set aside
    ],
)
def test_the_next_attempt_goes_on_where_there_is_something(
    tmp_path: Path, resume: str, snapshot: bool, following: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if snapshot:
        (tmp_path / "snapshots" / "step-00000009").mkdir(parents=True)
    origin = resume[resume.find("/") :] if "/" in resume else ""
    job, node = make_job(), Node(Run(tmp_path, resume.split()[0], 4, origin=origin), (tried(),))
    ending = Ending(judge([tried().outcome]))
    announce(job, node, ending, 4.0, 0.0)
    announce(job, node, ending, 0.0, 0.0)
    met = SingleNode().join(job, node, lambda: False)
    assert met
    assert met[1].run == Run(tmp_path, following, 5, origin=origin)
    said = capfd.readouterr().err
    assert "the workload failed: node 0 (n0), rank 1: ValueError: bad" in said
    assert "starting again in 4 s" in said
    assert "starting again: attempt 5" in said or "starting again from" in said
    assert ("from the snapshot of step 9" in said) is snapshot


def test_the_next_attempt_takes_another_port_where_any_will_do() -> None:
    job = with_free_port(make_job())
    assert job.plan.topology.store_port != FREE_PORT
    assert f"--master-port={job.plan.topology.store_port}" in job.plan.argv
    given = make_job(environ={"MASTER_PORT": "4000"})
    assert with_free_port(given) == given
    process = make_job(environ=PER_PROCESS)
    assert with_free_port(process) == process


def test_one_attempt_too_many_says_what_was_wrong() -> None:
    last = give_up((tried(1), tried(2), tried(3, before=40, after=40)))
    assert last.outcome.word == "no-progress"
    assert judge([last.outcome]).code(0) == 93
    assert "3 attempts left no snapshot after step 40; the last failed: ValueError: bad" in last.outcome.evidence
    assert "save more often (--save-every); for its complete output, type" in what_to_do(last.outcome, str)
    assert "no snapshot at all" in give_up((tried(),)).outcome.evidence


def test_a_stop_between_attempts_is_the_end_and_names_what_came_before() -> None:
    with Stops() as stops:
        stops.came = [Stop(0.0, signal.SIGINT, "SIGINT")]
        job = make_job(environ={"MASTER_ADDR": "n0", "RANK": "1", "WORLD_SIZE": "2"})
        ended = stopped_here(job, Node(Run(Path("lm"), "none", 2), (tried(2),)), stops, 0.0)
    assert (ended.outcome.word, ended.outcome.node_rank) == ("cancelled", 1)
    assert "SIGINT came before attempt 3; attempt 2 ended at node 0 (n0), rank 1" in ended.outcome.evidence
    history = AttemptHistory((tried(1), tried(2), ended))
    assert "  restarts    1" in block(judge([ended.outcome]), history), "there were two attempts"
    assert "  restarts    none" in block(judge([ended.outcome]), AttemptHistory((tried(2), ended)))


def test_the_closing_block_counts_the_attempts() -> None:
    history = AttemptHistory((tried(1), tried(2), tried(3, "finished")))
    lines = block(judge([history.tries[-1].outcome]), history)
    assert lines[0].startswith("finished on 1 node after 3 attempts")
    history = AttemptHistory((tried(1), tried(2)), Cause(CauseKind.LIMIT, number=2, name="1"))
    lines = block(judge([history.tries[-1].outcome]), history)
    assert [line for line in lines if line.startswith("  attempt")] == [
        "  attempt 1   node 0 (n0), rank 1: ValueError: bad"
    ]
    assert "  restarts    1: --max-restarts 1, and 2 failures in a row were without progress" in lines
    assert "  restarts    none: because" in block(
        judge([tried().outcome]), AttemptHistory((tried(),), Cause(text="because"))
    )
    many = block(judge([tried().outcome]), AttemptHistory(tuple(map(tried, range(1, 21)))))
    assert [line.split()[1] for line in many if line.startswith("  attempt ")] == [str(n) for n in range(12, 20)]
    assert "  attempts    11 more before these: see outcome.json" in many
    told = outcome_json(judge([history.tries[-1].outcome]), 0, history)
    assert (told["attempt"], told["no_restart"], len(told["attempts"])) == (2, str(history.why), 2)


@pytest.mark.parametrize(
    ("seen", "run_dir", "shared"), [(True, "", True), (False, "", False), (True, "other", False), (True, "lm-1", True)]
)
def test_the_nodes_share_a_run_directory_where_all_see_it_under_one_name(
    tmp_path: Path, seen: bool, run_dir: str, shared: bool
) -> None:
    environ = {"MASTER_ADDR": "n0", "RANK": "1", "WORLD_SIZE": "2", "SLIPWAY_RUN_DIR": run_dir}
    job = make_job(environ=environ)._replace(sources=make_sources(environ))
    start = AttemptStart(3, "lm-1", 2, 1, 2, 29_501, seen, False, address="n0", interface=None)
    _, node = agree(job, Node(Run(tmp_path / "guess", "none", 1)), start)
    assert (node.run.shared, node.run.attempt) == (shared, 3)


def test_a_crash_loop_of_a_single_node_is_told_as_that_and_not_as_its_last_failure() -> None:
    node = Node(Run(Path("lm"), "none", 3), (tried(1, moved=True), tried(2, moved=True)))
    with Stops() as stops:
        ending = decide_next(make_job(), node, tried(3, moved=True), stops, judge([tried().outcome]), ())
    assert (ending.pause, ending.verdict.word) == (None, "no-progress")
    assert ending.verdict == judge([ending.verdict.first])
