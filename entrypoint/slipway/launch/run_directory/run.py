"""The run directory of a job: its name, what it contains already, and the files that the launcher keeps in it."""

import dataclasses
import itertools
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipway.launch.resolve.packages import locate_module, read_version
from slipway.launch.resolve.plan import Plan, plan_json, resolved_values
from slipway.launch.resolve.sources import Sources
from slipway.launch.run_directory.directory import RunDirectory, list_run_directories, newest_run
from slipway.launch.run_directory.records import RunRecord
from slipway.protocol import files, snapshots
from slipway.protocol.durable import clear, hidden, sync_folder, unfinished
from slipway.protocol.errors import DISK_ERRORS, LaunchError, code_of, told_if_unreadable
from slipway.protocol.mistake import did_you_mean
from slipway.protocol.outcomes import Word
from slipway.protocol.redact import make_redactor, redact_json, secret_values

OTHER_RUN = "Choose another with --run-dir, --runs or --resume."


@dataclass(frozen=True)
class Run(RunDirectory):
    """The run directory of this job, and what its workers are to resume from: `none`, `auto` or a path.

    `attempt` is the one that begins. `shared`: whether all nodes see the same directory. `of_this_job`: whether it made this
    directory before it was requeued. `origin`: the path of another run or of its snapshot from which this run began; empty
    if there is none.
    """

    path: Path
    resume: str
    attempt: int
    shared: bool = True
    of_this_job: bool = False
    origin: str = ""

    def resumes_again(self, newest: int | None) -> str:
        """What another attempt resumes from, with the `newest` step of the run: without any it begins where it began at first."""
        return self.origin if newest is None and self.origin else "auto"

    @property
    def identity(self) -> tuple[int, int] | None:
        """What tells this folder from another that has its name later; None where there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def is_gone(self, identity: tuple[int, int] | None) -> bool:
        """Whether the folder of this identity is no longer here. A file system that does not answer proves nothing."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return (found.st_dev, found.st_ino) != identity


class AlreadyFinishedError(Exception):
    """`--resume auto` found a run that is finished; its argument is the folder."""

    @property
    def path(self) -> Path:
        """The folder of the run."""
        path: Path = self.args[0]
        return path


class NoNewRunError(LaunchError):
    """Nothing new can begin: the run directory that was named is taken, or what to begin from is not there; the message says
    what to type. A job that is under way continues all the same."""


def is_free(path: Path) -> bool:
    """Whether a new run could be there. Creates nothing."""
    return not os.path.lexists(path)


def claim(path: Path) -> bool:
    """Create the folder of a new run. False where it is there already: the one that creates it has it, also among launchers that
    start at the same moment on several hosts. Raises LaunchError (78, 77) where it cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir()
            return True
    except OSError as error:
        raise cannot_make(error) from None
    return False


def release(path: Path) -> None:
    """Remove the folder of a run that was claimed, unless anything is in it."""
    with suppress(OSError):
        path.rmdir()


@told_if_unreadable(OTHER_RUN)
def choose_run(
    plan: Plan,
    sources: Sources,
    now: float,
    finished_is_fine: bool = False,
    take: Callable[[Path], bool] = is_free,
) -> Run:
    """Decide where this run is. What is created is up to `take`, which returns whether a new run gets the folder of that name.

    Raises NoNewRunError where a run would be overwritten or there is nothing to resume from, AlreadyFinishedError where
    there is nothing left to do; with several nodes that is for the workers to see, on all of them.
    """
    run = place_run(plan, sources, now)
    if run.resume not in ("auto", "none") and not Path(run.resume).exists():
        given = sources.value("SLIPWAY_RESUME")
        runs = [str(known.path) for known in list_run_directories(Path(sources.value("SLIPWAY_RUNS")))]
        meant = did_you_mean(given.lower(), ("auto", "none")) or did_you_mean(given, runs)
        raise NoNewRunError(f"--resume {given}: there is no such run or snapshot.{meant} Give its path, auto or none.")
    if run.resume == "auto":
        if not (finished_is_fine or _may_have_more(run, plan)):
            _refuse_finished(run.path, plan)
    elif run.of_this_job:
        pass  # it begins once more where it began at first
    elif sources.value("SLIPWAY_RUN_DIR") or _among_others(plan):
        _refuse_used(run.path, plan)
    if not run.of_this_job and plan.workload.builtin and plan.topology.nodes == 1:
        _require_snapshot(run, sources)
    return _take_new(run, plan, take) if _is_unnamed(run, plan, sources) else run


def _among_others(plan: Plan) -> bool:
    """Whether launchers that do not agree with each other use one folder: those of a job with one for each process."""
    return plan.topology.process is not None and plan.topology.world_size > 1


def _is_unnamed(run: Run, plan: Plan, sources: Sources) -> bool:
    """Whether it is a new run whose folder was not named, and which no other launcher looks for."""
    if run.of_this_job or sources.value("SLIPWAY_RUN_DIR") or _among_others(plan):
        return False
    return run.resume != "auto" or not (plan.topology.job or (run.path / files.RUN_FILE).exists())


def _take_new(run: Run, plan: Plan, take: Callable[[Path], bool]) -> Run:
    """The run in a folder that no other has. One that is empty may be what an earlier start of the same job left."""
    numbered = (run.path.with_name(f"{run.path.name}-{number}") for number in itertools.count(2))
    left = plan.topology.may_have_begun and run.path.is_dir() and not any(run.path.iterdir())
    path = run.path if left else next(path for path in itertools.chain([run.path], numbered) if take(path))
    return dataclasses.replace(run, path=path, attempt=_attempt_of(plan, RunDirectory(path), RunRecord()))


@told_if_unreadable(OTHER_RUN)
def place_run(plan: Plan, sources: Sources, now: float) -> Run:
    """Where the settings, the job and the time put a run; for nodes other than 0 that is a guess until node 0 answers."""
    resume, given = sources.value("SLIPWAY_RESUME"), sources.value("SLIPWAY_RUN_DIR")
    runs = Path(sources.value("SLIPWAY_RUNS")).absolute()
    if given:
        path = Path(given).absolute()
    elif plan.topology.job:
        path = runs / _safe(f"{plan.workload.name}-{plan.topology.job}")
    elif _among_others(plan):
        raise LaunchError(
            "With one launcher per process, and without a scheduler that names the job, the processes cannot agree on a "
            "run directory. Name it: --run-dir DIR."
        )
    elif resume == "auto" and (newest := newest_run(runs, plan.workload.name)):
        path = newest
    elif mine := _run_of_container(runs, plan, sources):
        path = mine
    else:
        path = runs / f"{_safe(plan.workload.name)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}"
    origin = "" if resume in ("auto", "none") else str(Path(resume).absolute())
    resume = origin or resume
    directory = RunDirectory(path)
    record = directory.record
    topology = plan.topology
    of_this_job = topology.may_have_begun and record.job == topology.job is not None
    of_this_job = of_this_job or (topology.container in directory.containers if topology.container else False)
    if of_this_job and (resume == "none" or directory.newest_step is not None):
        resume = "auto"  # a job that was requeued, or whose pod or container was, resumes its own run, whatever it began from
    return Run(path, resume, _attempt_of(plan, directory, record, resume), of_this_job=of_this_job, origin=origin)


def _run_of_container(runs: Path, plan: Plan, sources: Sources) -> Path | None:
    """The run that this container began before the engine started it again. One that is finished is over where somebody asked for
    a new one.
    """
    container = plan.topology.container
    if not container or not (newest := newest_run(runs, plan.workload.name, lambda run: container in run.containers)):
        return None
    from_start = sources.value("SLIPWAY_RESUME") == "none" and not sources.claim("SLIPWAY_RESUME").is_default
    return None if from_start and is_finished(newest, plan) else newest


def _attempt_of(plan: Plan, run: RunDirectory, record: RunRecord, resume: str = "none") -> int:
    """The number of the attempt that begins. With a launcher per process that of rank 0 may have written it down already; without
    a scheduler that tells one start from another, what rank 0 wrote of a new run is of this start.
    """
    topology, newest = plan.topology, record.attempt
    if topology.process and topology.rank and topology.start is None and resume != "auto":
        newest = 0
    begun = topology.process and topology.rank and topology.start is not None and record.start == topology.start
    if begun and newest:
        return newest
    # Snapshots that were copied here, or whose run.json is lost, must not look newer than what is written from now on.
    return max(newest, run.snapshots_attempt, topology.restarts) + 1


def is_finished(path: Path, plan: Plan) -> bool:
    """Whether the run in a folder has finished what this plan asks for."""
    run, same = RunDirectory(path), (plan.workload.name, plan.arguments)
    return run.outcome.word == Word.FINISHED and (run.record.workload, run.record.arguments) == same


def _may_have_more(run: Run, plan: Plan) -> bool:
    """Whether somebody started a script with `slipway.resume` again: only the script knows whether it has more epochs by now."""
    return not (plan.workload.builtin or run.of_this_job) and run.newest_step is not None


def _refuse_finished(path: Path, plan: Plan) -> None:
    if is_finished(path, plan):
        raise AlreadyFinishedError(path)


def _refuse_used(path: Path, plan: Plan) -> None:
    """Where several launchers share the folder, another may have made it just now; only process 0 writes run.json."""
    used = (path / files.RUN_FILE).exists() if _among_others(plan) else path.is_dir() and any(path.iterdir())
    if used and plan.topology.rank == 0:
        raise NoNewRunError(
            f"The run directory {path} is not empty, and nothing in it is overwritten. Add --resume auto to resume the "
            "run in it, or choose another one with --run-dir."
        )


def _require_snapshot(run: Run, sources: Sources) -> None:
    """Raise where what a run is to resume from holds nothing. With disks of their own only the workers of several nodes know."""
    path = Path(run.resume)
    if (
        run.resume in ("auto", "none")
        or RunDirectory(path).newest_step is not None
        or files.number_in(path.name, snapshots.STEP) is not None
    ):
        return
    raise NoNewRunError(
        f"--resume {sources.value('SLIPWAY_RESUME')} is neither a snapshot nor a run directory with one. Give the path of a run "
        "that has saved, auto or none."
    )


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:100] or "run"


def refuse_links(run: Path, node_rank: int) -> None:
    """Refuse a run directory in which a folder that is written to is a link: it may lead to what others made, and snapshots there
    would be deleted with ours. On the way to the run directory links are followed. Raises LaunchError (78).
    """
    node = files.node_folder(run, node_rank)
    for folder in (
        run / files.SNAPSHOTS,
        run / files.CHARTS,
        run / files.TRACES,
        node,
        *(node / name for name in (files.LOGS, files.OUTCOMES, files.HEARTBEATS)),
    ):
        if folder.is_symlink():
            raise LaunchError(
                f"{folder} is a link, and within a run directory links are not followed. Put a folder in its place, or keep the "
                "whole run elsewhere: --run-dir or --runs."
            )


def prepare_run(run: Run, plan: Plan, version: str, now: float) -> bool:
    """Create the run directory and this node's folder in it, and write run.json on node 0. Returns whether its file system can
    make names durable. Raises LaunchError (78, 77).
    """
    node = run.node(plan.topology.node_rank).path
    refuse_links(run.path, plan.topology.node_rank)
    try:
        for name in (files.OUTCOMES, files.HEARTBEATS):
            (node / name).mkdir(parents=True, exist_ok=True)
        require_renames(node)
        for stale in _stale_files(run, node, plan):  # by the attempt before; its verdict is in outcome.json
            with files.held_folder(stale.parent) as folder:
                (folder / stale.name).unlink(missing_ok=True)
        if plan.topology.rank == 0 or not run.shared:
            record = files.read_json(run.path / files.RUN_FILE)
            record |= {
                "workload": plan.workload.name,
                "arguments": list(plan.arguments),
                "version": version,
                "job": plan.topology.job,
                "start": plan.topology.start,
                "started": record.get("started", now),
                "attempt": run.attempt,
                "nodes": plan.topology.nodes,
                "processes_per_node": plan.topology.processes_per_node,
                "device": _device(plan),
                "torch": found[0] if (found := read_version(locate_module("torch") or run.path)) else "",
                "image": plan.topology.image or "",
            }
            files.write_json(run.path / files.RUN_FILE, record)
        return sync_folder(run.path)
    except OSError as error:
        raise cannot_make(error) from None


def _device(plan: Plan) -> str:
    """The devices of this node in words, such as `8 × NVIDIA H100 80GB HBM3`."""
    names = Counter(gpu.name for gpu in plan.topology.gpus)
    return ", ".join(f"{count} × {name}" for name, count in names.items()) or plan.topology.device


def require_renames(folder: Path) -> None:
    """Raise LaunchError (78) where no folder can be renamed: a snapshot is whole once it has its name. Raises OSError."""
    made = hidden(folder / "renames", f"tried-{os.getpid()}")
    made.mkdir()
    try:
        made = made.rename(hidden(folder / "renames", f"done-{os.getpid()}"))
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise LaunchError(
            f"{folder} is on a file system that cannot rename folders ({error.strerror}), as mounted buckets cannot, and a "
            "snapshot is written under another name first. Train on a local disk (--runs DIR), and add --store for copies in the "
            "bucket."
        ) from None
    finally:
        clear(made)


def cannot_make(error: OSError) -> LaunchError:
    """The error for a run directory in which nothing can be made."""
    why, file = str(error), Path(os.fsdecode(error.filename or ""))
    if isinstance(error, FileExistsError):
        leads = f"{file} is a link to {file.readlink()}, which does not exist" if file.is_symlink() else ""
        why = leads or f"{file} is a file, and a run directory is a folder"
    if isinstance(error, NotADirectoryError):
        found = next((place for place in (file, *file.parents) if place.is_file()), file)
        why = f"{found} is a file, and a run directory is a folder"
    text = f"The run directory cannot be made: {why}. Choose another with --run-dir or --runs."
    return LaunchError(text, code_of(error))


OF_LAUNCHER = (files.HANG_FILE, files.RANKS_FILE, files.STACKS_WANTED)  # of each, where there is one for each process


def _stale_files(run: Run, node: Path, plan: Plan) -> list[Path]:
    """This launcher's own files, and what one that was killed had not finished writing; where there is one per process, its
    neighbours may have written theirs already, or be writing them."""
    if process := plan.topology.process:
        mine = [files.rank_file(node, folder, process.rank) for folder in (files.OUTCOMES, files.HEARTBEATS)]
        mine += [files.own_file(node, name, process.rank) for name in OF_LAUNCHER]
    else:
        mine = [file for folder in (files.OUTCOMES, files.HEARTBEATS) for file in (node / folder).glob("*")]
        mine += unfinished(node)
        if plan.topology.rank == 0 or not run.shared:
            mine += [*unfinished(run.path, files.RUN_FILE), *unfinished(run.path, files.OUTCOME_FILE)]
    shared = [
        files.STOP_FILE,
        files.HONOURS_STOP,
        files.WAITING_FILE,
        files.SPARES_FILE,
        files.TRACEABLE,
        files.TRACE_WANTED,
        *OF_LAUNCHER,
    ]
    shared = [] if process and process.local_rank else shared
    return [*mine, *(node / name for name in shared)]


def write_plan(node_dir: Path, plan: Plan, sources: Sources) -> None:
    """Write what `slipway plan --json` shows, without secrets, where this launcher ran, and its `notes`; options.json has the
    workload's options.

    Raises OSError.
    """
    shown = plan_json(plan, resolved_values(plan.topology, sources), {})
    del shown["options"]
    clean = make_redactor(secret_values(sources.environ, sources.env_file).values())
    more = {"host": socket.gethostname(), "container": plan.topology.container, "notes": list(plan.topology.notes)}
    files.write_json(node_dir / files.PLAN_FILE, redact_json(shown | more, clean))
