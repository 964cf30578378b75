"""How far the ranks of a script are, as far as a launcher can see it: for `slipway status`. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

LINE = 120  # characters of a rank's last line


class Sight(NamedTuple):
    """What was seen of a rank at `time` (monotonic seconds): collectives done (None: it has no watcher), processor seconds, and
    how many percent of the time its GPU was in use (None: nobody says).
    """

    time: float
    done: int | None
    cpu: float
    gpu: int | None = None


def count_done(groups: Mapping[str, Sequence[int]] | None) -> int | None:
    """The collectives that are done, by what a watcher answered to `numbers`; None without an answer."""
    return None if groups is None else sum(max(done, 0) for _, done in groups.values())


def progress(before: Mapping[int, Sight], now: Mapping[int, Sight], last_line: Callable[[int], str]) -> dict[str, Any]:
    """A row for each rank: collectives done, per second, processor cores kept busy since `before`, percent of its GPU's
    time, and the last line printed.
    """
    return {str(rank): _row(before.get(rank), sight, last_line(rank)) for rank, sight in now.items()}


def _row(before: Sight | None, now: Sight, line: str) -> dict[str, Any]:
    passed = now.time - before.time if before else 0.0
    rate = cores = None
    if before and passed > 0:
        cores = round(max(0.0, now.cpu - before.cpu) / passed, 2)
        if now.done is not None and before.done is not None:
            rate = round(max(0, now.done - before.done) / passed, 2)
    return {"collectives": now.done, "per_second": rate, "cores": cores, "gpu": now.gpu, "line": line[:LINE]}
