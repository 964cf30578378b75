"""A launcher in the simulation: the product's own code from `enter` to the exit code, with work that only pretends.

What is simulated is what lies around that code: the thread of the rendezvous, signals, the heartbeat of the run
directory's lock, and the training itself.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from virtual_time import Process, Program, is_on_loop

from slipway import __version__
from slipway.launch.attempt.job_wide import JobWide
from slipway.launch.attempt.stops import TICK, Stops
from slipway.launch.attempt.supervise import Elsewhere
from slipway.launch.hangs.hang import HangReport
from slipway.launch.hangs.stack_dump import Call, Group, StackDump
from slipway.launch.interruptions.metadata import SERVICES
from slipway.launch.interruptions.watch import NoticeWatch
from slipway.launch.job import Attempts, JobParts
from slipway.launch.node import enter
from slipway.launch.node_rank import claim_rank
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.connection_errors import RankTakenError
from slipway.launch.rendezvous.messages import AttemptStart, NodeInfo
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.rdzv import Rdzv
from slipway.launch.resolve.spot import Watched
from slipway.launch.run_directory.bookkeeping import Milestones
from slipway.launch.run_directory.node_directory import Beat
from slipway.launch.run_directory.run import Run, prepare_run
from slipway.launch.run_directory.run_lock import RunLock
from slipway.launch.several_nodes import SeveralNodes
from slipway.launch.verdict.cause import Cause, CauseKind, said
from slipway.launch.verdict.restarts import Ending, Try
from slipway.launch.verdict.verdict import Outcome
from slipway.process.folder_lock import TOUCH, Holder
from slipway.process.machine import Clock
from slipway.protocol.errors import LaunchError
from slipway.protocol.files import SNAPSHOTS
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.protocol.snapshots import newest_step, snapshot_name

# simulate.py is a process of its own.
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "unit")]

from fake_clouds import CLOUDS
from stand_ins import make_devices, make_host, make_sources, plan_for

if TYPE_CHECKING:
    from world import World

LOOK = 0.5  # seconds between polls of the work
GLANCE = 1.0  # seconds between polls by a launcher that waits for the others
STILL = 20.0  # seconds without a step after which a node says where its ranks stand
WINDOW = 10  # seconds that nodes wait for one that is late, where enough are here
EPOCH = 1_700_000_000.0  # unix seconds at which a simulation begins


NOTHING_MORE = Cause()


@dataclasses.dataclass(frozen=True)
class Order:
    """A job as its user ordered it: `least` of the `nodes` are enough, `shared` is the run directory of all nodes.

    The training takes `steps` of one second each, and is saved every `save_every`. `replaces`: a Kubernetes Job starts
    another launcher in the place of each that ends. So many `spares` may wait beside the nodes.
    """

    name: str
    nodes: int
    least: int
    shared: bool
    token: str
    steps: int
    save_every: int
    restarts: int = 20
    replaces: bool = False
    spares: int = 0
    auto: bool = False  # whether the launchers find out their ranks

    def environ(self, rank: int, folder: Path) -> dict[str, str]:
        """The environment in which the launcher of a node is started."""
        size = str(self.nodes) if self.least == self.nodes else f"{self.least}:{self.nodes}"
        size += f"+{self.spares}" if self.spares else ""
        return {
            "RANK": "auto" if self.auto else str(rank),
            "WORLD_SIZE": size,
            "MASTER_ADDR": self.name,
            "MASTER_PORT": "29500",
            "SLIPWAY_RUNS": str(folder),
            "SLIPWAY_TOKEN": self.token,
            "SLIPWAY_MAX_RESTARTS": str(self.restarts),
            "SLIPWAY_RENDEZVOUS_TIMEOUT": "600",
            "SLIPWAY_HEARTBEAT_TIMEOUT": "12",
            "SLIPWAY_ELASTIC_WINDOW": str(WINDOW),
            "SLIPWAY_GRACE_SECONDS": "20",
            "SLIPWAY_ON_HANG": "end",
            **({"JOB_COMPLETION_INDEX": str(rank)} if self.replaces else {}),
        }


class Launcher:
    """The launcher of one node, from its start to its exit code. `slot` is the number with which it was started, and its rank unless
    it finds out another one; its rank is below 0 until then.
    """

    def __init__(self, world: World, order: Order, slot: int, address: str, disk: Path) -> None:
        self.world, self.order, self.slot, self.address, self.disk = world, order, slot, address, disk
        self.rank = -1 - slot if order.auto else slot
        self.number = self.turn = len(world.launchers)  # who has a rank in turn, as its folder's owners come
        self.process = Process(f"{order.name}/{slot}#{self.number}", address)
        self.dice = random.Random(world.seed * 1_000_003 + 7 * self.number)
        self.code: int | None = None
        self.replaced = False  # whether another launcher was started in its place
        self.crash = self.hang = False  # what its workers are about to do
        self.team: Team | None = None  # the workers that its own train with, while they run
        self.started = world.loop.time()
        self.stops = SimulatedStops(self)
        self.rendezvous: SimulatedRendezvous
        self.clock = Clock(
            time=self.wall, monotonic=world.loop.time, age=lambda: min(2.0, world.loop.time() - self.started)
        )
        self.process.at_death(lambda: world.network.end_process(self.process))
        self.program = Program(world.loop, self.process, self._run, world.console)

    @property
    def leads(self) -> bool:
        """Whether it leads the others, or is about to."""
        return hasattr(self, "rendezvous") and self.rendezvous.leads

    def wall(self) -> float:
        """Its wall clock, in unix seconds."""
        return EPOCH + self.world.loop.time() + self.world.network.machine(self.address).ahead

    def hear(self, name: str, left: float, late: float) -> None:
        """Have its watch find a notice of a cloud, which said `late` seconds ago that its machine goes away in so many seconds."""
        now = EPOCH + self.world.loop.time()
        cloud = CLOUDS[name](now=now, due=now - late, left=left)
        service = SERVICES[name](cloud.fetch)
        watch = NoticeWatch(Watched(name, "a simulation"), self.stops.announce, self._say, lambda: service, self.clock)
        watch.poll(service)

    @property
    def done(self) -> bool:
        """Whether it has ended, or was killed."""
        return self.code is not None or not self.process.alive

    def _run(self) -> None:
        try:
            self.code = self._launch()
        except LaunchError as error:
            self.world.log(self.process.name, f"error: {error}")
            self.code = error.code
        self.world.rules.ended(self)

    def _launch(self) -> int:
        """What run_job does."""
        environ, rdzv = self.order.environ(self.slot, self.disk), Rdzv(id=self.order.name)
        plan, sources = plan_for(("linear",), environ, rdzv=rdzv), make_sources(environ, rdzv=rdzv)
        job = Job(plan, sources, make_devices(), environ, None, make_host())
        if not self.order.auto:
            return self._take_part(job, None)
        while True:
            placed, listening = claim_rank(job, self.stops, clock=self.clock, adapt=self._adapt, run=self._block)
            self.rank = placed.plan.topology.node_rank
            self.world.rules.placed(self)
            try:
                return self._take_part(placed, listening)
            except RankTakenError as error:
                self._say(str(error))
                self.rank = -1 - self.slot
                self.stops.listen(lambda: None)

    def _block(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = self.world.loop.create_task(work)
        self.program.block(task)
        return task.result()

    def _take_part(self, job: Job, listening: Any) -> int:
        """What run_node does."""
        with ExitStack() as stack:
            nodes = SeveralNodes(
                job, self.stops, listening=listening, clock=self.clock, rendezvous=self._make_rendezvous
            )
            if listening:
                stack.enter_context(nodes)
            node = enter(job, stack, self.clock)
            if not listening:
                stack.enter_context(nodes)
            parts = JobParts(self.clock, self._attempt, self._make_lock, lambda job, spare: None)
            return Attempts(job, node, nodes, self.stops, stack, parts).run()

    def _adapt(self, config: RendezvousConfig) -> RendezvousConfig:
        network, name = self.world.network.seen_from(self.process), self.process.name
        return dataclasses.replace(config, network=network, random=self.dice, process=name, say=self._say)

    def _make_rendezvous(self, config: RendezvousConfig) -> SimulatedRendezvous:
        self.rendezvous = SimulatedRendezvous(self._adapt(config), self)
        return self.rendezvous

    def _say(self, line: str) -> None:
        self.world.log(self.process.name, line)

    def _make_lock(self, file: Path, *arguments: Any, **more: Any) -> RunLock:
        return SimulatedLock(self, file, *arguments, **more)

    def _attempt(
        self,
        job: Job,
        run: Run,
        stops: Stops,
        lost: Callable[[], Elsewhere | None],
        report: HangReport,
        job_wide: JobWide,
    ) -> Try:
        """What attempt.attempt does, with pretended workers."""
        prepare_run(run, job.plan, __version__, self.clock.time())
        return Work(self, job, run, lost, report, job_wide).train()


class Work:
    """One attempt of a launcher: pretended workers, and how it looks after them."""

    def __init__(
        self,
        launcher: Launcher,
        job: Job,
        run: Run,
        lost: Callable[[], Elsewhere | None],
        report: HangReport,
        job_wide: JobWide,
    ) -> None:
        self._launcher, self._job, self._run, self._lost, self._job_wide = launcher, job, run, lost, job_wide
        self._report = report
        self._topology = job.plan.topology
        self._milestones = Milestones(launcher.clock.monotonic(), job_wide.reached)
        self._before = newest_step(run.path)
        self._team = launcher.world.team(self._topology.rendezvous_id, launcher.order, self._topology.nodes)

    def train(self) -> Try:
        """Work until the training ends, here or elsewhere."""
        launcher, team = self._launcher, self._team
        launcher.world.rules.begins(launcher, self._run)
        launcher.team, launcher.hang = team, False
        team.enter(launcher, self._run)
        try:
            outcome = None
            while outcome is None:
                launcher.program.sleep(LOOK)
                launcher.world.rules.writes(launcher, self._run)
                launcher.stops.poll()
                self._poll()
                outcome = self._ended()
        finally:
            team.leave(launcher)
            launcher.team = None
        gained = self._milestones.trained
        after, moved = newest_step(self._run.path), team.moved
        return Try(
            self._run.attempt, outcome, self._before, after, moved, team.step, round(gained, 1), self._job.enough
        )

    def _poll(self) -> None:
        now, team = self._launcher.clock.monotonic(), self._team
        if team.moved:
            self._milestones.take({0: Beat(0, Phase.TRAIN, team.step, monotonic=now)}, now)
        self._milestones.poll(now, started=True, ending=False)
        self._job_wide.look_on(self._milestones)

    def _ended(self) -> Outcome | None:
        """How the training ended on this node, None while it goes on."""
        launcher, team = self._launcher, self._team
        if launcher.crash and team.moved:
            launcher.crash = False
            launcher.world.rules.harmed(launcher, "its workers fail", Word.FAILED)
            outcome = self._outcome(Word.FAILED, said("ValueError: bad"), 0)
            launcher.program.sleep(launcher.dice.uniform(0, 2))
            return outcome
        if elsewhere := self._lost():
            outcome = self._outcome(Word.PEER, Cause(CauseKind.BECAUSE, elsewhere.text))
            launcher.program.sleep(launcher.dice.uniform(0, 2))
            return outcome
        if team.noticed(launcher):
            outcome = self._outcome(Word.PEER, said("Connection closed by peer"), 0)
            launcher.program.sleep(launcher.dice.uniform(0, 1))
            return outcome
        if launcher.stops.came and (team.stop() or not team.whole):
            return self._outcome(launcher.stops.word)
        if team.finished:
            return self._outcome(Word.STOPPED if team.stopping else Word.FINISHED)
        return self._hang()

    def _hang(self) -> Outcome | None:
        """Say where the ranks stand once nothing moves; node 0 judges."""
        launcher, team = self._launcher, self._team
        now = launcher.clock.monotonic()
        if not team.whole or now - team.stepped < STILL:
            return None
        hang = self._report.judge(self._report.compare(team.dumps(launcher, self._topology.ranks)), now)
        if hang is None:
            return None
        launcher.world.rules.hangs(launcher, hang, team)
        return self._report.outcome(hang, launcher.rank, launcher.address)

    def _outcome(self, word: str, cause: Cause = NOTHING_MORE, rank: int | None = None) -> Outcome:
        launcher = self._launcher
        return Outcome(launcher.rank, launcher.address, word, launcher.clock.time(), rank, cause)


class Team:
    """The workers of all nodes in one attempt. They step together or not at all, as those of a data-parallel job do."""

    def __init__(self, world: World, order: Order, size: int) -> None:
        self._world, self.order, self._size = world, order, size
        self.members: dict[int, tuple[Launcher, Run]] = {}
        self.all: list[Launcher] = []  # that ever were members
        self.first = self.step = 0
        self.stepped, self.moved = world.loop.time(), False
        self.finished = self.stopping = self.broken = False
        self._timer = world.loop.call_later(1.0, self._tick)

    @property
    def whole(self) -> bool:
        """Whether all nodes are here, and reach each other."""
        here = [launcher for launcher, _ in self.members.values()]
        passes = self._world.network.passes
        return (
            len(here) == self._size
            and all(one.process.alive and not one.process.frozen for one in here)
            and all(passes(one.address, other.address) for one in here for other in here)
        )

    def enter(self, launcher: Launcher, run: Run) -> None:
        """The workers of a node begin; the last ones load the newest snapshot of all nodes."""
        self.members[launcher.rank] = (launcher, run)
        self.all.append(launcher)
        self.stepped = self._world.loop.time()
        if len(self.members) == self._size:
            found = [newest_step(run.path) or 0 for _, run in self.members.values() if run.resume == "auto"]
            self.first = self.step = max(found, default=0)
            self._world.rules.resumes([(launcher, run) for launcher, run in self.members.values()], self.step)

    def leave(self, launcher: Launcher) -> None:
        """The workers of a node ended."""
        self.members.pop(launcher.rank, None)
        self.broken = self.broken or not self.finished

    def noticed(self, launcher: Launcher) -> bool:
        """Whether the workers of a node see that others ended: the connection to one of them was closed."""
        if not self.broken or launcher.dice.random() < 0.8:
            return False
        ended = [
            one for one in self.all if one is not launcher and one not in [here for here, _ in self.members.values()]
        ]
        network = self._world.network
        return any(network.passes(one.address, launcher.address) for one in ended)

    def stop(self) -> bool:
        """Ask all to stop at the next step, after a save; whether they have."""
        self.stopping = True
        return self.finished

    def dumps(self, launcher: Launcher, ranks: Sequence[int]) -> list[StackDump]:
        """Where the ranks of a node stand: in a collective that those of a node that hangs have not begun."""
        since = launcher.wall() - STILL
        begun = 6 if launcher.hang else 7
        call = Call("world", 7, "all_reduce", "[4]", since, done=False)
        calls = () if launcher.hang else (call,)
        world = ((0, self._size * len(ranks) - 1, 1),)
        return [
            StackDump(rank, launcher.rank, "sleeps", calls=calls, groups=(Group("world", world, begun),))
            for rank in ranks
        ]

    def _tick(self) -> None:
        """A second passes."""
        if self.finished or (self.all and not self.members):
            return
        self._timer = self._world.loop.call_later(1.0, self._tick)
        if not self.whole or any(
            launcher.hang or launcher.crash for launcher, _ in self.members.values() if self.moved
        ):
            return
        self.step, self.stepped, self.moved = self.step + 1, self._world.loop.time(), True
        self._world.rules.steps(self)
        last = self.step >= self.order.steps
        if self.stopping or last or self.step % self.order.save_every == 0:
            for _, run in self.members.values():
                (run.path / SNAPSHOTS / snapshot_name(self.step)).mkdir(parents=True, exist_ok=True)
        self.finished = self.stopping or last


class SimulatedStops(Stops):
    """Requests to stop without signals: `ask` is one. Waiting takes virtual time."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.came = []
        self._file: Path | None = None
        self._seen: tuple[int, ...] = ()
        self._listen: Callable[[], object] = lambda: None

    def wait(self, seconds: float) -> bool:
        """As the product's."""
        until = self._launcher.clock.monotonic() + seconds
        while not self.came and (left := until - self._launcher.clock.monotonic()) > 0:
            self._launcher.program.sleep(min(left, TICK))
            self.poll()
        return bool(self.came)

    def announce(self, name: str, left: float | None) -> None:
        """As the product's, by the virtual clock."""
        super().announce(name, left)
        stop, now = self.came.pop(), self._launcher.clock.monotonic()
        self.came.append(stop._replace(at=now, by=now + round(stop.by - stop.at, 6)))

    def wake(self) -> None:
        """Nobody waits for a socket here: workers look for news by the virtual clock."""


class SimulatedLock(RunLock):
    """The product's lock on a run directory, whose heartbeat comes from the loop instead of a thread."""

    def __init__(self, launcher: Launcher, file: Path, *arguments: Any, **more: Any) -> None:
        super().__init__(file, *arguments, **more)
        self._launcher = launcher

    def _create(self, mine: Holder) -> bool:
        # Another host's, as far as anybody knows: all launchers of a simulation are in one process.
        launcher = self._launcher
        mine = mine._replace(space="", host=launcher.address, pid=launcher.number, since=launcher.wall())
        return super()._create(mine)

    def _start_keeping(self) -> None:
        self._timer = self._launcher.world.loop.call_later(TOUCH, self._keep_on)

    def _keep_on(self) -> None:
        self._touch()
        now = self._launcher.world.loop.time()
        with suppress(OSError):
            os.utime(self._number, (now, now))  # the kernel's own times are too coarse for this
        self._start_keeping()

    def _stop_keeping(self) -> None:
        self._timer.cancel()

    def __exit__(self, *problem: object) -> None:
        """Let go, unless the process was killed: then its file stays."""
        self._stop_keeping()
        if self._launcher.process.alive:
            super().__exit__(*problem)
        else:
            os.close(self._number)


class SimulatedRendezvous(Rendezvous):
    """The product's part of a launcher in the rendezvous, on the virtual loop instead of a thread."""

    def __init__(self, config: RendezvousConfig, launcher: Launcher) -> None:
        super().__init__(config)
        self._launcher = launcher
        self._thread = launcher.process  # type: ignore[assignment]  # it is asked whether it lives

    @property
    def leads(self) -> bool:
        """Whether this launcher leads the others, or is about to."""
        return self._client.leads or self._server.state.membership is not None

    def __enter__(self) -> Self:
        """Listen as the product does, and serve."""
        launcher = self._launcher
        self._listen()
        self._serving = launcher.world.loop.create_task(self._serve())
        while not self._ready.done():
            launcher.program.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections, unless the process was killed."""
        if self._launcher.process.alive:
            self._closing.set()
            self._launcher.program.block(self._serving)

    def join(self, info: NodeInfo, stopped: Callable[[], bool] = lambda: False) -> AttemptStart | None:
        """As the product's; the rules see what was agreed on."""
        start = super().join(info, stopped)
        if start:
            self._launcher.world.rules.goes(self._launcher, info, start)
        return start

    def report(self, outcome: Outcome, rule: Any, *arguments: Any, **more: Any) -> Ending:
        """As the product's; the rules see what node 0 or this launcher made of it."""
        rules, launcher, judged = self._launcher.world.rules, self._launcher, []

        def ruling(verdict: Any, leaving: tuple[int, ...]) -> Ending:
            ending: Ending = rule(verdict, leaving)
            if is_on_loop():  # the coordinator's call
                rules.rules(launcher, ending, dict(self._server.state.outcomes))
            else:
                judged.append(ending)
            return ending

        rules.reports(launcher, outcome)
        ending = super().report(outcome, ruling, *arguments, **more)
        rules.learns(launcher, super().news)
        rules.hears(launcher, ending, alone=bool(judged))
        return ending

    def watch(self, rule: Any, *arguments: Any, **more: Any) -> Ending | None:
        """As the product's; the rules see what this launcher heard, or made of the loss of node 0."""
        alone = []

        def ruling(verdict: Any, leaving: tuple[int, ...]) -> Ending:
            alone.append(verdict)
            return rule(verdict, leaving)  # type: ignore[no-any-return]

        ending = super().watch(ruling, *arguments, **more)
        if ending:
            self._launcher.world.rules.hears(self._launcher, ending, alone=bool(alone))
        return ending

    @property
    def news(self) -> Outcome | None:
        """As the product's; the rules see it."""
        news = super().news
        self._launcher.world.rules.learns(self._launcher, news)
        return news

    def _begin(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._launcher.world.loop.create_task(work)

    def _rest(self, future: Any) -> None:
        loop = self._launcher.world.loop
        done = loop.create_future()
        wake: Callable[[object], None] = lambda _=None: done.done() or done.set_result(None)  # type: ignore[assignment]  # noqa: E731
        future.add_done_callback(wake)
        timer = loop.call_later(GLANCE, wake, None)
        self._launcher.world.rules.learns(self._launcher, super().news)
        self._launcher.program.block(done)
        timer.cancel()
        future.remove_done_callback(wake)
