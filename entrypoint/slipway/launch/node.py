"""What a launcher knows of its job between attempts, how it begins, alone or as one of several, and what the launcher of a single
node does where several would have to agree.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.terminal import say
from slipway.launch.companions.companion import NONE, Companion, WaitError
from slipway.launch.hangs.hang import HangReport
from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.resolve.connectivity import free_port
from slipway.launch.resolve.container_checks import require_writable, results_folder
from slipway.launch.resolve.interface_names import absent_interfaces
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import make_plan
from slipway.launch.resolve.topology import SPARE
from slipway.launch.run_directory.bookkeeping import earlier_ledger
from slipway.launch.run_directory.directory import RunDirectory, odd_records
from slipway.launch.run_directory.run import NoNewRunError, Run, choose_run, claim, place_run, release
from slipway.launch.run_directory.run_lock import lock_file, refuse_held
from slipway.launch.verdict.ledger import NOTHING, Ledger
from slipway.launch.verdict.restarts import Ending, Try
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.process.machine import CLOCK, Clock
from slipway.protocol.errors import LaunchError


@dataclass(frozen=True)
class Node:
    """What a launcher knows of its job between attempts: the run as far as it knows it, what was tried, how many attempts it
    `missed`, how many `failures` in a row were without progress, the highest step ever `reached`, why nothing can begin here
    (`problem`), or no new run (`occupied`), what was booked so far, the `place` in the last attempt, and the
    node rank of its `leader`.
    """

    run: Run
    tries: tuple[Try, ...] = ()
    missed: int = 0
    failures: int = 0
    reached: int = 0
    problem: str = ""
    occupied: str = ""
    ledger: Ledger = NOTHING
    place: int = SPARE
    leader: int = 0


def enter_alone(job: Job, stops: Stops, stack: ExitStack, clock: Clock = CLOCK, companions: Companion = NONE) -> Node:
    """The state of a single node's launcher at its start. At the end of the `stack` the folder of a new run is
    removed where nothing was begun in it. What one of the `companions` has newer of the run is fetched before.

    Raises LaunchError where its run cannot begin here, AlreadyFinishedError where there is nothing left to do.
    """
    require_place(job)
    companions.restore()
    name_odd_runs(job)
    try:
        run = choose_run(job.plan, job.sources, clock.time(), take=partial(hold, stack, companions))
        name_own_run(job, run)
        return Node(run, reached=run.highest_step, ledger=earlier_ledger(run, job.plan.topology.node_rank))
    except LaunchError:
        refuse_held(lock_file(place_run(job.plan, job.sources, clock.time()), job.plan), stops)
        raise


def enter(job: Job, stack: ExitStack, clock: Clock = CLOCK, companions: Companion = NONE) -> Node:
    """The state of one of several launchers at its start; the others learn of its problems, and do not wait. The
    launcher of node 0 names the run, and the `stack` is as above.
    """
    node = Node(place_run(job.plan, job.sources, clock.time()))
    try:
        require_place(job)
        companions.restore()
        node = Node(place_run(job.plan, job.sources, clock.time()))  # there may be more of it now
        if job.plan.topology.node_rank == 0:
            name_odd_runs(job)
            take = partial(hold, stack, companions)
            run = choose_run(job.plan, job.sources, clock.time(), finished_is_fine=True, take=take)
            name_own_run(job, run)
            return dataclasses.replace(node, run=run, reached=run.highest_step, ledger=earlier_ledger(run, 0, clock))
    except NoNewRunError as error:
        return dataclasses.replace(node, occupied=str(error))
    except WaitError:
        raise
    except LaunchError as error:
        return dataclasses.replace(node, problem=str(error))
    return node


def require_place(job: Job) -> None:
    """Raise LaunchError (78) where results cannot be written here, or the network interface to use is not here."""
    require_writable(job.host, results_folder(job.sources))
    if absent := absent_interfaces(job):
        raise LaunchError(absent)


def hold(stack: ExitStack, companions: Companion, path: Path) -> bool:
    """Claim the folder of a new run until the end of the `stack`, and for good once anything is in it. Raises LaunchError."""
    if not claim(path):
        return False
    stack.callback(release, path)
    return companions.reserve(path)


def name_own_run(job: Job, run: Run) -> None:
    """Say that a container which was started again continues its own run: nobody asked for that."""
    topology = job.plan.topology
    if (
        run.of_this_job
        and topology.container
        and not topology.may_have_begun
        and job.sources.claim("SLIPWAY_RESUME").value != "auto"
    ):
        step = run.newest_step
        start = "begins it once more, since it has no snapshot" if step is None else f"continues it from step {step}"
        say(
            f"this container was started again, and {run.path} is its run: it {start}. A new container begins a new run"
        )


def name_odd_runs(job: Job) -> None:
    """With `--resume auto`, name the runs that are skipped in the search for the newest, or a given run of another workload."""
    if job.sources.value("SLIPWAY_RESUME") != "auto":
        return
    if named := job.sources.value("SLIPWAY_RUN_DIR"):
        known, name = RunDirectory(Path(named)).record.workload, job.plan.workload.name
        if known not in ("", name):
            say(f"warning: {named} is a run of {known}, and --resume auto continues it with {name}")
    elif not job.plan.topology.job:
        for line in odd_records(Path(job.sources.value("SLIPWAY_RUNS"))):
            say(line)


class SingleNode:
    """What SeveralNodes is for a launcher that has no others."""

    news: Outcome | None = None
    spares: Sequence[tuple[int, str]] = ()

    def join(self, job: Job, node: Node, stopped: Callable[[], bool]) -> tuple[Job, Node] | None:
        """The job and the node as the next attempt begins; None where a stop came between two of them."""
        if not node.tries:
            return job, node
        if stopped():
            return None
        run = node.run
        run = dataclasses.replace(run, attempt=run.attempt + 1, resume=run.resumes_again(run.newest_step))
        return with_free_port(job), dataclasses.replace(node, run=run)

    def has_enough(self) -> bool:
        """Whether another attempt can begin without a node that is lost."""
        return False

    def compare(self, dumps: Sequence[StackDump] | None) -> Sequence[StackDump] | None:
        """Where all ranks are, once none moves: those of this node are all."""
        return dumps

    def report(
        self,
        outcome: Outcome,
        rule: Callable[[Verdict, tuple[int, ...]], Ending],
        stopped: Callable[[], bool],
        hangs: HangReport | None = None,
    ) -> Ending:
        """The verdict on an attempt, and what follows by the `rule`; no other node can hang."""
        return rule(judge((outcome,)), ())


def with_free_port(job: Job) -> Job:
    """The job with another port for torchrun's store where any will do: another process may have taken the first meanwhile."""
    topology = job.plan.topology
    if not topology.has_free_port:
        return job
    port = free_port(0)
    topology = topology._replace(master_port=port, store_port=port)
    plan = make_plan(topology, job.plan.workload, job.plan.arguments, job.sources)
    return job._replace(plan=plan)
