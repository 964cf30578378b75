"""Whether a job that ended is started again, when, and why not. Pure.

Only the first cause and the newest snapshots count. The launcher restarts a job that ended with a word of RETRYABLE. What a
scheduler does after the other exit codes is in EXITS (protocol/errors.py).
"""

import signal
from dataclasses import dataclass
from typing import NamedTuple

from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.ledger import NOTHING, Ledger
from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.protocol.causes import Sign
from slipway.protocol.outcomes import Word

DEFAULT = 3  # restarts of one of our workloads; a user's script may not know how to go on, so it has none
MINUTE = 60.0  # s of training beyond the highest step ever reached that are progress by themselves
# The same beside a newer snapshot: what crashes sooner each time is a crash loop, though it saves. Short enough for a job of
# which something is killed four times a minute.
SPELL = 5.0
# Seconds before the next attempt. What passes by itself (a port, a file server) is over in seconds, what is broken longer
# should not be tried in a hurry; a minute is as long as somebody who watches will wait.
PAUSES = (1.0, 4.0, 16.0, 60.0)
STUCK = 3  # attempts in a row without a new snapshot
RETRYABLE = (Word.FAILED, Word.PEER, Word.LOST)


@dataclass(frozen=True)
class Try:
    """One attempt: how it ended, and the step of the newest snapshot before and after it (None: there was none).

    `moved`: whether it got past its first step; None where nobody can tell, as with a user's script. `reached` is the highest
    step that it did. `gained`: for how many seconds it trained beyond the highest step of all attempts before it, or, of a
    script, for how many it ran; `enough` of them are progress by themselves.
    """

    number: int
    outcome: Outcome
    before: int | None = None
    after: int | None = None
    moved: bool | None = None
    reached: int = 0
    gained: float = 0.0
    enough: float = MINUTE

    @property
    def advanced(self) -> bool:
        """Whether it left a newer snapshot."""
        return self.after is not None and (self.before is None or self.after > self.before)

    @property
    def progressed(self) -> bool:
        """Whether the budget of restarts begins anew behind it.

        A newer snapshot or a spell of new training is enough where something from outside ended it, which says nothing about
        the workload. Who fails for a reason of its own needs both: else a crash loop that saves each second would never end.
        """
        if self.gained >= self.enough:
            return True
        if self.moved is None and not self.advanced:
            return False  # nobody knows what a user's script saves unless it does so by `slipway.resume`
        signs = (self.advanced, self.gained >= SPELL)
        return any(signs) if came_from_outside(self.outcome) else all(signs)


@dataclass(frozen=True)
class AttemptHistory:
    """All attempts of one start of the launcher, and why no further one follows (None: none was due).

    `missed` attempts of the job were made before this launcher came; `ledger`: what the job's time went into.
    """

    tries: tuple[Try, ...] = ()
    why: Cause | None = None
    missed: int = 0
    ledger: Ledger = NOTHING

    @property
    def made(self) -> int:
        """How many attempts the job had; what ended it between two of them stands under the number of the one before."""
        return self.missed + len({attempt.number for attempt in self.tries})

    @property
    def number(self) -> int:
        """The number of the newest attempt, 0 without one."""
        return self.tries[-1].number if self.tries else 0


class Decision(NamedTuple):
    """What follows an attempt: another one after `pause` seconds, or None and the reason."""

    pause: float | None
    why: Cause | None = None


@dataclass(frozen=True)
class Ending:
    """The one verdict on an attempt, and what follows: another one after `pause` seconds but for the nodes `leaving`, or why
    none; and how many `failures` in a row without progress there were by then. It travels between launchers."""

    verdict: Verdict
    pause: float | None = None
    why: Cause | None = None
    leaving: tuple[int, ...] = ()
    failures: int = 0


def decide(tries: tuple[Try, ...], failures: int, limit: int) -> Decision:
    """What follows the attempts so far (at least one), of which the last `failures` in a row failed without progress, with at
    most `limit` restarts in a row.
    """
    last = tries[-1]
    if last.outcome.word not in RETRYABLE:
        return Decision(None)
    if is_stuck(tries):
        return Decision(None, Cause(CauseKind.STUCK, number=STUCK))
    if not limit:
        return Decision(None, Cause(CauseKind.NO_RESTARTS))
    if failures > limit:
        return Decision(None, Cause(CauseKind.LIMIT, number=failures, name=str(limit)))
    if last.moved is False and not is_passing(last.outcome):
        return Decision(None, Cause(CauseKind.FUTILE))
    return Decision(PAUSES[min(failures, len(PAUSES)) - 1] if failures else 0.0)


def count_failures(last: Try, before: int) -> int:
    """Attempts in a row, up to the `last`, that failed without progress; `before` came before it. Ends as asked are none."""
    return 0 if last.progressed else before + (not last.outcome.good)


def is_stuck(tries: tuple[Try, ...]) -> bool:
    """Whether the newest attempts that failed for reasons of their own, lost peers left out, all got nowhere."""
    counted = []
    for attempt in reversed(tries):
        if attempt.advanced or attempt.progressed:
            break
        counted += [] if lost_others(attempt.outcome) else [attempt]
    # Nobody knows what a user's script saves, and where.
    return len(counted) >= STUCK and all(attempt.moved is not None for attempt in counted)


def is_passing(outcome: Outcome) -> bool:
    """Whether a cause may be gone at the next attempt: a lost peer, a busy port, a kill from outside. Not a lack of memory:
    the next attempt needs as much."""
    return came_from_outside(outcome) or Sign.PASSING in outcome.cause.signs


def came_from_outside(outcome: Outcome) -> bool:
    """Whether a node was lost, or somebody killed a process: neither is the workload's doing."""
    cause = outcome.cause
    killed = cause.kind == CauseKind.PARENT_SIGNALLED and cause.number == -signal.SIGKILL
    return lost_others(outcome) or killed or cause.kind == CauseKind.KILLED


def lost_others(outcome: Outcome) -> bool:
    """Whether a node or a process was lost to the others (76), which says nothing about the workload."""
    return not outcome.independent or outcome.word == Word.LOST
