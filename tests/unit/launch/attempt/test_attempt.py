"""An attempt from its start to its end in virtual time: clock, processes and signals are pretended, and nothing is waited for."""

import os
import selectors
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stand_ins import make_devices, make_host, make_sources, plan_for, write_files

from slipway.launch.attempt import attempt as module
from slipway.launch.attempt.ending import Facts
from slipway.launch.attempt.job_wide import JobWide
from slipway.launch.attempt.stop_handler import Limits
from slipway.launch.attempt.stops import STACKS, TICK, Stop, Stops
from slipway.launch.attempt.supervise import Attempt
from slipway.launch.hangs.hang import HangReport
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.restarts import count_failures
from slipway.process.machine import Clock, Machine

GRACE, HANG = 60.0, 90.0  # s
WORKER = 4_000_000  # a process id that Linux does not give: the largest is 2^22
TERM, USR2, KILL = signal.SIGTERM, signal.SIGUSR2, signal.SIGKILL


class World:
    """One worker that works until a signal ends it, and its parent, which ends with it. `signals`: what it got, and when."""

    def __init__(
        self, folder: Path, plan: Plan, *, deaf: frozenset[int] = frozenset(), starts: float = 0.0, ready: float = 0.0
    ) -> None:
        """The worker `starts` so many seconds after its parent, and ignores signals until it is `ready`; some are for `deaf` ears."""
        self.now, self.deaf, self.starts, self.ready, self._plan = 0.0, deaf, starts, starts + ready, plan
        self.run, self.signals, self.said = Run(folder, "none", 1), list[tuple[float, int]](), list[str]()
        self.node = self.run.node(0)
        self.node_dir = self.node.path
        (self.node_dir / "logs").mkdir(parents=True)
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.pid, self.process = os.getpid(), self  # as the parent
        self.returncode: int | None = None
        self.failures, self.left, self.words = list[dict[str, Any]](), dict[int, float](), ""

    @property
    def started(self) -> bool:
        return self.now >= self.starts

    @property
    def workers(self) -> list[int]:
        return [WORKER] if self.started else []

    def poll(self) -> int | None:
        return self.returncode

    def find(self, spared: object = ()) -> list[int]:
        return [WORKER]

    def end(self, spared: object = ()) -> None:
        pass

    def _wait(self, selector: selectors.BaseSelector, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10 * HANG, "it never ends"
        for event in [one for one in self.events if one[0] <= self.now]:
            self.events.remove(event)
            event[1]()
        for key, _ in selector.select(0):
            if key.data:
                key.data()

    def _send(self, pids: list[int], number: int) -> None:
        for _ in pids:
            self.signals.append((self.now, number))
            if number == KILL or (number != USR2 and number not in self.deaf and self.now >= self.ready):
                self.returncode = -number

    def start(self, plan: object, node_dir: object, environ: object, output: Any, *_: object) -> "World":
        output.close_writers()
        return self

    @property
    def machine(self) -> Machine:
        """On which all this happens."""
        return Machine(
            clock=Clock(lambda: 1e9 + self.now, lambda: self.now),
            wait=self._wait,
            adopt_orphans=lambda: None,
            lives=lambda pid: self.returncode is None,
            state_of=lambda pid: "S",
            ignores=lambda pid, number: self.now < self.ready,
            catches=lambda pid, number: number == USR2,
            has_open=lambda pid, folder: False,
            send_signal=self._send,
        )

    def attempt(self, stops: Stops) -> Facts:
        """See it through."""
        job_wide = JobWide(own=self)  # type: ignore[arg-type]
        more: dict[str, Any] = {"job_wide": job_wide, "machine": self.machine, "start": self.start}
        attempt = Attempt(self._plan, self.run, Limits(GRACE, HANG), stops, self.said.append, **more)
        return attempt.supervise({}, lambda: None)


@pytest.fixture
def stops() -> Iterator[Stops]:
    with Stops() as stops:
        yield stops


def script(folder: Path) -> Plan:
    """The plan of a user's script."""
    (folder / "train.py").touch()
    return plan_for((str(folder / "train.py"),))


def stop(world: World, stops: Stops, at: float) -> None:
    """Let SIGTERM come."""
    world.events.append((at, lambda: stops.came.append(Stop(world.now, TERM, "SIGTERM"))))


def test_a_stop_that_comes_while_the_workers_start_ends_a_job_that_has_nothing_to_save(
    tmp_path: Path, stops: Stops
) -> None:
    world = World(tmp_path, plan_for(), starts=30.0)
    stop(world, stops, 5.0)
    facts = world.attempt(stops)
    assert world.signals == [(pytest.approx(5.0, abs=2 * TICK), KILL)]
    assert (facts.started, facts.moved, facts.stop.word) == (False, False, "stopped")
    assert world.said == [
        "SIGTERM received: stopping at once, since no step was taken yet and there is nothing to save"
    ]


def test_a_script_that_is_being_started_gets_the_signal_once_it_no_longer_ignores_it(
    tmp_path: Path, stops: Stops
) -> None:
    world = World(tmp_path, script(tmp_path), starts=10.0, ready=20.0)
    stop(world, stops, 5.0)
    facts = world.attempt(stops)
    assert world.signals == [(pytest.approx(30.0, abs=2 * TICK), TERM)]
    assert (facts.status, facts.stop.killed) == (-TERM, False)


def test_a_worker_that_ignores_sigterm_is_killed_when_the_grace_is_over(tmp_path: Path, stops: Stops) -> None:
    world = World(tmp_path, script(tmp_path), deaf=frozenset({TERM}))
    stop(world, stops, 5.0)
    facts = world.attempt(stops)
    (termed, first), (killed, last) = world.signals
    assert (first, last, facts.stop.killed) == (TERM, KILL, True)
    assert killed - termed == pytest.approx(GRACE, abs=2 * TICK)


def test_ranks_whose_heartbeats_stop_print_their_stacks_and_are_killed(tmp_path: Path, stops: Stops) -> None:
    world = World(tmp_path, plan := plan_for())
    beat = '{"phase": "train", "step": 3, "monotonic": 1.0}'
    beats = {f"heartbeat/rank-{rank}.json": beat.replace("3", str(3 + rank)) for rank in plan.topology.ranks}
    world.events.append((20.0, lambda: write_files(world.node_dir, beats) and None))
    facts = world.attempt(stops)
    (asked, first), (killed, last) = world.signals
    assert (first, last, facts.moved) == (USR2, KILL, True)
    assert asked == pytest.approx(20.0 + HANG, abs=4 * TICK)
    assert STACKS <= killed - asked <= STACKS + 2 * TICK
    assert facts.hang
    assert (facts.hang.rank, facts.hang.text.startswith("behind: rank 0 (step 3, train")) == (0, True)


@pytest.mark.parametrize(
    ("options", "ran", "failures"),
    [({}, 500.0, 3), ({}, 700.0, 0), ({"SLIPWAY_PROGRESS_SECONDS": "400"}, 500.0, 0)],
)
def test_a_script_that_ran_long_enough_is_started_again_as_if_for_the_first_time(
    tmp_path: Path,
    stops: Stops,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    ran: float,
    failures: int,
) -> None:
    """It fails behind two failures without progress, and so many count afterwards."""
    world = World(tmp_path, plan := script(tmp_path), starts=10.0)

    def fail() -> None:
        world.returncode, world.failures = 1, [{"rank": 0, "exitcode": 3, "time": 1e9 + world.now}]

    world.events.append((10.0 + ran, fail))
    sources = make_sources({}, {"SLIPWAY_WATCH": "0", **options})
    job = Job(plan, sources, make_devices(), {}, None, make_host())
    monkeypatch.setattr(module, "Attempt", partial(Attempt, machine=world.machine, start=world.start))
    report = HangReport(world.node_dir, HANG, world.said.append, end=False)
    tried = module.attempt(job, world.run, stops, lambda: None, report, JobWide(own=world))  # type: ignore[arg-type]
    assert tried.gained == pytest.approx(ran, abs=2 * TICK)
    assert count_failures(tried, 2) == failures
