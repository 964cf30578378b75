"""Which rank holds the others up. Pure: from times that the ranks took, to a name.

All ranks of a collective end together, so their times in it do not tell who was late. Two others do:
own         seconds a rank worked by itself, writing what it sends and checking what it gets: a slow CPU, GPU or memory
link        seconds for a message to a neighbour and one back at the same time: a slow network card or cable. A rank is
            slow where both its links are; one slow link is shared with a neighbour. Among two nobody can tell.
Links are those of a ring through all ranks, or where there are several nodes through the first rank of each.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipway.train.measure.bandwidth import time_text

STANDS_OUT = 2.0  # times the median from which a rank is slow for certain; below that it is just the last of equals


@dataclass(frozen=True)
class Straggler:
    """The slowest rank, and what shows it: `own` work or its `link`, in seconds, beside the median of all."""

    rank: int
    what: str
    seconds: float
    median: float

    @property
    def certain(self) -> bool:
        """Whether it is much slower than the others."""
        return self.seconds >= STANDS_OUT * self.median

    @property
    def text(self) -> str:
        """What was seen, for people."""
        measured = {
            "own": f"{time_text(self.seconds)} for its own work (writing and checking numbers)",
            "link": f"{time_text(self.seconds)} for 1 MiB to and from the nearer of its neighbours",
        }[self.what]
        verdict = "" if self.certain else ", so no rank stands out"
        return f"{measured}, against {time_text(self.median)} in the middle of all{verdict}"


def find_straggler(own: Sequence[float], links: Mapping[tuple[int, int], float]) -> Straggler:
    """The slowest rank from each rank's own seconds, and the seconds of the links between neighbours in the ring."""
    slowest = max(range(len(own)), key=own.__getitem__)
    by_work = Straggler(slowest, "own", own[slowest], statistics.median_low(own))
    if by_work.certain or len(links) < 3:  # two ends of the only link
        return by_work
    best = {rank: min(seconds for link, seconds in links.items() if rank in link) for link in links for rank in link}
    slowest = max(best, key=best.__getitem__)
    by_link = Straggler(slowest, "link", best[slowest], statistics.median_low(list(best.values())))
    return by_link if by_link.certain else by_work


def rounds(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The links of a ring through `members`, in rounds in which everybody is in one link at most."""
    count = len(members)
    if count < 2:
        return []
    links = [(members[i], members[(i + 1) % count]) for i in range(count if count > 2 else 1)]
    odd = [links.pop()] if count > 2 and count % 2 else []  # it meets both the first and the last but one
    return [part for part in (links[::2], links[1::2], odd) if part]
