"""The seam for what accompanies a job on one node without being a part of it, and the companions of a job as one.

A companion is loaded if its setting is set. SLIPWAY_COMPANIONS names those of others, as module:function. What does not fit stays
in job.py: the books (the job reads its own ledger), notices of the machine's end (a source of stops), spare nodes (they change
rank and topology), reports of hangs, standbys, and the memory of snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from slipway.launch.attempt.stops import Stops
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.topology import Topology
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.verdict import Verdict
from slipway.process.machine import CLOCK, Clock
from slipway.protocol.errors import LaunchError

Say = Callable[[str], None]
# By setting: one is loaded unless its setting is empty, 0 or off. The first one has restored a run before the others see it. An
# exception of theirs ends the job, so they catch what is no reason for that. Each launcher has its own companions, also where
# there is one per process (`open_metrics` chooses one of them). What leaves the machine has no secrets (`make_redactor`).
BUILTIN = (
    ("SLIPWAY_STORE", "slipway.launch.companions.copies:Stores"),
    ("SLIPWAY_METRICS_PORT", "slipway.launch.companions.metrics:open_metrics"),
    ("SLIPWAY_NOTIFY", "slipway.launch.companions.notices:open_notices"),
)
OTHERS = "SLIPWAY_COMPANIONS"
SLOWEST = 1.0  # s that a call of another's companion may take: stops and hangs are noticed between two


class WaitError(LaunchError):
    """A reason that ends this launcher, but is no mistake for the others to report: a stop, or a store that does not answer."""


class Companion:
    """What accompanies a job. All calls come from one thread, in this order; those of this class do nothing.

    As a context manager it begins before the first join, and may refuse the job with LaunchError; it ends after outcome.json is
    written, within the grace period.
    """

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """End."""

    def restore(self) -> None:
        """Before the run is chosen: fetch what this node lacks of it. Raises LaunchError."""

    def reserve(self, path: Path) -> bool:
        """Return whether a new run may have this folder's name. Raises LaunchError."""
        return True

    def finished(self, run: Run) -> None:
        """The run is finished already, so that no attempt begins; `run.attempt` was the last one."""

    def begin(self, run: Run, topology: Topology) -> None:
        """Before each attempt, in which this node has the place of the `topology`."""

    def poll(self, run: Run) -> str:
        """Several times a second in an attempt. Returns why this node must leave the job; empty if it need not."""
        return ""

    def hang(self, run: Run, text: str) -> None:
        """A hang was noticed."""

    def restart(self, run: Run, verdict: Verdict) -> None:
        """An attempt ended, and another follows."""

    def lead(self, *, leads: bool) -> None:
        """From here on this launcher speaks for all nodes, or no longer does."""

    def end(self, run: Run, verdict: Verdict) -> None:
        """Before the verdict is printed, also if no attempt began."""


class Companions(Companion):
    """All companions of a job; none unless made by `of`."""

    def __init__(self, say: Say = print, clock: Clock = CLOCK) -> None:
        """`say` gets a line for each that is dropped."""
        self._say, self._clock, self._stack = say, clock, ExitStack()
        self._all: dict[str, Any] = {}  # by place
        self._others: set[str] = set()  # those that are not ours
        self.left = ""  # why this node must leave the job, as of the last poll; empty if it need not

    @classmethod
    def of(cls, job: Job, stops: Stops, say: Say) -> Self:
        """Return those that the job's settings ask for. Raises LaunchError (78) if one cannot be loaded, or refuses."""
        made = cls(say)
        if job.plan.workload.keeps:
            wanted = [place for name, place in BUILTIN if job.sources.parsed(name)]
            made._all = {place: load(place)(job, stops, say) for place in wanted}
            made._others = {place.strip() for place in job.sources.value(OTHERS).split(",") if place.strip()}
            made._all |= {place: load(place)(job, stops, say) for place in sorted(made._others)}
        return made

    def __enter__(self) -> Self:
        """Begin all, and end those that have begun if one refuses."""
        with ExitStack() as begun:
            for place in [*self._all]:
                self._call(place, "__enter__")
                begun.callback(self._call, place, "__exit__", None, None, None)
            self._stack = begun.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """End all."""
        self._stack.close()

    def restore(self) -> None:
        """See Companion."""
        self._each("restore")

    def reserve(self, path: Path) -> bool:
        """See Companion."""
        return all(answer is not False for answer in self._each("reserve", path))

    def finished(self, run: Run) -> None:
        """See Companion."""
        self._each("finished", run)

    def begin(self, run: Run, topology: Topology) -> None:
        """See Companion."""
        self._each("begin", run, topology)

    def poll(self, run: Run) -> str:
        """See Companion. A reason stays."""
        self.left = self.left or next(iter(filter(None, self._each("poll", run))), "")
        return self.left

    def hang(self, run: Run, text: str) -> None:
        """See Companion."""
        self._each("hang", run, text)

    def restart(self, run: Run, verdict: Verdict) -> None:
        """See Companion."""
        self._each("restart", run, verdict)

    def lead(self, *, leads: bool) -> None:
        """See Companion."""
        self._each("lead", leads=leads)

    def end(self, run: Run, verdict: Verdict) -> None:
        """See Companion."""
        self._each("end", run, verdict)

    def _each(self, name: str, *args: Any, **more: Any) -> list[Any]:
        return [self._call(place, name, *args, **more) for place in [*self._all]]

    def _call(self, place: str, name: str, *args: Any, **more: Any) -> Any:
        """Call a method of one. Another's that fails or is slow is named, and dropped: the job does not depend on it."""
        if place not in self._all:
            return None
        if place not in self._others:
            return getattr(self._all[place], name)(*args, **more)
        begun, why, answer = self._clock.monotonic(), "", None
        try:
            answer = getattr(self._all[place], name)(*args, **more)
        except LaunchError as error:
            if name == "__enter__":  # it refuses the job
                raise
            why = str(error)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if not why and (took := self._clock.monotonic() - begun) > SLOWEST and name not in ("__enter__", "__exit__"):
            why = f"{name} took {took:.1f} s"
        if why:
            del self._all[place]
            self._say(f"warning: the job continues without the companion {place}: {why}")
        return answer


def load(place: str) -> Any:
    """Return what `module:function` names. Raises LaunchError (78)."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # whatever another's module does
        raise LaunchError(
            f"{OTHERS}: {place} cannot be loaded: {error}. Type module:function; the module's folder has to be in PYTHONPATH."
        ) from None


NONE = Companion()  # of a job that nothing accompanies
