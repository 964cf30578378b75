"""A job of a single node, from its run directory to the verdict: attempts until one ends the job."""

import dataclasses
import socket
import time

from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.supervise import Elsewhere
from slipway.launch.job import Job, attempt, conclude, not_started, say
from slipway.launch.resolve.connectivity import free_port
from slipway.launch.resolve.container_checks import require_writable, results_folder
from slipway.launch.resolve.plan import make_plan
from slipway.launch.resolve.topology import FREE_PORT
from slipway.launch.run_directory.run import AlreadyFinishedError, Run, choose_run, place_run
from slipway.launch.run_directory.run_lock import Hold, holder_file, refuse_held
from slipway.launch.verdict.attempts import DEFAULT, STUCK, Course, Decision, Try, decide
from slipway.launch.verdict.block import block, place
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.protocol.errors import LaunchError
from slipway.protocol.files import STOP_FILE, newest_step


def run_alone(job: Job, stops: Stops) -> int:
    """Run a job whose launchers need not agree: that of a single node, or one launcher per process."""
    require_writable(job.host, results_folder(job.sources))
    try:
        run = choose_run(job.plan, job.sources, time.time())
    except AlreadyFinishedError as finished:
        say(str(finished))
        return 0
    except LaunchError:
        refuse_held(holder_file(place_run(job.plan, job.sources, time.time()), job.plan), stops)
        raise
    stops.watch(run.path)
    with Hold(holder_file(run, job.plan), say, stops) as hold:
        if job.plan.topology.rank == 0:
            (run.path / STOP_FILE).unlink(missing_ok=True)
        course = make_attempts(job, run, stops, hold)
        return conclude(judge([course.tries[-1].outcome]), job, run, course)


def taken_over(hold: Hold) -> Elsewhere | None:
    """Whether another launcher took this one for dead, and its place."""
    return Elsewhere(hold.lost) if hold.lost else None


def restart_limit(job: Job) -> int:
    """How often this job may be started again. A user's script may not know how to go on, so it has to be asked for."""
    limit = job.sources.parsed("SLIPWAY_MAX_RESTARTS")
    if limit == "auto":
        return DEFAULT if job.plan.workload.own and job.plan.workload.resumes else 0
    return int(str(limit))


def make_attempts(job: Job, run: Run, stops: Stops, hold: Hold) -> Course:
    """Attempts until one ends the job; its outcome is the job's. Raises LaunchError where the first cannot start."""
    tries: tuple[Try, ...] = ()
    while True:
        try:
            tries += (attempt(job, run, stops, lambda: taken_over(hold)),)
        except LaunchError as error:
            if not tries:
                raise
            tries += (not_started(job, run, error),)
        next_one = _decide(job, tries, stops, hold)
        if next_one.stuck:
            tries = (*tries[:-1], give_up(tries))
        if next_one.pause is None:
            return Course(tries, next_one.why)
        job, run = with_free_port(job), again(run, next_one.pause, tries)
        if stops.wait(next_one.pause):
            return Course((*tries, stopped_between(tries, stops, job.plan.topology.node_rank)))


def _decide(job: Job, tries: tuple[Try, ...], stops: Stops, hold: Hold) -> Decision:
    if stops.came or hold.lost or tries[-1].outcome.good:
        return Decision(None)
    if job.plan.topology.process:
        return Decision(None, "with one launcher per process nobody starts all of them again")
    return decide(tries, restart_limit(job))


def again(run: Run, pause: float, tries: tuple[Try, ...]) -> Run:
    """Say what happened and what follows, and return the next attempt's run.

    Without a snapshot of its own, a run that began from another one does so again.
    """
    step = newest_step(run.path)
    resume = run.resume if step is None and run.resume != "none" else "auto"
    for line in block(judge([tries[-1].outcome]))[:2]:
        say(line)
    start = f" from the snapshot of step {step}" if step is not None else ""
    say(f"starting again in {pause:.0f} s{start}: attempt {run.attempt + 1}")
    return dataclasses.replace(run, attempt=run.attempt + 1, resume=resume)


def with_free_port(job: Job) -> Job:
    """The job with another port for torchrun's store where any will do: somebody may have taken the first meanwhile."""
    topology = job.plan.topology
    if topology.values["MASTER_PORT"].source != FREE_PORT:
        return job
    port = free_port(0)
    topology = dataclasses.replace(topology, master_port=port, store_port=port)
    plan = make_plan(topology, job.plan.workload, job.plan.arguments, job.sources)
    return dataclasses.replace(job, plan=plan)


def give_up(tries: tuple[Try, ...]) -> Try:
    """The last attempt, when it is one too many without progress."""
    last = tries[-1]
    step = "no snapshot at all" if last.after is None else f"no snapshot after step {last.after}"
    outcome = dataclasses.replace(
        last.outcome,
        word="no-progress",
        evidence=f"{STUCK} attempts left {step}; the last failed: {last.outcome.evidence or last.outcome.word}",
        advice=f"mend the cause, or save more often (--save-every); {last.outcome.advice}".removesuffix("; "),
    )
    return dataclasses.replace(last, outcome=outcome)


def stopped_between(tries: tuple[Try, ...], stops: Stops, node_rank: int) -> Try:
    """What a stop between two attempts makes of the job: nothing ran, and the newest snapshot stands."""
    last, name = tries[-1], stops.came[0].name
    evidence = f"{name} came before attempt {last.number + 1}; attempt {last.number} ended at {place(last.outcome)}"
    outcome = Outcome(node_rank, socket.gethostname(), stops.word, time.time(), evidence=evidence)
    return Try(last.number, outcome, last.after, last.after, last.moved)
