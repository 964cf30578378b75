"""How far the workers of this node came in one attempt, and when. Pure: what was seen and the clock come in."""

from collections.abc import Mapping
from dataclasses import replace

from slipway.launch.run_directory.heartbeats import Beat
from slipway.launch.verdict.ledger import Seen
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
        self._beat: Beat | None = None  # the newest of the first rank

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
        self._beat = beats[min(beats)] if beats else self._beat

    @property
    def trained(self) -> float:
        """Seconds of training beyond the highest step of all attempts before. Who stands still there does not train."""
        return self._new[1] - self._new[0] if self._new else 0.0

    @property
    def ran(self) -> float:
        """Seconds that a script ran until it stood still, or its end was noticed."""
        return max(0.0, self._moved - self.started) if self.started is not None else 0.0

    def seen(self, now: float, *, own: bool) -> Seen:
        """What the ledger needs of it by now; `own`: it is a workload of ours, whose ranks tell what they do."""
        seen = Seen(self.begun, now, own, self.started, self.noticed)
        if not (own and self._beat):
            return seen
        said = replace(seen, spoke=self._beat.monotonic, spent=self._beat.spent, first=self._beat.first)
        said = replace(said, again=self._beat.again, waited=self._beat.waited)
        return replace(said, reached=self.reached, before=self.before)
