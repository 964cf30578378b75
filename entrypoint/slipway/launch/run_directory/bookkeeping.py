"""The ledger of a job while its launcher runs: how far its workers are, what the time goes into, and the file that keeps both, so
that the next launcher continues where one was killed, and others can read it.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.node_directory import Beat, XidCount
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.ledger import NOTHING, Kind, Ledger, Seen, book_attempt, ledger_json
from slipway.launch.verdict.verdict import Outcome
from slipway.process.machine import CLOCK, Clock
from slipway.protocol.files import LEDGER_FILE, STEPS, write_json
from slipway.protocol.outcomes import Word


class Milestones:
    """How far the workers of this node came in one attempt, and when. Pure: what was seen and the clock come in.

    Moments are monotonic seconds: its beginning, when its workers ran, when its end was noticed. `xids`: how many Xid errors
    came, by GPU and number.
    """

    def __init__(self, now: float, before: int) -> None:
        """`before`: the highest step of all attempts before this one."""
        self.begun, self.before, self.reached = now, before, 0
        self.xids: Mapping[tuple[int | None, int], int] = {}
        self.started: float | None = None
        self.noticed: float | None = None
        self._new: tuple[float, float] | None = None  # when the first and the newest step beyond those before were seen
        self._moved = now  # when something moved last, of a script
        self._beat: Beat | None = None  # the newest of the first rank

    def poll(self, now: float, *, started: bool, ending: bool, still: float = 0.0) -> None:
        """Take what there is to see: whether the workers run, whether they are to end, and for how long nothing moved."""
        if started and self.started is None:
            self.started = now
        if not (ending or self.noticed):
            self._moved = max(self._moved, now - still)
        elif self.noticed is None:
            self.noticed = now

    def take(self, beats: Mapping[int, Beat], now: float) -> None:
        """Take the newest beats of the ranks."""
        step = min(max((beat.step for beat in beats.values()), default=0), STEPS)
        if step > max(self.before, self.reached):
            self._new = (self._new[0] if self._new else now, now)
        self.reached = max(self.reached, step)
        self._beat = beats[min(beats)] if beats else self._beat

    @property
    def spoke(self) -> bool:
        """Whether a rank has said what it does, which it first does once torch is imported."""
        return self._beat is not None

    @property
    def trained(self) -> float:
        """Seconds of training beyond the highest step of all attempts before. Standing still there is not training."""
        return self._new[1] - self._new[0] if self._new else 0.0

    @property
    def ran(self) -> float:
        """Seconds that a script ran until it stood still, or its end was noticed."""
        return max(0.0, self._moved - self.started) if self.started is not None else 0.0

    def seen(self, now: float, *, builtin: bool) -> Seen:
        """What the ledger needs of it by now; `builtin`: it is a workload of ours, whose ranks report what they do."""
        seen = Seen(self.begun, now, builtin, self.started, self.noticed)
        if not (builtin and self._beat):
            return seen
        said = replace(seen, spoke=self._beat.monotonic, spent=self._beat.spent, first=self._beat.first)
        said = replace(said, again=self._beat.again, waited=self._beat.waited)
        return replace(said, reached=self.reached, before=self.before)


EVERY = 10.0  # s between two times that it is written down while an attempt runs


class Books:
    """The ledger, and up to which moment it is kept. What passes is booked at once, and written every few seconds.

    Only the launcher that represents its node writes it.
    """

    def __init__(self, ledger: Ledger, plan: Plan, clock: Clock = CLOCK) -> None:
        """Continue a `ledger`, from the start of this process."""
        self._clock = clock
        process = plan.topology.process
        self.ledger, self._builtin, self._node_rank = ledger, plan.workload.builtin, plan.topology.node_rank
        self._writes = process is None or process.local_rank == 0
        self._kept, self._written = clock.monotonic() - clock.age(), 0.0
        self._milestones: Milestones | None = None
        self._run: Run | None = None
        self._failures: list[dict[str, Any]] = []
        self._xids = Counter[tuple[int | None, int]]()  # of the attempts before
        self.book(Kind.RESTARTING if ledger.attempts else Kind.STARTING)

    def book(self, kind: Kind) -> None:
        """What passed since the last booking was of this kind."""
        now = self._clock.monotonic()
        self.ledger = dataclasses.replace(self.ledger.book({kind: now - self._kept}), until=self._clock.time())
        self._kept = now

    def meet(self, run: Run, ledger: Ledger, *, again: bool) -> None:
        """All nodes are here, and an attempt on this run begins, `again` after others. The ledger is the one to go on with: this
        launcher's, or that of launchers that were there before it.
        """
        kind = Kind.REJOINING if again else Kind.WAITING
        if ledger == self.ledger:
            self.book(kind)
        else:
            self.ledger, self._kept = go_on(ledger, kind, self._clock.time()), self._clock.monotonic()
        node = run.node(self._node_rank)
        self._failures = self._failures or node.failures()
        self._xids = self._xids or Counter({(row.gpu, row.number): row.total for row in node.xids()})
        self._run, self._milestones = run, None

    def poll(self, milestones: Milestones) -> None:
        """An attempt continues."""
        self._milestones = milestones
        if self._clock.monotonic() - self._written >= EVERY:
            self._write(self._with_attempt(good=False))

    def end_attempt(self, outcome: Outcome) -> None:
        """An attempt is over, and this is the first cause."""
        self.ledger, self._kept = self._with_attempt(good=outcome.good), self._clock.monotonic()
        if self._run and not outcome.good:
            told = {name: getattr(outcome, name) for name in ("time", "node_rank", "host", "rank", "word", "evidence")}
            self._failures.append({"attempt": self._run.attempt, **told})
        self._write(self.ledger)
        self._xids += Counter(self._milestones.xids if self._milestones else ())

    def _with_attempt(self, *, good: bool) -> Ledger:
        """The ledger with the attempt as far as it got."""
        now = self._clock.monotonic()
        seen = self._milestones.seen(now, builtin=self._builtin) if self._milestones else Seen(self._kept, now)
        parts = book_attempt(
            dataclasses.replace(seen, begun=self._kept, ended=now), good=good, again=self.ledger.attempts > 0
        )
        ledger = self.ledger.book(parts).wait_for(seen.waited)
        return dataclasses.replace(ledger, attempts=ledger.attempts + 1, until=self._clock.time())

    def _write(self, ledger: Ledger) -> None:
        self._written = self._clock.monotonic()
        if self._run and self._writes and self._run.is_newest(self._run.attempt):
            node = self._run.node(self._node_rank)
            xids = self._xids + Counter(self._milestones.xids if self._milestones else ())
            write_ledger(node.path, ledger, self._failures, xids)


def go_on(ledger: Ledger, kind: Kind, now: float) -> Ledger:
    """A ledger that another launcher wrote, with what has passed since, up to `now` (Unix seconds), booked as this `kind`."""
    return ledger.book({kind: now - ledger.until})


KEPT = 100  # failures


def write_ledger(
    node_dir: Path,
    ledger: Ledger,
    failures: Sequence[Mapping[str, Any]] = (),
    xids: Mapping[tuple[int | None, int], int] = MappingProxyType({}),
) -> None:
    """Keep a node's ledger, with what failed and the Xid errors of its GPUs. A disk that is full or away does not end a job that
    runs.
    """
    rows = [XidCount(*key, total)._asdict() for key, total in xids.items()]
    errors = {"xids": rows} if rows else {}
    with suppress(OSError):
        write_json(node_dir / LEDGER_FILE, {**ledger_json(ledger), **errors, "failures": list(failures)[-KEPT:]})


def earlier_ledger(run: RunDirectory, node_rank: int, clock: Clock = CLOCK) -> Ledger:
    """What the launchers before this one booked in a run, and the time between them and this one; nothing in a new run.

    A run that was finished, or that its user stopped, was in no queue meanwhile.
    """
    found = run.ledger(node_rank) or NOTHING
    wanted = run.outcome.word not in (Word.FINISHED, Word.CANCELLED)
    return go_on(found, Kind.QUEUED, clock.time() - clock.age()) if found.until and wanted else found
