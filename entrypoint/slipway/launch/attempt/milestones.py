"""How far the workers of this node came in one attempt, and when. Pure: what was seen and the clock come in."""

from collections.abc import Mapping

from slipway.launch.run_directory.heartbeats import Beat
from slipway.protocol.files import STEPS


class Milestones:
    """Moments of one attempt, in monotonic seconds: its beginning, when its workers ran, when its end was noticed."""

    def __init__(self, now: float, before: int) -> None:
        """`before`: the highest step of all attempts before this one."""
        self.begun, self.before, self.reached = now, before, 0
        self.started: float | None = None
        self.noticed: float | None = None
        self._new: tuple[float, float] | None = None  # when the first and the newest step beyond those before were seen
        self._moved = now  # when something moved last, of a script

    def look(self, now: float, *, started: bool, ending: bool, still: float = 0.0) -> None:
        """Take what there is to see: whether the workers run, whether they are to end, and for how long nothing moved."""
        if started and self.started is None:
            self.started = now
        if not (ending or self.noticed):
            self._moved = max(self._moved, now - still)
        elif self.noticed is None:
            self.noticed = now

    def take(self, beats: Mapping[int, Beat], now: float) -> None:
        """Take the newest beats of the ranks."""
        step = min(max((beat.step for beat in beats.values()), default=0), STEPS)
        if step > max(self.before, self.reached):
            self._new = (self._new[0] if self._new else now, now)
        self.reached = max(self.reached, step)

    @property
    def trained(self) -> float:
        """Seconds of training beyond the highest step of all attempts before. Who stands still there does not train."""
        return self._new[1] - self._new[0] if self._new else 0.0

    @property
    def ran(self) -> float:
        """Seconds that a script ran until it stood still, or its end was noticed."""
        return max(0.0, self._moved - self.started) if self.started is not None else 0.0
