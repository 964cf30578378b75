"""Whether the job has come to a stand, by the heartbeats of this node's ranks.

Only changes count, and only time during which we looked: a clock that is set back or a container that was frozen is no
hang.
"""

from collections.abc import Callable, Iterable, Mapping

from slipway.launch.process_tree import STATES
from slipway.launch.run_directory.heartbeats import Beat
from slipway.protocol.phases import BEFORE_FIRST_STEP, Phase

LONGEST_LOOK = 5.0  # s that the time between two looks counts at most


def _stands(before: Beat, beat: Beat) -> bool:
    """Whether nothing moved between two beats. Who waits for data says so again and again, and gets nowhere by that."""
    waits = before.phase == beat.phase == Phase.DATA and before.step == beat.step
    return waits or beat == before


def _order(beat: Beat) -> tuple[int, int, bool]:
    """What tells a rank that lags behind: who waits for data at a place makes the others there wait for it."""
    return beat.step, beat.beats, beat.phase != Phase.DATA


class HangDetector:
    """How long each rank of this node has stood still. A rank without a beat stands in `setup`."""

    def __init__(self, ranks: Iterable[int], limit: float, now: float, start: float | None = None) -> None:
        """`limit`: the seconds that phase `train` may stand still, 0 for any time; `now`: monotonic seconds. `start`: what takes
        the limit's place in phases before the first step is done, where that is another.
        """
        self._limit, self._start, self._looked = limit, limit if start is None else start, now
        self._beats = {rank: Beat(rank) for rank in ranks}
        self._still = dict.fromkeys(self._beats, 0.0)

    def look(self, beats: Mapping[int, Beat], now: float) -> None:
        """Take the newest beats, read at `now`."""
        passed, self._looked = min(now - self._looked, LONGEST_LOOK), now
        for rank, before in self._beats.items():
            beat = beats.get(rank, before)
            self._still[rank] = self._still[rank] + passed if _stands(before, beat) else 0.0
            self._beats[rank] = beat

    @property
    def hangs(self) -> bool:
        """Whether every rank has stood still for longer than its phase allows: one that works may be waited for."""
        return all(0 < self._allowed(beat) < self._still[rank] for rank, beat in self._beats.items())

    def _allowed(self, beat: Beat) -> float:
        """Seconds that a rank may stand still there, 0 for any time."""
        return (self._start if beat.phase in BEFORE_FIRST_STEP else self._limit) * beat.phase.patience

    def started(self, step: int) -> bool:
        """Whether a rank took a step; `step` is that of the newest snapshot, where this attempt began or a little later."""
        beats = [beat for beat in self._beats.values() if beat.phase not in BEFORE_FIRST_STEP]
        return any(beat.phase != Phase.DATA or beat.step > step for beat in beats)  # it waits for data before that, too

    def stragglers(self, state: Callable[[int], str]) -> tuple[Beat, ...]:
        """The ranks that the others wait for, as far as it can be told; all where none differs.

        `state`: a process's state, as a letter of /proc/PID/stat.
        """
        beats = tuple(self._beats.values())
        odd = tuple(beat for beat in beats if beat.pid and state(beat.pid) in STATES)
        least = min(map(_order, beats))
        return odd or tuple(beat for beat in beats if _order(beat) == least)

    def describe(self, behind: tuple[Beat, ...], state: Callable[[int], str]) -> str:
        """The evidence of a hang."""
        lines = []
        for beat in behind[:4]:
            how = STATES.get(state(beat.pid), "") if beat.pid else ""
            lines.append(
                f"rank {beat.rank} ({beat.place}, for {self._still[beat.rank]:.0f} s{', ' if how else ''}{how})"
            )
        more = f" and {len(behind) - 4} more" if len(behind) > 4 else ""
        who = "no rank moves any more, none lags behind" if len(behind) == len(self._beats) > 1 else "behind"
        return f"hang: {who}: {'; '.join(lines)}{more}"
