"""What ends the workers of this node before they are through: a stop is passed on to those that it is meant for, and after the
grace all that the launcher started is killed.
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slipway.launch.attempt.child import Child
from slipway.launch.attempt.ending import StopSeen, is_cause_known
from slipway.launch.attempt.stops import AFTER_FAILURE, AFTER_FAILURE_OF_SCRIPT, Deadline, Stop, Stops, raise_flag
from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.run import Run
from slipway.process.machine import Machine
from slipway.protocol.files import HONOURS_STOP, SNAPSHOTS


@dataclass(frozen=True)
class Limits:
    """Seconds. `grace`: from a stop to the end; `hang`: of a phase `train` without a step, 0 for any time, and `start` of those
    before it, None for the same; `after_failure`: from one rank's failure to the end of the others, None as they need it.
    """

    grace: float
    hang: float = 0.0
    start: float | None = None
    after_failure: float | None = None


class StopHandler:
    """One attempt's stop, and by when its processes must have ended. Slipway's workloads get the stop flag, a user's script gets
    the signal itself, unless it asked for the flag.
    """

    def __init__(
        self, plan: Plan, run: Run, stops: Stops, limits: Limits, say: Callable[[str], None], machine: Machine
    ):
        """`say` prints a line."""
        self._builtin, self._ranks, self._run = plan.workload.builtin, plan.topology.ranks, run
        self._node, self._stops, self._limits = run.node(plan.topology.node_rank), stops, limits
        self._say, self._machine = say, machine
        self.deadline, self.seen = Deadline(limits.grace), StopSeen()
        self._told: Stop | None = None
        self._signalled: set[int] = set()

    def poll(self, workers: Sequence[int], has_begun: Callable[[], bool]) -> None:
        """Pass a stop on. A later one asks for haste: a script gets it, too, and ours are stopping already. `has_begun` returns
        whether a step was taken."""
        stop, now = self._stops.later or self._stops.first, self._machine.clock.monotonic()
        if stop is None:
            return
        self.deadline.leave_by(self._stops.by)
        if stop != self._told:
            is_first, self._told, self._signalled = self._told is None, stop, set()
            if is_first:
                short = self._stops.by < now + self._limits.grace
                self.seen = StopSeen(self._stops.word, stop.name, notice=stop.notice, short=short)
                said = f"stopping{self._begin(now, has_begun)}"
            else:
                said = f"stopping already, at most {self.deadline.left(now):.0f} s are left"
            disk = raise_flag(self._node.path, stop)
            self._say(f"{stop.name} received: {said}")  # the workers can see the flag by now
            if is_first:
                self._warn(now)
            self.seen = replace(self.seen, numbers=(*self.seen.numbers, stop.number), disk=disk or self.seen.disk)
            if disk:
                self.deadline.give_up(now)
        self.signal(workers, stop.number)

    def _begin(self, now: float, has_begun: Callable[[], bool]) -> str:
        """Start the grace, or end at once what took no step yet: a start takes longer than `docker stop` waits."""
        self.deadline.stop(now)
        left = f"at most {self.deadline.left(now):.0f} s"
        if not self._builtin:
            return f", the script has {left} to end"
        if has_begun():
            return f", {left} for the snapshot"
        self.deadline.nothing_to_save(now)
        return " at once, since no step was taken yet and there is nothing to save"

    def _warn(self, now: float) -> None:
        """Before a save for which there may be too little time, say so, and what is left of the job then."""
        took, left = self._run.save_seconds, self.deadline.left(now)
        if self._builtin and not self.deadline.empty and took > left:
            self._say(
                f"warning: the last snapshot took {took:.0f} s to be written, and {left:.0f} s are left. If this one is not "
                f"complete by then, the job resumes from step {self._run.newest_step}. To lose fewer steps, save more often: "
                "--save-every"
            )

    @property
    def _handles_signals(self) -> bool:
        """Whether the workers are a user's script that has not asked for the stop flag."""
        return not self._builtin and not os.path.exists(self._node.path / HONOURS_STOP)  # noqa: PTH110  # on NFS Path.exists raises ESTALE

    def signal(self, workers: Sequence[int], number: signal.Signals, *, failed: bool = False) -> None:
        """Signal each worker of a user's script once; one that looks at the stop flag only where another node `failed`."""
        if self._handles_signals or (failed and not self._builtin):
            # A worker that is just being started still ignores the signal, and it would be lost.
            ready = [pid for pid in workers if pid not in self._signalled and not self._machine.ignores(pid, number)]
            self._machine.send_signal(ready, number)
            self._signalled.update(ready)

    def fail(self, child: Child, *, known: bool = False, gone: bool = False) -> None:
        """A rank failed, on this node or another: give the ranks that still run their time to end.

        `gone`: the other node left without a report. `known`: it reported the first cause.
        """
        self.deadline.fail(self._machine.clock.monotonic(), self._time_to_end(child, known=known), gone)

    def _time_to_end(self, child: Child, *, known: bool) -> float:
        """Seconds that the other ranks have. Of ours nothing is needed then but a snapshot that one of them is writing, with its
        folder open all the while, and what they say of the first cause, as long as nobody knows that.
        """
        if self._limits.after_failure is not None:
            return self._limits.after_failure
        if self._handles_signals:
            return AFTER_FAILURE_OF_SCRIPT
        if not self._builtin or not (known or is_cause_known(self._node.outcomes(self._ranks), child.failures)):
            return AFTER_FAILURE
        snapshots = (self._run.path / SNAPSHOTS).resolve()
        return AFTER_FAILURE if any(self._machine.has_open(pid, snapshots) for pid in child.workers) else 0.0
