"""Whether a job that ended is started again, when, and why not. Pure.

Only the first cause and the newest snapshots count. Exit codes 1 and 76 may be tried again here; 75 and 77 are the
scheduler's to try again, 2, 78, 79 and 93 nobody's.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.protocol.outcomes import Word

DEFAULT = 3  # restarts of one of our workloads; a user's script may not know how to go on, so it has none
# Seconds before the next attempt. What passes by itself (a port, a file server) is over in seconds, what is broken longer
# should not be tried in a hurry; a minute is as long as somebody who watches will wait.
PAUSES = (1.0, 4.0, 16.0, 60.0)
STUCK = 3  # attempts in a row without a new snapshot
RETRYABLE = (Word.FAILED, Word.PEER, Word.LOST)
# What may be gone at the next attempt, though the first step was never reached; a kill from outside says nothing about
# the workload. Not out-of-memory: the next attempt needs as much.
PASSING = (
    r"Address already in use|EADDRINUSE|Temporary failure in name resolution|Stale file handle"
    r"|SIGKILL: somebody killed it|ended by SIGKILL|Resource temporarily unavailable|busy or unavailable"
    r"|Connection refused|timed out"
    r"|Unable to find address for"  # gloo's, of a network interface that is down while its cable or container is cut off
)


@dataclass(frozen=True)
class Try:
    """One attempt: how it ended, and the step of the newest snapshot before and after it (None: there was none).

    `moved`: whether it got past its first step; None where nobody can tell, as with a user's script.
    """

    number: int
    outcome: Outcome
    before: int | None = None
    after: int | None = None
    moved: bool | None = None

    @property
    def advanced(self) -> bool:
        """Whether it left a newer snapshot."""
        return self.after is not None and (self.before is None or self.after > self.before)


@dataclass(frozen=True)
class Course:
    """All attempts of one start of the launcher, and why no further one follows (empty: none was due).

    `missed` attempts of the job were made before this launcher came.
    """

    tries: tuple[Try, ...] = ()
    why: str = ""
    missed: int = 0

    @property
    def made(self) -> int:
        """How many attempts the job had; what ended it between two of them stands under the number of the one before."""
        return self.missed + len({attempt.number for attempt in self.tries})

    @property
    def number(self) -> int:
        """The number of the newest attempt, 0 without one."""
        return self.tries[-1].number if self.tries else 0


class Decision(NamedTuple):
    """What follows an attempt: another one after `pause` seconds, or None and the reason; `stuck` ends with 93."""

    pause: float | None
    why: str = ""
    stuck: bool = False


@dataclass(frozen=True)
class Ending:
    """The one verdict on an attempt, and what follows: another one after `pause` seconds but for the nodes `leaving`, or why
    none. It travels between launchers."""

    verdict: Verdict
    pause: float | None = None
    why: str = ""
    leaving: tuple[int, ...] = ()


def decide(tries: tuple[Try, ...], limit: int, earlier: int = 0) -> Decision:
    """What follows the attempts so far (at least one), with at most `limit` restarts.

    `earlier` attempts of the same job failed before this launcher came; those that ended as asked count nowhere.
    """
    last = tries[-1]
    failures = earlier + count_failures(tries)
    if last.outcome.word not in RETRYABLE:
        return Decision(None)
    if is_stuck(tries):
        return Decision(None, f"{STUCK} attempts in a row left no newer snapshot", stuck=True)
    if failures > limit:
        return Decision(None, f"--max-restarts {limit}" if limit else "--max-restarts is 0")
    if last.moved is False and not is_passing(last.outcome):
        return Decision(None, "it failed before its first step, which another attempt would not change")
    return Decision(PAUSES[min(failures, len(PAUSES)) - 1])


def count_failures(tries: tuple[Try, ...]) -> int:
    """How many attempts did not end as asked."""
    return sum(not attempt.outcome.good for attempt in tries)


def is_stuck(tries: tuple[Try, ...]) -> bool:
    """Whether the newest attempts that failed for reasons of their own, lost peers left out, all got nowhere."""
    counted = []
    for attempt in reversed(tries):
        if attempt.advanced:
            break
        counted += [] if lost_others(attempt.outcome) else [attempt]
    # Nobody knows what a user's script saves, and where.
    return len(counted) >= STUCK and all(attempt.moved is not None for attempt in counted)


def is_passing(outcome: Outcome) -> bool:
    """Whether a cause is known to be a passing one: a lost peer, a busy port, a kill from outside."""
    return lost_others(outcome) or re.search(PASSING, outcome.evidence, re.IGNORECASE) is not None


def lost_others(outcome: Outcome) -> bool:
    """Whether a node or a process was lost to the others (76), which says nothing about the workload."""
    return not outcome.own or outcome.word == Word.LOST
