"""Which ranks computed wrongly, by what all of them computed from the same inputs, once or twice. Pure, without torch.

Ranks of one kind of processor are compared bit by bit. A rank that has no other of its kind is compared with itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Signature = tuple[int, ...]  # of one computation of a rank: a number for each place, such as the output of a layer


@dataclass
class ComparableRanks:
    """Ranks whose results can be compared bit by bit.

    `loose`: places that are not compared, because the results there do not repeat themselves. `repeated`: whether all others have
    done so since this process began.
    """

    ranks: tuple[int, ...]
    loose: set[int] = field(default_factory=set)
    repeated: bool = False

    @property
    def alone(self) -> bool:
        """Whether there is nothing to compare with but the rank itself."""
        return len(self.ranks) == 1

    def pick(self, signatures: Sequence[Signature]) -> list[Signature]:
        """Return what is compared: the signatures of these ranks, with zeros at the loose places."""
        if not self.loose:
            return [signatures[rank] for rank in self.ranks]
        return [
            tuple(0 if place in self.loose else number for place, number in enumerate(signatures[rank]))
            for rank in self.ranks
        ]

    def differs(self, *rounds: Sequence[Signature]) -> bool:
        """Whether these ranks did not compute the same in all rounds, each of which has the signatures of all ranks."""
        return len({signature for signatures in rounds for signature in self.pick(signatures)}) > 1

    def leave_out(self, first: Sequence[Signature], again: Sequence[Signature]) -> list[int]:
        """Return the places that turned out to be loose: two ranks, or more, did not compute there what they had computed before.

        A single one of several ranks may be the one that computes wrongly, and so may a rank alone that repeated itself before.
        """
        least = 2 if not self.alone or self.repeated else 1
        pairs = [pair for pair in zip(self.pick(first), self.pick(again), strict=True) if pair[0] != pair[1]]
        changed = Counter(
            place for pair in pairs for place, (one, other) in enumerate(zip(*pair, strict=True)) if one != other
        )
        found = sorted(place for place, ranks in changed.items() if ranks >= least)
        self.loose.update(found)
        return found


def divide(kinds: Sequence[int]) -> list[ComparableRanks]:
    """Return the kinds of which the ranks are; `kinds`: a number for each rank, the same for those of one kind."""
    return [
        ComparableRanks(tuple(rank for rank, each in enumerate(kinds) if each == kind)) for kind in dict.fromkeys(kinds)
    ]


def find_wrong_ranks(first: Sequence[Signature], again: Sequence[Signature]) -> list[int] | None:
    """Return the ranks that computed wrongly; empty if nobody knows which, None if the arithmetic does not repeat itself.

    `first` and `again`: what each rank computed, twice, from the same inputs.
    """
    usual, _ = Counter(first).most_common(1)[0]
    both = list(zip(first, again, strict=True))
    right = [pair == (usual, usual) for pair in both]
    if 2 * sum(right) > len(right):
        return [rank for rank, is_right in enumerate(right) if not is_right]
    unstable = [rank for rank, (one, other) in enumerate(both) if one != other]
    if len(first) <= 2 and len(unstable) == 1:
        return unstable
    return None if unstable else []
