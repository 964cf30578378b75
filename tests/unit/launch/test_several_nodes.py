"""Several nodes between two attempts: what follows a verdict, and what a launcher makes of what all agreed on."""

import dataclasses
import select
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from environments import BARE_SRUN, PYTORCHJOB_NEW
from made_jobs import make_job, tried
from stand_ins import make_sources, plan_for

from slipway.launch.attempt.stops import Stop, Stops
from slipway.launch.closing import conclude
from slipway.launch.next_attempt import decide_next
from slipway.launch.node import Node, enter
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.messages import AttemptStart
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.run import Run
from slipway.launch.several_nodes import SeveralNodes, agree, make_info, may_count_processes, runs_folder
from slipway.launch.verdict.cause import Cause, CauseKind, said
from slipway.launch.verdict.restarts import AttemptHistory, Ending, Try
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.protocol.files import write_json

LOST = Outcome(1, "n1", "lost", 1.0, cause=said("its connection closed"))
STOPPED = Outcome(1, "n1", "stopped", 1.0)
SICK = Outcome(1, "n1", "unhealthy", 1.0)


def job_of(nodes: str = "2", **environ: str) -> Job:
    contract = {"MASTER_ADDR": "n0", "RANK": "1", "WORLD_SIZE": nodes} | environ
    return make_job(environ=contract)._replace(sources=make_sources(contract))


def rule(
    outcome: Outcome,
    *,
    tries: tuple[Try, ...] = (),
    leaving: tuple[int, ...] = (),
    stop: bool = False,
    moved: bool = True,
    gained: float = 0.0,
    **more: Any,
) -> Ending:
    node = Node(Run(Path("runs/lm"), "none", len(tries) + 1), tries, **more)
    with Stops() as stops:
        stops.came = [Stop(0.0, signal.SIGTERM, "SIGTERM")] if stop else []
        attempt = Try(len(tries) + 1, outcome, moved=moved, gained=gained)
        return decide_next(job_of(), node, attempt, stops, judge([outcome]), leaving)


def test_a_lost_node_is_waited_for_again_until_attempts_are_used_up() -> None:
    lost = tuple(Try(number, LOST, moved=True) for number in (1, 2, 3))
    assert [rule(LOST, tries=lost[:made], failures=made).pause for made in range(4)] == [1.0, 4.0, 16.0, None]
    assert rule(LOST, tries=lost, failures=3).why == Cause(CauseKind.LIMIT, number=4, name="3")
    assert judge([LOST]).code(0) == 76


def test_a_node_that_is_lost_before_the_first_step_is_waited_for_too() -> None:
    assert rule(LOST, moved=False).pause == 1.0


def test_a_node_that_is_lost_while_the_job_advances_is_waited_for_at_once_however_often() -> None:
    ending = rule(LOST, failures=3, gained=30.0)
    assert (ending.pause, ending.failures) == (0.0, 0)


def test_failures_before_this_launcher_came_count_and_shrinking_does_not() -> None:
    assert rule(LOST, failures=3).pause is None
    assert [rule(outcome, leaving=(1,), failures=2).failures for outcome in (STOPPED, SICK)] == [2, 3]


@pytest.mark.parametrize("outcome", [STOPPED, SICK])
def test_an_elastic_job_goes_on_without_who_leaves(outcome: Outcome) -> None:
    assert rule(outcome, leaving=(1,)).leaving == (1,)
    assert rule(outcome, leaving=(1,)).pause == 1.0
    assert rule(outcome).pause is None


def test_nothing_follows_a_stop_or_a_good_end() -> None:
    assert rule(LOST, stop=True).pause is None
    assert rule(STOPPED, stop=True).pause is None
    assert rule(Outcome(0, "n0", "finished", 1.0)).pause is None
    assert rule(Outcome(0, "n0", "cancelled", 1.0), leaving=(1,)).pause is None


def test_who_leaves_does_not_end_the_job_of_the_others_even_where_its_save_failed() -> None:
    stopped, failed = (
        rule(outcome, stop=True, leaving=(0,))
        for outcome in (STOPPED, Outcome(0, "n0", "peer", 1.0, cause=said("late")))
    )
    assert (stopped.pause, stopped.leaving) == (1.0, (0,))
    assert failed.pause == 1.0


INDEXED = {"JOB_COMPLETION_INDEX": "1"}


@pytest.mark.parametrize(
    ("nodes", "environ", "words", "replaced"),
    [
        ("2", INDEXED, ("linear",), True),
        ("2", {}, ("linear",), False),
        ("1:2", INDEXED, ("linear",), False),  # it shrinks
        ("2", INDEXED | {"SLIPWAY_MAX_RESTARTS": "0"}, ("linear",), False),
        ("2", INDEXED, ("allreduce",), False),  # begins anew
        ("2", INDEXED | {"SLIPWAY_MAX_RESTARTS": "3"}, ("-m", "train"), False),  # its signal goes to every node
        ("2", {"PET_NNODES": "2", "PET_NODE_RANK": "1"}, ("linear",), False),
        ("2", INDEXED | {"PET_NNODES": "2", "PET_NODE_RANK": "1"}, ("linear",), True),  # Trainer's is one
    ],
)
def test_only_the_pods_of_an_indexed_job_are_replaced_one_by_one(
    nodes: str, environ: dict[str, str], words: tuple[str, ...], replaced: bool
) -> None:
    given = {"MASTER_ADDR": "n0", "RANK": "1", "WORLD_SIZE": nodes, **environ}
    job = job_of()._replace(plan=plan_for(words, given), sources=make_sources(given))
    assert job.replaced == replaced


@pytest.mark.parametrize(
    ("nodes", "environ", "words", "awaits"),
    [
        ("2", {}, ("linear",), True),
        ("2", INDEXED, ("linear",), True),
        ("1:2", {}, ("linear",), False),  # it shrinks
        ("2", {"SLIPWAY_MAX_RESTARTS": "0"}, ("linear",), False),
        ("2", {"SLIPWAY_MAX_RESTARTS": "3"}, ("-m", "train"), False),
        ("2", dict(BARE_SRUN), ("linear",), False),  # Slurm starts the whole job again, or nothing
    ],
)
def test_a_replacement_is_awaited_where_somebody_can_start_one(
    nodes: str, environ: dict[str, str], words: tuple[str, ...], awaits: bool
) -> None:
    given = environ if environ == BARE_SRUN else {"MASTER_ADDR": "n0", "RANK": "1", "WORLD_SIZE": nodes, **environ}
    job = job_of()._replace(plan=plan_for(words, given), sources=make_sources(given))
    assert job.awaits_replacement == awaits


def test_a_crash_loop_ends_with_93_on_all_nodes_alike() -> None:
    ending = rule(tried().outcome, tries=(tried(1, moved=True), tried(2, moved=True)))
    assert (ending.pause, ending.verdict.word, ending.verdict.code(1)) == (None, "no-progress", 93)
    assert "3 attempts left no snapshot at all" in ending.verdict.first.evidence


GO = AttemptStart(3, "lm-1", 2, 1, 2, 29_501, False, False, address="n0", interface=None)


@pytest.mark.parametrize(
    ("resume", "tries", "snapshot", "then"),
    [
        ("none", 0, None, "none"),
        ("none", 1, None, "auto"),
        ("none", 1, 20, "auto"),
        ("/other/run", 0, None, "/other/run"),
        ("/other/run", 1, None, "/other/run"),
        ("/other/run", 1, 20, "auto"),
        ("auto", 0, 20, "auto"),
        ("auto of /other/run", 2, None, "/other/run"),  # its own snapshots were set aside
    ],
)
def test_what_an_attempt_resumes_from(tmp_path: Path, resume: str, tries: int, snapshot: int | None, then: str) -> None:
    origin = resume[resume.find("/") :] if "/" in resume else ""
    run = Run(tmp_path / "guess", resume.split()[0], 1, origin=origin)
    met = agree(job_of(), Node(run), dataclasses.replace(GO, tries=tries, snapshot=snapshot))[1].run
    assert (met.resume, met.origin) == (then, origin)


def test_fewer_nodes_than_before_get_ranks_without_gaps(tmp_path: Path) -> None:
    job = job_of("2:4", RANK="3")
    assert make_info(job, Node(Run(tmp_path, "none", 1))).nodes == "2:4"
    ours, node = agree(job, Node(Run(tmp_path / "guess", "none", 1)), dataclasses.replace(GO, nodes=3, group_rank=2))
    assert "--nnodes=3" in ours.plan.argv
    assert "--node-rank=2" in ours.plan.argv
    assert (ours.plan.topology.node_rank, ours.plan.topology.world_size) == (3, 6)
    assert node.run.path.name == "lm-1"


def test_a_new_node_0_without_what_the_job_began_from_may_go_on_with_it(tmp_path: Path) -> None:
    given = {"RANK": "0", "SLIPWAY_RESUME": str(tmp_path / "lost"), "SLIPWAY_RUNS": str(tmp_path)}
    with ExitStack() as stack:
        node = enter(job_of(**given), stack)
    assert node.problem == ""
    assert "there is no such run or snapshot" in node.occupied


@pytest.mark.parametrize(("own", "folder"), [("", "all"), ("elsewhere/mine", "elsewhere")])
def test_nodes_look_for_each_others_files_where_the_run_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert runs_folder(job_of(SLIPWAY_RUNS="all", SLIPWAY_RUN_DIR=own)) == tmp_path / folder


@pytest.mark.parametrize(("begun", "stands"), [(1, "lost"), (2, "finished")])
def test_who_was_left_behind_leaves_what_later_attempts_found(tmp_path: Path, begun: int, stands: str) -> None:
    write_json(tmp_path / "run.json", {"attempt": begun})
    write_json(tmp_path / "outcome.json", {"attempt": begun, "word": "finished"})
    conclude(judge([LOST]), job_of(), Run(tmp_path, "none", 1), AttemptHistory((Try(1, LOST),)))
    assert RunDirectory(tmp_path).outcome_json["word"] == stands


def test_a_verdict_keeps_what_earlier_starts_found(tmp_path: Path) -> None:
    for number, outcome in enumerate((Outcome(0, "n0", "finished", 1.0), LOST), 1):
        write_json(tmp_path / "run.json", {"attempt": number})
        conclude(judge([outcome]), job_of(), Run(tmp_path, "auto", number), AttemptHistory((Try(number, outcome),)))
    told = RunDirectory(tmp_path).outcome_json
    assert [(tried["number"], tried["outcome"]["word"]) for tried in told["attempts"]] == [(1, "finished"), (2, "lost")]
    assert told["word"] == "lost"


@pytest.mark.parametrize(("before", "after", "told"), [(20, 20, True), (20, 40, False), (None, 20, False)])
def test_nodes_that_trained_nothing_say_how_a_new_run_begins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], before: int | None, after: int, told: bool
) -> None:
    tried = Try(2, Outcome(0, "n0", "finished", 1.0), before, after)
    conclude(judge([tried.outcome]), job_of(RANK="0"), Run(tmp_path, "auto", 2), AttemptHistory((tried,)))
    said = " ".join(capfd.readouterr().err.split())
    assert (
        "nothing was trained, because this run is at step 20 already, and no step beyond that is asked for. Give more steps, "
        "or start a new run" in said
    ) is told


@pytest.mark.parametrize(
    ("arguments", "than"),
    [(("--steps", "60"), "more than the 60 steps"), (("--lr", "1", "--steps=447"), "all the 447 steps")],
)
def test_a_run_that_was_killed_beyond_the_steps_asked_for_is_not_called_finished(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], than: str
) -> None:
    tried, job = Try(2, Outcome(0, "n0", "finished", 1.0), 447, 447), job_of(RANK="0")
    job = job._replace(plan=job.plan._replace(arguments=arguments))
    conclude(judge([tried.outcome]), job, Run(tmp_path, "auto", 2), AttemptHistory((tried,)))
    said = " ".join(capfd.readouterr().err.split())
    assert f"this run is at step 447 already, which is {than} asked for. Give more steps, or start a new run" in said
    assert "finished before" not in said


@pytest.mark.parametrize(
    ("file", "node", "says"),
    [
        ("data/x.txt", 0, "was looked for at {here}/data/x.txt"),
        ("there", 0, ""),
        ("data/x.txt", 1, ""),
        ("/no/x", 0, ""),
    ],
)
def test_a_file_that_a_script_did_not_find_is_shown_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, node: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    Path("run").mkdir()
    text = f"FileNotFoundError: [Errno 2] No such file or directory: '{file}'"
    lost = Outcome(node, "n0", "failed", 1.0, rank=0, cause=said(text))
    conclude(judge([lost]), job_of(RANK="0"), Run(tmp_path / "run", "none", 1), AttemptHistory((Try(1, lost),)))
    advice = RunDirectory(tmp_path / "run").outcome_json["first"]["advice"]
    assert says.format(here=tmp_path) in advice
    assert ("looked for" in advice) == bool(says)


def test_the_advice_after_a_run_with_a_store_names_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sick = Outcome(0, "n0", "unhealthy", 1.0, rank=3)
    for environ, advice in (
        ({}, "with --resume auto"),
        ({"SLIPWAY_STORE": "s3://bucket/x"}, "--resume auto --store s3://bucket/x"),
    ):
        conclude(judge([sick]), job_of(**environ), Run(tmp_path, "auto", 1), AttemptHistory((Try(1, sick),)))
        assert advice in RunDirectory(tmp_path).outcome_json["first"]["advice"]
        assert advice in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("attempts", [None, "x", [7, {"number": "one"}, {}]])
def test_what_is_damaged_of_an_earlier_verdict_is_left_out(tmp_path: Path, attempts: Any) -> None:
    write_json(tmp_path / "outcome.json", {"attempts": attempts})
    conclude(judge([LOST]), job_of(), Run(tmp_path, "auto", 2), AttemptHistory((Try(2, LOST),)))
    assert [tried["number"] for tried in RunDirectory(tmp_path).outcome_json["attempts"]] == [2]


def test_a_newcomer_counts_what_it_missed(tmp_path: Path) -> None:
    start = dataclasses.replace(GO, tries=2, failures=1, reached=40)
    _, node = agree(job_of(), Node(Run(tmp_path / "guess", "none", 1), reached=7), start)
    assert (node.missed, node.failures, node.reached) == (2, 1, 40)
    info = make_info(job_of(), dataclasses.replace(node, tries=(Try(3, LOST),)))
    assert (info.tries, info.failures, info.reached, info.attempt) == (3, 1, 40, 3)


@pytest.mark.parametrize(
    ("given", "doubtful"),
    [
        ({"WORLD_SIZE": "2"}, True),
        ({"WORLD_SIZE": "", "NNODES": "2"}, False),
        ({"WORLD_SIZE": "2", "JOB_COMPLETION_INDEX": "1"}, False),
        (BARE_SRUN | {"WORLD_SIZE": "", "RANK": ""}, False),
        (PYTORCHJOB_NEW, False),
    ],
    ids=["WORLD_SIZE", "NNODES", "an Indexed Job", "Slurm", "a PyTorchJob"],
)
def test_the_number_of_nodes_is_only_doubted_where_no_scheduler_gave_it(given: dict[str, str], doubtful: bool) -> None:
    assert may_count_processes(job_of(**given).plan.topology) is doubtful


def test_a_request_of_the_last_moment_is_told_before_the_outcome() -> None:
    told: list[str] = []

    class Messages:
        stops = ()

        def __init__(self, config: object) -> None:
            pass

        def stop(self, number: str, name: str, *, notice: bool) -> None:
            told.append(name)

        def report(self, outcome: Outcome, *_: object) -> Ending:
            told.append(outcome.word)
            return Ending(judge([outcome]))

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    with Stops() as stops, SeveralNodes(job_of(), stops, rendezvous=Messages) as nodes:
        signal.raise_signal(signal.SIGTERM)  # after the workers were looked at for the last time
        nodes.report(STOPPED, lambda verdict, leaving: Ending(verdict), lambda: False)
    assert told == ["SIGTERM", "stopped"]


def test_news_wakes_who_waits_for_the_workers() -> None:
    given: list[RendezvousConfig] = []
    with Stops() as stops:
        SeveralNodes(job_of(), stops, rendezvous=given.append)  # type: ignore[arg-type]
        assert select.select([stops.reader], [], [], 0)[0] == []
        given[0].wake()
        assert select.select([stops.reader], [], [], 0)[0] == [stops.reader]
        stops.drain()
        assert not stops.came


def test_an_older_copy_of_a_script_is_told_from_the_others(tmp_path: Path) -> None:
    def script_of(content: str | None) -> str:
        file = tmp_path / "train.py"
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        job, node = job_of(), Node(Run(tmp_path / "lm", "none", 1))
        workload = job.plan.workload._replace(command=("python", "-u", str(file)))
        return make_info(job._replace(plan=job.plan._replace(workload=workload)), node).script

    assert script_of("print(1)") == script_of("print(1)") != script_of("print(2)")
    assert script_of(None) == ""
    assert make_info(job_of(), Node(Run(tmp_path / "lm", "none", 1))).script == ""
