"""One start of the workload on this node, and how it ended."""

import dataclasses
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from slipway import __version__
from slipway.launch.attempt.ending import blame_gpu, choose_outcome
from slipway.launch.attempt.job_wide import ALONE, JobWide
from slipway.launch.attempt.stop_handler import Limits
from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.supervise import Attempt, Elsewhere
from slipway.launch.attempt.terminal import say, short_path
from slipway.launch.hangs.hang import HangReport
from slipway.launch.resolve.host import make_folders
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import Run, prepare_run, write_plan
from slipway.launch.verdict.block import locate
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.restarts import Try
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.errors import EXITS, LaunchError, code_of
from slipway.protocol.outcomes import Word
from slipway.protocol.printable import printable


def attempt(
    job: Job,
    run: Run,
    stops: Stops,
    lost: Callable[[], Elsewhere | None],
    report: HangReport,
    job_wide: JobWide = ALONE,
) -> Try:
    """One start of the workload here, and how it ended; `lost` says what elsewhere ended it. Raises LaunchError."""
    try:
        make_folders(job.plan.topology.mended)
    except OSError as error:
        raise LaunchError(f"A folder for caches cannot be made: {error}", code_of(error)) from None
    durable = prepare_run(run, job.plan, __version__, time.time())
    if not durable and job_wide.previous is None:
        say(
            f"note: the file system of {run.path} cannot sync folders: if the machine loses its power, the newest snapshot "
            "may be lost"
        )
    if job.plan.topology.process is None or job.plan.topology.process.local_rank == 0:
        with suppress(OSError):  # a disk that is full so far may have room when it counts
            write_plan(run.node(job.plan.topology.node_rank).path, job.plan, job.sources)
    number = f", attempt {run.attempt}" if run.attempt > 1 else ""
    if job.plan.workload.keeps:
        say(f"{job.plan.workload.name}: run directory {short_path(run.path)}{number}")
    before, folder = run.newest_step, run.identity
    limits = Limits(job.seconds("SLIPWAY_GRACE_SECONDS"), job.patience, job.start_patience, job.after_failure)
    watched = report if job.sources.parsed("SLIPWAY_WATCH") else None
    under_way = Attempt(job.plan, run, limits, stops, say, watched, job_wide)
    kept = job_wide.memory.variables if job_wide.memory else {}
    facts = under_way.supervise(
        {**job.plan.environment(job.environ), **describe_previous(job_wide.previous), **kept}, lost
    )
    after = run.newest_step
    facts = dataclasses.replace(facts, saved=after if after != before else None)
    outcome = blame_gpu(choose_outcome(facts, under_way.node, time.time()), facts.xids)
    if run.is_gone(folder) and not outcome.good and (run.shared or job.single):  # else other nodes have copies
        cause = Cause(CauseKind.RUN_GONE, outcome.evidence, name=str(run.path))  # the next one would begin at step 0
        outcome = dataclasses.replace(outcome, word=Word.UNHEALTHY, time=time.time(), cause=cause)
    seen, builtin = under_way.milestones, job.plan.workload.builtin
    gained = seen.trained if builtin else seen.ran
    return Try(run.attempt, outcome, before, after, facts.moved, seen.reached, round(gained, 1), job.enough)


def describe_previous(previous: Outcome | None) -> dict[str, str]:
    """The variable that describes the previous attempt to the workers: the outcome's word, the place and the cause."""
    if previous is None:
        return {}
    text = f"{previous.word}: {locate(previous)}: {previous.evidence}".removesuffix(": ")
    return {"SLIPWAY_PREVIOUS_OUTCOME": printable(text).encode(errors="replace").decode()}


def not_started(job: Job, run: Run, error: LaunchError, now: float) -> Try:
    """The attempt that could not be made."""
    word, host = EXITS[error.code].word, socket.gethostname()
    return Try(run.attempt, Outcome(job.plan.topology.node_rank, host, word, now, cause=Cause(text=str(error))))
