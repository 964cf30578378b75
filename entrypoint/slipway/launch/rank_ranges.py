"""How numbers of ranks or nodes are written for people. Pure."""

from collections.abc import Iterable
from itertools import groupby

MOST = 20  # parts of a text; a job may have thousands of ranks


def rank_ranges(ranks: Iterable[int]) -> str:
    """Numbers in their order, three or more in a row as a range: `0, 3-7`; after MOST parts only how many more."""
    parts: list[tuple[str, int]] = []  # with how many ranks each stands for
    for _, neighbours in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in neighbours]
        parts += [(f"{run[0]}-{run[-1]}", len(run))] if len(run) > 2 else [(str(rank), 1) for rank in run]
    more = sum(many for _, many in parts[MOST:])
    return ", ".join(text for text, _ in parts[:MOST]) + (f" and {more} more" if more else "")
