"""Since when nothing moves in the processes of a node. Pure: what was seen and the clock come in.

Only time during which we looked counts: a container that was frozen is no hang.
"""

from collections.abc import Hashable

LONGEST_LOOK = 5.0  # s that the time between two looks counts at most, beyond the usual


class Stillness:
    """Seconds for which what is seen did not change."""

    def __init__(self, now: float, every: float) -> None:
        """`now`: monotonic seconds; `every`: seconds between two looks, usually."""
        self._seen: Hashable = None
        self._looked, self._most = now, every + LONGEST_LOOK
        self.seconds = 0.0
        self.since = now  # monotonic seconds

    def look(self, seen: Hashable, now: float) -> None:
        """Take what is seen at `now`."""
        passed, self._looked = min(now - self._looked, self._most), now
        if seen == self._seen:
            self.seconds += passed
        else:
            self._seen, self.seconds, self.since = seen, 0.0, now
