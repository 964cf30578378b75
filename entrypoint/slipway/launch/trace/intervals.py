"""Spans of time as sorted pairs that do not touch: what of one is covered by another."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

Spans = Sequence[tuple[float, float]]


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """All that any of them covers."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif begin < end:
            joined.append((begin, end))
    return joined


def common(one: Spans, other: Spans) -> Spans:
    """What two unions both cover."""
    found, here, there = [], 0, 0
    while here < len(one) and there < len(other):
        begin, end = max(one[here][0], other[there][0]), min(one[here][1], other[there][1])
        if begin < end:
            found.append((begin, end))
        if one[here][1] < other[there][1]:
            here += 1
        else:
            there += 1
    return found


def without(one: Spans, other: Spans) -> Spans:
    """What a union covers and another does not."""
    if not one:
        return []
    edges = [(one[0][0], one[0][0]), *other, (one[-1][1], one[-1][1])]
    gaps = [(before[1], after[0]) for before, after in pairwise(edges) if before[1] < after[0]]
    return common(one, gaps)


def length(spans: Spans) -> float:
    """How long they are together."""
    return sum(end - begin for begin, end in spans)
