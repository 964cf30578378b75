"""The end of a job on this node: its verdict is written down and printed, and the pod is told."""

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipway.launch.attempt.worker_output import say, short_path
from slipway.launch.resolve.catalog import Workload
from slipway.launch.resolve.container_checks import fleeting_results, results_folder
from slipway.launch.resolve.host import CHECKPOINTS
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import Run, earlier_attempts, is_newest
from slipway.launch.verdict.attempts import Course
from slipway.launch.verdict.block import block, outcome_json, termination_message
from slipway.launch.verdict.ledger import ledger_line
from slipway.launch.verdict.verdict import Verdict
from slipway.protocol.files import OUTCOME_FILE, newest_step, write_json
from slipway.protocol.outcomes import Word

IMAGE_USER = 1000  # images/cuda12/Dockerfile
NOT_AGAIN = ("--steps", "--epochs", "--export")  # how long it was; where it exported to nothing is overwritten
TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes' default terminationMessagePath


def conclude(verdict: Verdict, job: Job, run: Run | None, course: Course) -> int:
    """Write the verdict down, print it, tell the pod, and return this node's exit code.

    `run` is None where there is none, or where another node writes into the same folder; what a later attempt found stands.
    """
    node_rank = job.plan.topology.node_rank
    if run and is_newest(run.path, course.number):
        with suppress(OSError):
            earlier = earlier_attempts(run.path, course.tries[0].number)
            write_json(run.path / OUTCOME_FILE, outcome_json(verdict, node_rank, course, earlier))
    if not job.plan.workload.keeps:
        return verdict.code(node_rank)
    process = job.plan.topology.process
    if run and job.plan.topology.rank == 0 and (line := ledger_line(course.ledger)):
        say(line)
    for line in block(verdict, course, process.rank if process else None):
        say(line)
    with suppress(OSError):  # a disk that is away by now makes no bad end of a good one
        say_results(verdict, job, run)
    tell_pod(verdict.code(node_rank), block(verdict)[0], verdict)
    return verdict.code(node_rank)


def say_results(verdict: Verdict, job: Job, run: Run | None) -> None:
    """Say where the results of `run` lie, what to type next, and whether they outlive the container. Raises OSError."""
    fleeting = fleeting_results(job.host, results_folder(job.sources)) if run else ""
    if run and job.plan.topology.rank == 0 and verdict.word in (Word.FINISHED, Word.STOPPED, Word.CANCELLED):
        say(f"results are in {short_path(run.path)}")
        leaves = newest_step(run.path) is not None or not job.plan.workload.resumes
        stopped = verdict.word != Word.FINISHED
        for command in next_commands(job.plan.workload, bool(fleeting), stopped=stopped) if leaves else ():
            say(f"  next: {as_typed_here(fill_in(command, run, job.plan.arguments), job)}")
    if fleeting:
        say(fleeting)


def next_commands(workload: Workload, fleeting: bool, *, stopped: bool = False) -> tuple[str, ...]:
    """Three commands to try after a run of `workload`, none of which needs the run where that is about to vanish.

    The first one after a run that was stopped goes on with it.
    """
    if not workload.next:
        return ()
    if fleeting:
        others = [command for command in workload.next if "{run}" not in command]
        return (f"slipway {workload.name}", *others, "slipway --help")[:3]
    if not stopped or not workload.resumes:
        return workload.next
    others = [command for command in workload.next if "--resume" not in command]
    return (f"slipway {workload.name} --run-dir {{run}} --resume auto{{same}}", *others)[:3]


def fill_in(command: str, run: Run, arguments: Sequence[str]) -> str:
    """A command to try next, with {run}, the run's arguments as {same}, and as {longer} for twice as many steps.

    A run goes on with the arguments that it was started with; without them it would be another model, or other data.
    """
    kept, words = [], list(arguments)
    while words:
        word = words.pop(0)
        if word in NOT_AGAIN:
            words[:1] = []  # its value
        elif word.partition("=")[0] not in NOT_AGAIN:
            kept.append(word)
    longer = [*kept, "--steps", str(2 * (newest_step(run.path) or 0))]
    same, twice = (f" {shlex.join(words)}" if words else "" for words in (arguments, longer))
    return command.format(run=shlex.quote(short_path(run.path)), same=same, longer=twice)


def as_typed_here(command: str, job: Job) -> str:
    """A command as one types it here; what is run in the image is typed outside, with its name where IMAGE tells it."""
    if job.host.image is None or job.host.runtime != "docker":
        return command
    gpus = " --gpus all" if job.plan.topology.device == "cuda" else ""
    user = "" if os.getuid() == IMAGE_USER else f" --user {os.getuid()}:0"
    flags = f'{gpus}{user} --shm-size 1g --stop-timeout 120 -v "$PWD/runs:{CHECKPOINTS}"'
    claim = job.sources.variable("IMAGE")
    image = shlex.quote(claim.value) if claim else "IMAGE"
    return f"docker run --rm{flags} {image} {command.removeprefix('slipway ')}"


def tell_pod(code: int, message: str, verdict: Verdict | None = None) -> None:
    """Write the termination message of a pod, in place: it is a mounted file."""
    with suppress(OSError):
        if TERMINATION_LOG.is_file():
            TERMINATION_LOG.write_bytes(termination_message(code, message, verdict))
