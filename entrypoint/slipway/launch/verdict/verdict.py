"""From how the run ended on each node to one verdict: the first cause, and the exit code of every node.

Pure. The causality rule: what a node did for a reason of its own comes before peers that merely lost it, whatever their
clocks say; among several reasons of their own the earliest counts, by node 0's clock.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType

from slipway.launch.verdict.cause import NAME, TEXT, Cause, CauseKind
from slipway.protocol.causes import Sign
from slipway.protocol.errors import CODE_OF, PEER, UNHEALTHY
from slipway.protocol.outcomes import GOOD, Word

# The words of the exit-code table, and a node that went away without a word.
CODES = MappingProxyType({word: code for word, code in CODE_OF.items() if word != Word.USAGE} | {Word.LOST: PEER})
OTHERS = 8  # own-reason outcomes kept beside the first cause
STANDING = 250  # and of where others stood
STACKS = (60, 120)  # lines of stacks that travel, and characters of each


@dataclass(frozen=True)
class Outcome:
    """How the run ended on one node. `time` is unix seconds of its first failure; `rank` is the rank that failed first.

    `meanwhile`: what those did that did not fail, where whoever failed only lost them. `stacks`: where the ranks of a
    hang stood, as lines; the launcher of node 0 judged it.

    ValueError where `word` is not one of CODES.
    """

    node_rank: int
    host: str
    word: str
    time: float
    rank: int | None = None
    cause: Cause = Cause()  # noqa: RUF009  # frozen
    where: str | None = None
    meanwhile: str = ""
    stacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Keep what travels bounded."""
        if self.word not in CODES:
            raise ValueError(f"unknown outcome {self.word[:20]!r}, allowed are {', '.join(CODES)}")
        for name, limit in (("host", NAME), ("where", TEXT), ("meanwhile", STANDING)):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, text[:limit])
        lines, length = STACKS
        object.__setattr__(self, "stacks", tuple(line[:length] for line in self.stacks[:lines]))

    @property
    def evidence(self) -> str:
        """The cause as a sentence."""
        return str(self.cause)[:TEXT]

    @property
    def good(self) -> bool:
        """Whether the run ended as asked."""
        return self.word in GOOD

    @property
    def independent(self) -> bool:
        """Whether the node ended for its own reason and not because a peer went away. A hang is one: others' ends came of it."""
        if self.stacks:
            return True
        echo = self.word == Word.PEER or (self.word == Word.FAILED and Sign.ECHO in self.cause.signs)
        return not self.good and not echo


@dataclass(frozen=True)
class Tally:
    """How many nodes ended with one word."""

    word: str
    nodes: int


@dataclass(frozen=True)
class Verdict:
    """The end of a job, the same on every node. `unhealthy`: the node ranks that end with 77, while all others end with 76."""

    word: str
    first: Outcome
    tallies: tuple[Tally, ...]
    others: tuple[Outcome, ...] = ()
    unhealthy: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """ValueError where `word` is not one of CODES."""
        if self.word not in CODES:
            raise ValueError(f"unknown outcome {self.word[:20]!r}")

    def code(self, node_rank: int) -> int:
        """The exit code of one node's launcher."""
        if self.word == Word.UNHEALTHY:
            return UNHEALTHY if node_rank in self.unhealthy else PEER
        return CODES[self.word]


def apart(time: float, other: float) -> str:
    """How far one time in unix seconds is from another, for people: `2.0 s earlier`."""
    return f"{abs(time - other):.1f} s {'earlier' if time <= other else 'later'}"


def judge(outcomes: Iterable[Outcome]) -> Verdict:
    """One verdict from the outcomes of all nodes (at least one), whose times are by one clock."""
    ordered = sorted(outcomes, key=lambda outcome: (outcome.time, outcome.node_rank))
    # All stopped because of the node whose machine goes away, whichever was through first.
    ordered.sort(key=lambda outcome: outcome.cause.kind != CauseKind.NOTICED)
    # Of nodes that only lost another those count that a retry may help, whichever was first.
    bad = sorted(
        (outcome for outcome in ordered if not outcome.good), key=lambda one: Sign.REMOTE not in one.cause.signs
    )
    own = [outcome for outcome in ordered if outcome.independent]
    # Where all bad outcomes only echo another node's end, a stop explains them.
    asked = [outcome for outcome in ordered if outcome.word in (Word.CANCELLED, Word.STOPPED)]
    ranking = (
        own
        or (asked if bad else [])
        or bad
        or sorted(ordered, key=lambda o: (Word.CANCELLED, Word.STOPPED, Word.FINISHED).index(o.word))
    )
    first = ranking[0]
    # Where nobody had a reason of its own, it matters who did not fail: nodes that had finished, or ran on.
    beside = [o for o in ordered if o.word == Word.FINISHED or (o.rank is None and not o.good)]
    counted = Counter(outcome.word if outcome.good or outcome.independent else Word.PEER for outcome in ordered)
    return Verdict(
        word=first.word,
        first=first,
        tallies=tuple(Tally(word, counted[word]) for word in CODES if counted[word]),
        others=tuple(other for other in (own or (beside if ranking is bad else [])) if other is not first)[:OTHERS],
        unhealthy=tuple(outcome.node_rank for outcome in own if outcome.word == Word.UNHEALTHY),
    )
