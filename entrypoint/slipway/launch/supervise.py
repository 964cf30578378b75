"""Start torchrun, pass its output on, hand signals to those they are meant for, and see how it ended.

torchrun runs in a session of its own and ignores the signals that reach everybody (see agent.py). Slipway's workloads
get the stop flag, a user's script gets the signal itself; after the grace everything below us is killed.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from slipway.launch.ending import Facts, count_ooms
from slipway.launch.family import adopt_orphans, descendants, end_all, ignores, send
from slipway.launch.plan import Plan
from slipway.launch.relay import Relay
from slipway.launch.rundir import Run, write_json

STOP_WORDS = {signal.SIGTERM: "stopped", signal.SIGUSR1: "stopped", signal.SIGINT: "cancelled"}
# Children inherit ignored signals. Only coreutils' env (8.31, 2019) sets that between fork and exec without a race.
IGNORING = ("env", f"--ignore-signal={','.join(number.name[3:] for number in STOP_WORDS)}")
SAME_STOP = 5.0  # s; signals this close count as one: a Slurm time limit sends two
AFTER_FAILURE = 5.0  # s that the other workers have after one failed; torchrun alone would give them 30
LAST_OUTPUT = 2.0  # s that we wait for output which a left-over process could still bring
TICK = 0.5  # s between looks at the clock


class Stops:
    """The stop signals that came, for a `with` block. Remembers only; whoever waits is woken through `reader`."""

    def __init__(self) -> None:
        self.came: list[tuple[float, signal.Signals]] = []
        self.reader, self._writer = socket.socketpair()

    def __enter__(self) -> "Stops":
        """Catch them from here on."""
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in STOP_WORDS}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came.append((time.monotonic(), signal.Signals(number)))

    def __exit__(self, *_: object) -> None:
        """Give back the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self.reader.close()
        self._writer.close()

    @property
    def first(self) -> signal.Signals | None:
        """The signal that asked us to stop."""
        return self.came[0][1] if self.came else None

    @property
    def impatient(self) -> bool:
        """Whether somebody pressed Ctrl-C again, later than the same gesture lasts."""
        return any(number == signal.SIGINT and at - self.came[0][0] > SAME_STOP for at, number in self.came)


class Attempt:
    """One attempt on this node, from start to end."""

    def __init__(self, plan: Plan, run: Run, grace: float, say: Callable[[str], None], stops: Stops) -> None:
        self.plan, self.grace, self.say, self.stops = plan, grace, say, stops
        topology = plan.topology
        self.node_dir = run.node(topology.node_rank)
        self.run = run
        first = topology.node_rank * topology.processes_per_node
        self.ranks = (
            [topology.process.rank] if topology.process else list(range(first, first + topology.processes_per_node))
        )
        self.facts = Facts(topology.node_rank, socket.gethostname(), plan.workload.own, tuple(self.ranks))
        self.workers: list[int] = []
        self.selector = selectors.DefaultSelector()
        self.deadline = float("inf")
        self._signalled: set[int] = set()
        self._events = b""

    def supervise(self, environ: dict[str, str], lost: Callable[[], str]) -> Facts:
        """Run the workload to its end and return what was seen. `lost` says which other node failed, if any."""
        ooms = count_ooms()
        adopt_orphans()
        logs = self.node_dir / "logs"
        alone = self.plan.topology.world_size == 1
        relay = Relay(
            self.ranks, self.plan.topology.node_rank, alone, logs, self.selector, lambda: bool(self.stops.came)
        )
        self.selector.register(self.stops.reader, selectors.EVENT_READ, self._drain_wakeups)
        child = self._start(environ, relay, logs)
        ended = os.pidfd_open(child.pid)
        self.selector.register(ended, selectors.EVENT_READ)
        relay.close_writers()
        while child.poll() is None:
            self._wait(TICK)
            self._look_at_stops()
            if not self.facts.lost and (news := lost()):
                self.facts.lost = news
                self._hurry()
            if time.monotonic() > self.deadline or self.stops.impatient:
                self.facts.impatient = self.stops.impatient
                self.facts.killed = bool(self.facts.stop) and not (self.facts.failures or self.facts.lost)
                send(descendants(os.getpid()), signal.SIGKILL)
        self.facts.status = child.returncode
        self.selector.unregister(ended)
        os.close(ended)
        self._finish(relay, logs, ooms)
        return self.facts

    def _start(self, environ: dict[str, str], relay: Relay, logs: Path) -> subprocess.Popen[bytes]:
        environ |= {
            "SLIPWAY_RUN_DIR": str(self.run.path),
            "SLIPWAY_NODE_DIR": str(self.node_dir),
            "SLIPWAY_RESUME": self.run.resume,
            "SLIPWAY_PROGRESS": "bar" if relay.console.terminal else "lines",
        }
        if self.plan.topology.process:
            worker = subprocess.Popen(
                [*IGNORING, *self.plan.argv],
                env=environ,
                stdout=relay.writers[0],
                stderr=relay.writers[1],
                start_new_session=True,
            )
            self.workers = [worker.pid]
            return worker
        events, told = os.pipe()
        os.set_blocking(events, False)
        self.selector.register(events, selectors.EVENT_READ, lambda: self._read_events(events))
        pipes = ",".join(map(str, relay.writers))
        agent = [sys.executable, "-m", "slipway.agent", str(told), pipes, str(self.node_dir / "outcome")]
        with (logs / "torchrun.log").open("ab") as log:
            child = subprocess.Popen(
                [*IGNORING, *agent, *self.plan.argv[1:]],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(told, *relay.writers),
                start_new_session=True,
            )
        os.close(told)
        return child

    def _wait(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            if key.data:
                key.data()

    def _drain_wakeups(self) -> None:
        self.stops.reader.recv(4096)

    def _read_events(self, events: int) -> None:
        chunk = os.read(events, 65_536)
        if not chunk:
            self.selector.unregister(events)
            os.close(events)
            return
        *lines, self._events = (self._events + chunk).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self.facts.started = True
            self.workers = list(event["pids"].values())
        else:
            self.facts.failures = event["failures"]
            self._hurry()

    def _hurry(self) -> None:
        """Give the other workers little time, unless they were asked to stop and may be saving: the grace bounds that."""
        if not self.facts.stop:
            self.deadline = min(self.deadline, time.monotonic() + AFTER_FAILURE)

    def _look_at_stops(self) -> None:
        number = self.stops.first
        if number is None:
            return
        if not self.facts.stop:
            self.facts.stop, self.facts.signal = STOP_WORDS[number], number.name
            self.deadline = min(self.deadline, time.monotonic() + self.grace)
            self.say(f"{number.name} received: stopping, at most {self.grace:.0f} s for the snapshot")
            try:
                write_json(self.node_dir / "stop", {"outcome": self.facts.stop, "signal": number.name})
            except OSError as error:
                self._raise_empty_flag(error)
        if not self.plan.workload.honours_stop and not (self.node_dir / "honours-stop").exists():
            # A worker that is just being started still ignores the signal, and it would be lost.
            ready = [pid for pid in self.workers if pid not in self._signalled and not ignores(pid, number)]
            send(ready, number)
            self._signalled.update(ready)

    def _raise_empty_flag(self, error: OSError) -> None:
        """On a full disk an empty flag often still fits, and means `stopped`; else there is no snapshot to wait for."""
        try:
            (self.node_dir / "stop").touch()
        except OSError:
            self.facts.disk = f"the stop flag cannot be written, so no snapshot can be: {error}"
            self.deadline = time.monotonic()

    def _finish(self, relay: Relay, logs: Path, ooms: int) -> None:
        end_all(os.getpid())  # what outlived its worker: data loaders, a script's own children
        until = time.monotonic() + LAST_OUTPUT
        while relay.open and time.monotonic() < until:
            self._wait(0.1)
        relay.close()
        self.selector.close()
        self.facts.ooms = count_ooms() - ooms
        self.facts.last = relay.last
        if (logs / "torchrun.log").is_file():
            self.facts.agent_log = (logs / "torchrun.log").read_text(errors="replace")[-20_000:]
        if self.plan.topology.process and self.facts.status:
            failure = {"rank": self.ranks[0], "exitcode": self.facts.status, "time": time.time()}
            self.facts.failures = [failure]
