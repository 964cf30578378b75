"""By when this node's processes must have ended. Pure: what happened and the clock come in, what is due comes out."""

from enum import Enum

# s that the other ranks have after one failed: ours have nothing to save then, and a script what torchrun alone would give it
AFTER_FAILURE, AFTER_FAILURE_OF_SCRIPT = 5.0, 30.0
STACKS = 1.0  # s that workers have for printing their stacks before they are killed


class Due(Enum):
    """What is to be done at a moment."""

    NOTHING = "nothing"
    STACKS = "stacks"  # let those that hang print where they stand
    KILL = "kill"


class Deadline:
    """Moments are monotonic seconds. Whatever happens, the earliest end that anything asks for counts.

    `killed`: the grace of a stop was over before the workers had ended, though nothing had failed; `empty`: it was not waited
    for, since they had nothing to save.
    """

    def __init__(self, grace: float) -> None:
        """`grace` is how many seconds a stop leaves for a snapshot."""
        self._grace, self._at = grace, float("inf")
        self._stopping = self._failed = self._stuck = self._asked = False
        self.empty = False
        self.killed = False

    def stop(self, now: float) -> None:
        """The workers are asked to stop."""
        self._stopping, self._at = True, min(self._at, now + self._grace)

    def nothing_to_save(self, now: float) -> None:
        """The workers, which were asked to stop, have nothing to save, and nobody needs to know where they stand."""
        self.empty, self._at = True, now

    def fail(self, now: float, seconds: float, gone: bool = False) -> None:
        """A worker failed, or another node; `gone`: it went away without a word, and the workers here wait for it in vain.

        They have so many `seconds`, unless they were asked to stop and may be saving: the grace bounds that.
        """
        self._failed, self._stuck = True, self._stuck or gone
        if not self._stopping:
            self._at = min(self._at, now + seconds)

    def hang(self, now: float) -> None:
        """No rank moves any more."""
        self._stuck, self._at = True, now

    def give_up(self, now: float) -> None:
        """Nothing can be saved any more."""
        self._at = now

    def left(self, now: float) -> float:
        """Seconds until the end."""
        return max(0.0, self._at - now)

    def due(self, now: float, *, impatient: bool) -> Due:
        """What to do now. `impatient`: its user asked again to stop for good. Stacks are asked for once."""
        if now <= self._at and not impatient:
            return Due.NOTHING
        self.killed = self.killed or (self._stopping and not self._failed)
        if (self._stuck or self.killed) and not (impatient or self._asked or self.empty):
            self._asked = True
            return Due.STACKS
        return Due.KILL

    def wait_for_stacks(self, now: float, seconds: float = STACKS) -> None:
        """The workers print them."""
        self._at = now + seconds
