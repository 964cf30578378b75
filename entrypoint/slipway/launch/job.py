"""One job from plan to exit code: the run directory, the other nodes, the attempt, the verdict."""

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipway import __version__
from slipway.launch.attempt.ending import tell_ending
from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.supervise import Attempt, Elsewhere
from slipway.launch.attempt.worker_output import write_out
from slipway.launch.resolve.caches import make_folders
from slipway.launch.resolve.catalog import Workload
from slipway.launch.resolve.container_checks import fleeting_results, results_folder
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import CHECKPOINTS, Host
from slipway.launch.resolve.plan import Plan
from slipway.launch.resolve.settings import Sources
from slipway.launch.run_directory.plan_file import write_plan
from slipway.launch.run_directory.run import Run, earlier_attempts, is_newest, prepare_run
from slipway.launch.verdict.attempts import Course, Try
from slipway.launch.verdict.block import as_json, block, termination_message
from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.protocol.errors import EXITS, LaunchError, code_of
from slipway.protocol.files import OUTCOME_FILE, newest_step, write_json

IMAGE_USER = 1000  # images/cuda12/Dockerfile
LENGTHS = ("--steps", "--epochs")
TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes' default terminationMessagePath


def say(line: str) -> None:
    """Print a line of the launcher's own."""
    write_out(f"slipway: {line}\n".encode(errors="replace"), sys.stderr.fileno())


@dataclass(frozen=True)
class Job:
    """What a launcher was asked to run and where it stands. `data` hashes the workload's embedded data, if it has any."""

    plan: Plan
    sources: Sources
    devices: Devices
    environ: Mapping[str, str]
    data: Callable[[], str] | None
    host: Host

    def seconds(self, name: str) -> float:
        """A setting that counts seconds."""
        return float(self.sources.value(name))


def run_job(job: Job) -> int:
    """Run the job to its end and return this node's exit code. Raises LaunchError where it cannot start."""
    topology = job.plan.topology
    say(topology.arithmetic)
    for note in topology.notes:
        say(note)
    with Stops() as stops:
        if topology.nodes > 1 and not topology.process:
            from slipway.launch.together import run_together  # the network code, which a single node can do without

            return run_together(job, stops)
        from slipway.launch.alone import run_alone

        return run_alone(job, stops)


def attempt(job: Job, run: Run, stops: Stops, lost: Callable[[], Elsewhere | None]) -> Try:
    """One start of the workload on this node, and how it ended. Raises LaunchError where it cannot start."""
    try:
        make_folders(job.plan.topology.mended)
    except OSError as error:
        raise LaunchError(f"A folder for caches cannot be made: {error}", code_of(error)) from None
    prepare_run(run, job.plan, __version__, time.time())
    if job.plan.topology.process is None or job.plan.topology.process.local_rank == 0:
        with suppress(OSError):  # a disk that is full so far may have room when it counts
            write_plan(run.node(job.plan.topology.node_rank), job.plan, job.sources)
    number = f", attempt {run.attempt}" if run.attempt > 1 else ""
    if job.plan.workload.keeps:
        say(f"{job.plan.workload.name}: run directory {shown(run.path)}{number}")
    before = newest_step(run.path)
    hang = job.seconds("SLIPWAY_HANG_SECONDS")
    under_way = Attempt(job.plan, run, job.seconds("SLIPWAY_GRACE_SECONDS"), hang, say, stops)
    try:
        facts = under_way.supervise(job.plan.environment(job.environ), lost)
    except OSError as error:
        raise LaunchError(f"The workload cannot be started: {error}", code_of(error)) from None
    outcome = tell_ending(facts, under_way.node_dir, time.time())
    return Try(run.attempt, outcome, before, newest_step(run.path), facts.moved)


def not_started(job: Job, run: Run, error: LaunchError) -> Try:
    """The attempt that could not be made."""
    word, host = EXITS[error.code].word, socket.gethostname()
    return Try(run.attempt, Outcome(job.plan.topology.node_rank, host, word, time.time(), evidence=str(error)))


def conclude(verdict: Verdict, job: Job, run: Run | None, course: Course) -> int:
    """Write the verdict down, print it, tell the pod, and return this node's exit code.

    `run` is None where there is none, or where another node writes into the same folder; what a later attempt found stands.
    """
    node_rank = job.plan.topology.node_rank
    if run and is_newest(run.path, course.number):
        earlier = earlier_attempts(run.path, course.tries[0].number)
        with suppress(OSError):
            write_json(run.path / OUTCOME_FILE, as_json(verdict, node_rank, course, earlier))
    if not job.plan.workload.keeps:
        return verdict.code(node_rank)
    for line in block(verdict, course):
        say(line)
    fleeting = fleeting_results(job.host, results_folder(job.sources)) if run else ""
    if run and job.plan.topology.rank == 0 and verdict.word in ("finished", "stopped", "cancelled"):
        say(f"the run lies in {shown(run.path)}")
        leaves = newest_step(run.path) is not None or not job.plan.workload.resumes
        stopped = verdict.word != "finished"
        for command in next_commands(job.plan.workload, bool(fleeting), stopped=stopped) if leaves else ():
            say(f"  next: {typed(filled(command, run, job.plan.arguments), job)}")
    if fleeting:
        say(fleeting)
    tell_pod(verdict.code(node_rank), block(verdict)[0], verdict)
    return verdict.code(node_rank)


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


def filled(command: str, run: Run, arguments: Sequence[str]) -> str:
    """A command to try next, with {run}, the run's arguments as {same}, and as {longer} for twice as many steps.

    A run goes on with the arguments that it was started with; without them it would be another model, or other data.
    """
    left_out = (*LENGTHS, "--export")  # where it exported to nothing is overwritten
    kept, words = [], list(arguments)
    while words:
        word = words.pop(0)
        if word in left_out:
            words[:1] = []  # its value
        elif word.partition("=")[0] not in left_out:
            kept.append(word)
    longer = [*kept, "--steps", str(2 * (newest_step(run.path) or 0))]
    same, twice = (f" {shlex.join(words)}" if words else "" for words in (arguments, longer))
    return command.format(run=shlex.quote(shown(run.path)), same=same, longer=twice)


def typed(command: str, job: Job) -> str:
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


def shown(path: Path) -> str:
    """A path as one would type it here."""
    with suppress(FileNotFoundError, ValueError):  # the working directory is gone, or the path lies elsewhere
        return str(path.relative_to(Path.cwd()))
    return str(path)
