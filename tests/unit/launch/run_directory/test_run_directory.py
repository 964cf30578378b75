"""Where a run lies, what it goes on from, and the files that the launcher keeps in it."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from environments import BARE_SRUN, INDEXED_JOB, PER_PROCESS, SKYPILOT, TWO_TASKS_PER_NODE
from stand_ins import make_devices, make_host, make_sources

from slipway.launch.node import enter, enter_alone, name_odd_runs, name_own_run
from slipway.launch.resolve.catalog import find_workload
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import Plan, make_plan
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import resolve_topology
from slipway.launch.run_directory.directory import newest_run
from slipway.launch.run_directory.run import AlreadyFinishedError, Run, choose_run, prepare_run, write_plan
from slipway.protocol.errors import CONFIGURATION, UNHEALTHY, LaunchError
from slipway.protocol.files import read_json, write_json
from slipway.protocol.snapshots import newest_step

NOW = 1_767_323_045.0  # 2026-01-02 03:04:05 UTC


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my train.py").touch()


def ask(
    *words: str, resume: str = "", run_dir: str = "", environ: dict[str, str] | None = None, fqdn: str = "host"
) -> tuple[Plan, Sources]:
    options = {"SLIPWAY_RESUME": resume, "SLIPWAY_RUN_DIR": run_dir}
    sources = make_sources(environ or {}, {name: value for name, value in options.items() if value})
    topology = resolve_topology(sources, make_devices(8), make_host(fqdn))
    workload, arguments = find_workload(words or ("linear",))
    return make_plan(topology, workload, arguments, sources), sources


def choose(*words: str, **more: Any) -> Run:
    return choose_run(*ask(*words, **more), NOW)


def record(name: str, workload: str = "linear", started: float = 1.0, word: str = "", **more: Any) -> Path:
    folder = Path("runs", name).absolute()
    folder.mkdir(parents=True)
    write_json(folder / "run.json", {"workload": workload, "started": started, "arguments": [], **more})
    if word:
        write_json(folder / "outcome.json", {"word": word})
    return folder


@pytest.mark.parametrize(
    ("words", "environ", "fqdn", "name"),
    [
        (["linear"], {}, "host", "linear-20260102-030405"),
        (["my train.py"], {}, "host", "my-train-20260102-030405"),
        (["-m", "pkg.main"], {}, "host", "pkg.main-20260102-030405"),
        (["linear"], BARE_SRUN, "host", "linear-7"),
        (["linear"], INDEXED_JOB | {"NNODES": "3"}, "lm-2.lm.default.svc", "linear-lm"),
        (["linear"], SKYPILOT, "host", "linear-sky-2026-11-21-06-50-00-000001_lm_1"),
        (["linear"], SKYPILOT | {"SKYPILOT_TASK_ID": "../../etc/x y"}, "host", "linear-..-..-etc-x-y"),
        (["linear"], SKYPILOT | {"SKYPILOT_TASK_ID": "x" * 300}, "host", "linear-" + "x" * 93),
    ],
)
def test_a_run_is_named_after_its_job_or_the_time(
    tmp_path: Path, words: list[str], environ: dict[str, str], fqdn: str, name: str
) -> None:
    assert choose(*words, environ=environ, fqdn=fqdn) == Run(tmp_path / "runs" / name, "none", 1)
    assert not Path("runs").exists()


def test_a_second_start_makes_a_new_run() -> None:
    names = []
    for _ in range(3):
        run = choose()
        names.append(run.path.name)
        run.path.mkdir(parents=True)
    assert names == ["linear-20260102-030405", "linear-20260102-030405-2", "linear-20260102-030405-3"]


STOPPED: Any = SimpleNamespace(time=lambda: NOW)  # a clock


def start(sources: Mapping[str, str]) -> Iterator[Path]:
    """A launcher that claims a run directory, begins in it when it is asked to go on, and ends when it is asked again."""
    plan, given = ask(environ=dict(sources))
    job = Job(plan, given, make_devices(), {}, None, make_host())
    stops: Any = SimpleNamespace(wait=lambda seconds: False)
    with ExitStack() as stack:
        node = enter_alone(job, stops, stack, STOPPED) if job.single else enter(job, stack, STOPPED)
        assert node.problem == ""
        yield node.run.path
        assert (node.run.attempt, node.run.resume) == (1, sources.get("SLIPWAY_RESUME", "none"))
        prepare_run(node.run, plan, "0", NOW)
        yield node.run.path


STARTED = {
    "by hand": {},
    "by hand, to resume": {"SLIPWAY_RESUME": "auto"},
    "with a folder for runs that is not there yet": {"SLIPWAY_RUNS": "deep/runs"},
    "as node 0 of several": {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
    "as steps of one Slurm job": BARE_SRUN | {"SLURM_NODEID": "0", "SLURM_PROCID": "0"},
}


@pytest.mark.parametrize("started", STARTED)
def test_launchers_that_start_at_the_same_moment_get_a_folder_each(started: str) -> None:
    together, starts = Barrier(6), [start(STARTED[started]) for _ in range(6)]

    def claims(launcher: Iterator[Path]) -> Path:
        together.wait()
        return next(launcher)

    with ThreadPoolExecutor(6) as pool:
        claimed = list(pool.map(claims, starts))
    folder = claimed[0].parent
    assert sorted(claimed) == sorted(folder.iterdir()), "none was given to two"
    assert newest_run(folder) is None, "what is only claimed is no run yet"
    assert [next(launcher) for launcher in starts] == claimed
    [next(launcher, None) for launcher in starts]
    assert len(list(folder.glob("*/run.json"))) == 6


def test_a_folder_that_was_claimed_is_removed_where_nothing_was_begun_in_it() -> None:
    launcher = start({})
    assert next(launcher).is_dir()
    launcher.close()  # type: ignore[attr-defined]
    assert list(Path("runs").iterdir()) == []


def test_a_job_that_is_requeued_takes_the_empty_folder_that_its_first_start_left() -> None:
    left = Path("runs/linear-7").absolute()
    left.mkdir(parents=True)
    assert choose(environ=REQUEUED) == Run(left, "none", 3)
    assert choose(environ=BARE_SRUN).path.name == "linear-7-2", "another start may be about to use it"


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (lambda: Path("runs").symlink_to("gone"), "runs is a link to gone, which does not exist"),
        (lambda: Path("runs").touch(), "runs is a file, and a run directory is a folder"),
    ],
)
def test_a_folder_that_cannot_be_made_is_said_with_the_cause(blocks: Callable[[], None], said: str) -> None:
    blocks()
    with pytest.raises(LaunchError, match=rf"{said}\. Choose another") as caught:
        next(start({}))
    assert caught.value.code == CONFIGURATION


FIRST_TASK = TWO_TASKS_PER_NODE | {"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def test_the_processes_of_a_job_choose_the_same_folder_without_talking(tmp_path: Path) -> None:
    first = choose(environ=FIRST_TASK)
    first.path.mkdir(parents=True)
    write_json(first.path / "run.json", {"attempt": 1})  # process 0 was quicker
    assert first.path == choose(environ=TWO_TASKS_PER_NODE).path == tmp_path / "runs/linear-7"
    with pytest.raises(LaunchError, match="--resume auto"):
        choose(environ=FIRST_TASK)


def test_a_task_that_comes_late_takes_the_attempt_that_rank_0_wrote_down() -> None:
    """With a launcher per process nothing but the record of the scheduler's start says so."""
    first = TWO_TASKS_PER_NODE | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    again = {"SLURM_RESTART_COUNT": "1"}
    for attempt, restarted in ((1, {}), (2, again)):
        early = choose(environ=TWO_TASKS_PER_NODE | restarted)
        begun = choose(environ=first | restarted)
        assert [early.attempt, begun.attempt] == [attempt, attempt]
        plan, _ = ask(environ=first | restarted)
        prepare_run(begun, plan, "0", NOW)
        assert choose(environ=TWO_TASKS_PER_NODE | restarted).attempt == attempt
        assert not restarted or begun.of_this_job
    another = choose(environ=TWO_TASKS_PER_NODE | {"SLURM_STEP_ID": "1"}, run_dir=str(begun.path), resume="auto")
    assert another.attempt == 3, "a second step that goes on with the run"


@pytest.mark.parametrize("environ", [PER_PROCESS, PER_PROCESS | {"RANK": "0", "LOCAL_RANK": "0"}])
def test_processes_that_nothing_names_a_job_for_have_to_be_told_the_folder(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with pytest.raises(LaunchError, match="--run-dir DIR") as caught:
        choose(environ=environ)
    assert caught.value.code == CONFIGURATION
    assert choose(environ=environ, run_dir="mine").path == tmp_path / "mine"


def test_a_process_that_comes_late_to_a_new_run_begins_with_the_same_attempt() -> None:
    """Without a scheduler nothing tells one start from another, but what rank 0 wrote of a new run is of this one."""
    first = PER_PROCESS | {"RANK": "0", "LOCAL_RANK": "0"}
    plan, _ = ask(environ=first)
    prepare_run(choose(environ=first, run_dir="mine"), plan, "0", NOW)
    assert choose(environ=PER_PROCESS, run_dir="mine").attempt == 1
    assert choose(environ=PER_PROCESS, run_dir="mine", resume="auto").resume == "auto"


def test_a_process_that_is_the_only_one_agrees_with_nobody(tmp_path: Path) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # as many shells and notebooks have them
    launchers = [start(alone), start(alone)]
    first, second = map(next, launchers)
    assert first.parent == tmp_path / "runs"
    assert second.name == f"{first.name}-2"


@pytest.mark.parametrize("given", ["mine", "deep/mine", "/tmp/mine-that-is-absent"])
def test_a_folder_that_was_given_is_taken(tmp_path: Path, given: str) -> None:
    assert choose(run_dir=given, environ=BARE_SRUN).path == tmp_path / given
    Path("mine").mkdir()
    assert choose(run_dir="mine").path == tmp_path / "mine"


@pytest.mark.parametrize("resume", ["", "none", "runs/old"])
def test_a_folder_that_is_not_empty_is_refused(resume: str) -> None:
    record("old")
    with pytest.raises(LaunchError, match=r"runs/old is not empty.*--resume auto") as caught:
        choose(run_dir="runs/old", resume=resume)
    assert caught.value.code == CONFIGURATION


def test_auto_goes_on_in_the_folder_that_was_given() -> None:
    folder = record("old", attempt=4)
    assert choose(run_dir="runs/old", resume="auto") == Run(folder, "auto", 5)


INDEXED = {"JOB_COMPLETION_INDEX": "0"}  # of the Job called 7
MINE, ANOTHER = "a" * 64, "b" * 64  # ids of containers


@pytest.mark.parametrize(
    ("container", "resume", "word", "node", "expected"),
    [
        (MINE, "", "", 0, ("linear-a", "auto", 3)),
        (MINE, "", "stopped", 0, ("linear-a", "auto", 3)),
        (MINE, "none", "stopped", 0, ("linear-a", "auto", 3)),  # as a job that is requeued
        (MINE, "runs/other", "stopped", 0, ("linear-a", "runs/other", 3)),  # which has no snapshot yet
        (MINE, "none", "finished", 0, ("linear-20260102-030405", "none", 1)),
        (MINE, "", "stopped", 1, ("linear-a", "auto", 3)),  # the second of two nodes that share the folder
        ("c" * 64, "", "stopped", 0, ("linear-20260102-030405", "none", 1)),
        ("", "", "stopped", 0, ("linear-20260102-030405", "none", 1)),  # typed in a container by hand
        (MINE, "auto", "stopped", 0, ("linear-newer", "auto", 2)),
    ],
)
def test_a_container_that_is_started_again_continues_its_own_run(
    container: str, resume: str, word: str, node: int, expected: tuple[str, str, int]
) -> None:
    for name, started, its in (("linear-0", 1.0, MINE), ("linear-a", 2.0, MINE), ("linear-newer", 3.0, ANOTHER)):
        folder = record(name, started=started, word=word, attempt=1 + (name == "linear-a"))
        write_json(folder / "outcome.json", {"word": word, "attempt": 1 + (name == "linear-a")})
        (folder / f"node-{node}").mkdir()
        write_json(folder / f"node-{node}/plan.json", {"container": its})
    record("gpt-a", "gpt", 4.0)
    record("other", "gpt", 0.0)
    plan, sources = ask(resume=resume)
    plan = plan._replace(topology=plan.topology._replace(container=container))
    run = choose_run(plan, sources, NOW)
    name, resumes, attempt = expected
    resumes = str(Path(resumes).absolute()) if "/" in resumes else resumes
    assert (run.path.name, run.resume, run.attempt) == (name, resumes, attempt)
    assert run.of_this_job == (name == "linear-a")


@pytest.mark.parametrize(
    ("environ", "own", "said"),
    [
        ({}, True, "it begins it once more, since it has no snapshot. A new container begins a new run"),
        ({}, False, ""),
        ({"SLIPWAY_RESUME": "auto"}, True, ""),  # as was asked for
        (INDEXED, True, ""),  # a pod that was replaced
    ],
)
def test_that_a_container_continues_its_own_run_is_said(
    environ: dict[str, str], own: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, given = ask(environ=environ)
    plan = plan._replace(topology=plan.topology._replace(container=MINE))
    job = Job(plan, given, make_devices(), environ, None, make_host())
    lines: list[str] = []
    monkeypatch.setattr("slipway.launch.node.say", lines.append)
    name_own_run(job, Run(Path("runs/linear-a"), "auto", 2, of_this_job=own))
    assert said in lines[0] if said else not lines


def test_a_container_that_is_started_again_after_its_end_has_nothing_to_do() -> None:
    folder = record("linear-a", attempt=1)
    write_json(folder / "outcome.json", {"word": "finished", "attempt": 1})
    plan, sources = ask()
    plan = plan._replace(topology=plan.topology._replace(container=MINE))
    (folder / "node-0").mkdir()
    write_plan(folder / "node-0", plan, sources)
    with pytest.raises(AlreadyFinishedError, match="linear-a"):
        choose_run(plan, sources, NOW)


@pytest.mark.parametrize(("words", "snapshot", "refused"), [
    (("train.py",), True, False),  # only the script knows whether it has more epochs by now
    (("train.py",), False, True),
    (("linear",), True, True),
])  # fmt: skip
def test_a_finished_script_that_resumes_may_have_more_to_do(
    words: tuple[str, ...], snapshot: bool, refused: bool
) -> None:
    Path("train.py").touch()
    folder = record("mine", workload=ask(*words)[0].workload.name, word="finished")
    if snapshot:
        (folder / "snapshots/step-00000025").mkdir(parents=True)
    with pytest.raises(AlreadyFinishedError) if refused else nullcontext():
        assert choose(*words, run_dir="runs/mine", resume="auto").resume == "auto"


REQUEUED = BARE_SRUN | {"SLURM_RESTART_COUNT": "2"}


@pytest.mark.parametrize(
    ("environ", "resume", "snapshot", "expected"),
    [
        (REQUEUED, "none", True, ("linear-7", "auto", 5)),
        (REQUEUED, "none", False, ("linear-7", "auto", 5)),
        (REQUEUED, "runs/other", True, ("linear-7", "auto", 5)),
        (REQUEUED, "runs/other", False, ("linear-7", "runs/other", 5)),  # once more from where it began
        (BARE_SRUN, "none", True, ("linear-7-2", "none", 1)),
        (REQUEUED | {"SLURM_JOB_ID": "8"}, "none", True, ("linear-8", "none", 3)),
        (INDEXED, "none", True, ("linear-7", "auto", 5)),
        (INDEXED, "runs/other", False, ("linear-7", "runs/other", 5)),
    ],
    ids=[
        "requeued",
        "without a snapshot",
        "begun elsewhere",
        "begun elsewhere, without one",
        "not requeued",
        "another",
        "a pod that was replaced",
        "a pod that was replaced, begun elsewhere",
    ],
)
def test_a_job_that_begins_again_goes_on_with_its_own_run(
    environ: dict[str, str], resume: str, snapshot: bool, expected: tuple[str, str, int]
) -> None:
    record("other")
    own = record("linear-7", attempt=4, job="7")
    if snapshot:
        (own / "snapshots/step-00000025").mkdir(parents=True)
    run = choose(environ=environ, resume=resume, fqdn="7-0.service.default.svc")
    name, goes_on, attempt = expected
    assert (run.path.name, run.attempt) == (name, attempt)
    assert run.resume == (goes_on if goes_on in ("auto", "none") else str(Path(goes_on).absolute()))


def test_a_job_that_was_requeued_takes_no_run_of_others() -> None:
    record("theirs", job="5")
    with pytest.raises(LaunchError, match=r"runs/theirs is not empty"):
        choose(environ=REQUEUED | {"SLURM_NODEID": "0"}, run_dir="runs/theirs")
    own = record("mine", job="7", attempt=1)
    assert choose(environ=REQUEUED, run_dir="runs/mine", resume="runs/theirs").path == own


def test_a_job_that_was_requeued_counts_its_starts_where_nothing_is_left_of_them() -> None:
    assert choose(environ=REQUEUED).attempt == 3


def test_auto_takes_the_newest_run_of_the_workload_by_its_record() -> None:
    newest = record("linear-a", started=30.0)
    record("linear-b", started=20.0)  # written later
    record("gpt-c", workload="gpt", started=40.0)
    Path("runs/broken").mkdir()
    Path("runs/broken/run.json").write_text("{")
    assert choose(resume="auto").path == newest
    assert newest_run(Path("runs"), "linear") == Path("runs/linear-a")
    assert newest_run(Path("runs"), "vision") is None
    assert newest_run(Path("absent"), "linear") is None
    assert newest_run(Path("runs")) == Path("runs/gpt-c")


def test_auto_without_a_run_starts_one(tmp_path: Path) -> None:
    assert choose(resume="auto") == Run(tmp_path / "runs/linear-20260102-030405", "auto", 1)


def test_auto_under_a_scheduler_goes_on_with_the_same_job(tmp_path: Path) -> None:
    record("linear-newer", started=99.0)
    assert choose(resume="auto", environ=BARE_SRUN).path == tmp_path / "runs/linear-7"


def test_a_path_starts_a_new_run_from_it(tmp_path: Path) -> None:
    old = record("old")
    (old / "snapshots/step-00000025").mkdir(parents=True)
    run = choose(resume="runs/old")
    assert run == Run(tmp_path / "runs/linear-20260102-030405", str(old), 1, origin=str(old))


def test_a_path_with_nothing_to_resume_is_refused_before_anything_starts() -> None:
    record("old")
    with pytest.raises(
        LaunchError, match="--resume runs/old is neither a snapshot nor a run directory with one"
    ) as caught:
        choose(resume="runs/old")
    assert caught.value.code == CONFIGURATION
    elsewhere = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "n0"}
    assert choose(resume="runs/old", environ=elsewhere).resume.endswith("runs/old"), "another node may hold one"


def test_a_path_that_is_absent_is_refused() -> None:
    with pytest.raises(LaunchError, match="--resume runs/absent: there is no such run") as caught:
        choose(resume="runs/absent")
    assert caught.value.code == CONFIGURATION


def test_a_finished_run_is_not_resumed_unless_more_is_asked() -> None:
    record("linear-a", word="finished")
    with pytest.raises(AlreadyFinishedError, match="linear-a"):
        choose(resume="auto")
    assert choose("linear", "--steps", "9", resume="auto").path.name == "linear-a"
    assert choose_run(*ask(resume="auto"), NOW, finished_is_fine=True).path.name == "linear-a"


def test_a_run_whose_later_attempt_was_killed_is_not_finished() -> None:
    folder = record("linear-a", word="finished", attempt=3)
    write_json(folder / "outcome.json", {"word": "finished", "attempt": 2})
    assert choose(resume="auto").path == folder


@pytest.mark.parametrize("word", ["stopped", "failed", "peer", ""])
def test_a_run_that_did_not_finish_is_resumed(word: str) -> None:
    record("linear-a", word=word)
    assert choose(resume="auto").path.name == "linear-a"


def test_copied_snapshots_do_not_look_newer_than_what_is_written_from_now_on() -> None:
    snapshot = Path("runs/mine/snapshots/step-00000500")
    snapshot.mkdir(parents=True)
    (snapshot / "manifest.json").write_text('{"attempt": 7}')
    assert choose(resume="auto", run_dir="runs/mine").attempt == 8


def test_the_attempt_only_grows() -> None:
    attempts = []
    for started in (5.0, 6.0, 7.0):
        plan, sources = ask(resume="auto", run_dir="mine")
        run = choose_run(plan, sources, NOW)
        prepare_run(run, plan, "1.0", started)
        attempts.append(run.attempt)
    assert attempts == [1, 2, 3]
    written = read_json(Path("mine/run.json"))
    assert re.match(r"\d+\.\d+|$", written.pop("torch"))  # none where the tests of the launcher run without PyTorch
    assert written == {
        "workload": "linear", "arguments": [], "version": "1.0", "started": 5.0, "attempt": 3, "nodes": 1,
        "processes_per_node": 8, "job": None,
        "start": None, "device": "8 × NVIDIA H100", "image": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("resume", "where", "said"),
    [
        ("auto", {}, "slipway: runs/linear-b/run.json is skipped: it is not a JSON object"),
        ("auto", {"run_dir": "runs/linear-a"}, ""),
        ("auto", {"environ": BARE_SRUN}, ""),
        ("none", {}, ""),
    ],
)
def test_runs_that_cannot_be_read_are_named_where_the_newest_is_looked_for(
    resume: str, where: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    record("linear-a")
    (record("linear-b") / "run.json").write_text("{")
    plan, sources = ask(resume=resume, **where)
    name_odd_runs(Job(plan, sources, make_devices(), {}, None, make_host()))
    told = capfd.readouterr().err
    assert told.startswith(said)
    assert bool(told) == bool(said)


def test_the_finished_run_of_another_workload_is_not_taken_for_this_ones_end() -> None:
    record("mine", workload="vision", word="finished")
    assert choose(resume="auto", run_dir="runs/mine").path.name == "mine"


@pytest.mark.parametrize(
    ("script", "resume", "said"),
    [
        ("my train.py", "auto", "slipway: warning: runs/mine is a run of linear, and --resume auto continues it with my train\n"),
        ("linear", "auto", ""),
        ("my train.py", "none", ""),
    ],
)  # fmt: skip
def test_a_run_of_another_workload_is_named_before_it_is_continued(
    script: str, resume: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    record("mine")
    plan, sources = ask(script, resume=resume, run_dir="runs/mine")
    name_odd_runs(Job(plan, sources, make_devices(), {}, None, make_host()))
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("attempt", [2**53, -1, 1e300, "7", None])
def test_a_number_of_attempts_that_nobody_made_counts_as_none(attempt: Any) -> None:
    record("mine", attempt=attempt)
    assert choose(resume="auto", run_dir="runs/mine").attempt == 1


def test_what_the_attempt_before_left_is_cleared_and_nothing_else() -> None:
    plan, _ = ask()
    run = Run(Path("mine").absolute(), "auto", 2)
    for name in (
        "node-0/stop",
        "node-0/honours-stop",
        "node-0/outcome/rank-0.json",
        "node-0/heartbeat/rank-0.json",
        "node-0/.ledger.json.1.new",  # of a launcher that was killed while it wrote
        ".outcome.json.1.new",
        f"node-0/.ledger.json.{os.getpid()}.new",
        "node-1/stop",
        "node-0/logs/rank-0.log",
    ):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).touch()
    prepare_run(run, plan, "1.0", NOW)
    left = {str(file.relative_to(run.path)) for file in run.path.rglob("*") if file.is_file()}
    own = f"node-0/.ledger.json.{os.getpid()}.new"
    assert left == {"run.json", "node-1/stop", "node-0/logs/rank-0.log", own}
    assert (run.node(0).path / "outcome").is_dir()
    assert (run.node(0).path / "heartbeat").is_dir()


def test_only_node_0_writes_the_record() -> None:
    plan, _ = ask(environ=BARE_SRUN)
    prepare_run(Run(Path("mine"), "none", 1), plan, "1.0", NOW)
    assert [file.name for file in Path("mine").iterdir()] == ["node-1"]


def test_a_folder_that_cannot_be_made_says_what_to_choose() -> None:
    Path("file").touch()
    plan, _ = ask()
    with pytest.raises(LaunchError, match="--run-dir or --runs"):
        prepare_run(Run(Path("file/run"), "none", 1), plan, "1.0", NOW)


def test_the_newest_snapshot_is_found_by_its_step() -> None:
    for name in ("step-00000500", "step-00001500", "step-00001000", "step-00009999.tmp", "other"):
        Path("mine/snapshots", name).mkdir(parents=True)
    assert newest_step(Path("mine")) == 1500
    assert newest_step(Path("absent")) is None


def test_a_run_is_gone_where_nothing_or_another_folder_is_at_its_path(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "none", 1)
    run.path.mkdir()
    identity = run.identity
    assert not run.is_gone(identity)
    run.path.rename(tmp_path / "renamed")
    assert run.is_gone(identity)
    run.path.mkdir()
    assert run.is_gone(identity)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EACCES])
def test_a_file_system_that_does_not_answer_is_no_proof_that_a_run_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run = Run(tmp_path, "none", 1)
    identity = run.identity

    def fail(path: Path) -> os.stat_result:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "stat", fail)
    assert not run.is_gone(identity)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSYS, CONFIGURATION, r"cannot rename folders \(Function not implemented\).*add --store"),
        (errno.EPERM, CONFIGURATION, r"cannot rename folders .*--runs DIR"),
        (
            errno.EMFILE,
            CONFIGURATION,
            "cannot rename folders",
        ),  # gcsfuse, for a folder with more files than it would copy
        (errno.ENOSPC, UNHEALTHY, "No space left on device"),
    ],
)
def test_a_mounted_bucket_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch, number: int, code: int, said: str
) -> None:
    def rename(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    plan, _ = ask()
    run = choose()
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", rename)
        with pytest.raises(LaunchError, match=said) as caught:
            prepare_run(run, plan, "0", NOW)
    assert caught.value.code == code
    assert list((run.path / "node-0").glob(".*")) == []
    assert prepare_run(run, plan, "0", NOW)


def test_a_file_system_that_cannot_sync_folders_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112  # a link to what is open
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    assert prepare_run(choose(), ask()[0], "0", NOW) is False
