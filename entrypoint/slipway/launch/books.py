"""The ledger of a job while its launcher runs: what passes is booked as it does, and written down every few seconds."""

import dataclasses
from pathlib import Path
from typing import Any

from slipway.launch.attempt.milestones import Milestones
from slipway.launch.clock import CLOCK, Clock
from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.ledger_file import go_on, last_ledger, read_failures, write_ledger
from slipway.launch.run_directory.run import Run, is_newest, last_outcome
from slipway.launch.verdict.ledger import NOTHING, Kind, Ledger, Seen, book_attempt
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.outcomes import Word

EVERY = 10.0  # s between two times that it is written down while an attempt runs


def earlier_ledger(run: Path, node_rank: int, clock: Clock = CLOCK) -> Ledger:
    """What the launchers before this one booked in a run, and the time between them and this one; nothing in a new run.

    A run that was finished, or that its user stopped, was in no queue meanwhile.
    """
    found = last_ledger(run, node_rank) or NOTHING
    wanted = last_outcome(run).get("word") not in (Word.FINISHED, Word.CANCELLED)
    return go_on(found, Kind.QUEUED, clock.time() - clock.age()) if found.until and wanted else found


class Books:
    """The ledger, and up to which moment it is kept. It is written where this launcher speaks for its node."""

    def __init__(self, ledger: Ledger, plan: Plan, clock: Clock = CLOCK) -> None:
        """Go on with a `ledger`, from the start of this process."""
        self._clock = clock
        process = plan.topology.process
        self.ledger, self._own, self._node_rank = ledger, plan.workload.own, plan.topology.node_rank
        self._writes = process is None or process.local_rank == 0
        self._kept, self._written = clock.monotonic() - clock.age(), 0.0
        self._milestones: Milestones | None = None
        self._run: Run | None = None
        self._failures: list[dict[str, Any]] = []
        self.book(Kind.RESTARTING if ledger.attempts else Kind.STARTING)

    def book(self, kind: Kind) -> None:
        """What passed since the last booking was of this kind."""
        now = self._clock.monotonic()
        self.ledger = dataclasses.replace(self.ledger.book({kind: now - self._kept}), until=self._clock.time())
        self._kept = now

    def meet(self, run: Run, ledger: Ledger, *, again: bool) -> None:
        """All nodes are here, and an attempt on this run begins, `again` after others. The ledger is the one to go on with: this
        launcher's, or that of those who were there before it.
        """
        kind = Kind.REJOINING if again else Kind.WAITING
        if ledger == self.ledger:
            self.book(kind)
        else:
            self.ledger, self._kept = go_on(ledger, kind, self._clock.time()), self._clock.monotonic()
        self._failures = self._failures or read_failures(run.node(self._node_rank))
        self._run, self._milestones = run, None

    def look(self, milestones: Milestones) -> None:
        """An attempt goes on."""
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

    def _with_attempt(self, *, good: bool) -> Ledger:
        """The ledger with the attempt as far as it got."""
        now = self._clock.monotonic()
        seen = self._milestones.seen(now, own=self._own) if self._milestones else Seen(self._kept, now)
        parts = book_attempt(
            dataclasses.replace(seen, begun=self._kept, ended=now), good=good, again=self.ledger.attempts > 0
        )
        ledger = self.ledger.book(parts).wait_for(seen.waited)
        return dataclasses.replace(ledger, attempts=ledger.attempts + 1, until=self._clock.time())

    def _write(self, ledger: Ledger) -> None:
        self._written = self._clock.monotonic()
        if self._run and self._writes and is_newest(self._run.path, self._run.attempt):
            write_ledger(self._run.node(self._node_rank), ledger, self._failures)
