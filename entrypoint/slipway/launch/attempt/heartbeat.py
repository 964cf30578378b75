"""The workers' heartbeats: where each rank stands, and whether the job has come to a stand.

Each rank writes `heartbeat/rank-N.json` into its node's folder from the thread that trains: at every change of phase, and
at most twice a second otherwise. Only changes count, and only time during which we looked: a clock that is set back
or a container that was frozen is no hang.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from slipway.launch.run_directory.run import HEARTBEATS, rank_file, read_json

# How long a phase may stand still, in multiples of SLIPWAY_HANG_SECONDS.
PATIENCE = MappingProxyType(
    {
        "setup": 3,  # imports from a cold network disk, the first connections among the ranks
        "prepare": 12,  # data that are fetched or made, once per node; it beats as they come
        "load": 4,  # a large snapshot, given to the others over the network
        "first-step": 6,  # torch.compile and kernel searches take many minutes
        "train": 1,
        "data": 1,  # the other ranks wait in `train` meanwhile
        "evaluate": 4,
        "measure": 4,  # many calls of a collective at once, over a network that may be slow
        "save": 6,  # a large snapshot to a slow disk
        "finish": 6,  # the last snapshot's writer
    }
)
BEFORE_FIRST_STEP = ("setup", "prepare", "load", "first-step")
LONGEST_LOOK = 5.0  # s that the time between two looks counts at most
STATES = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "D": "waiting for a disk or a driver"}


class Beat(NamedTuple):
    """Where a rank says that it stands; `monotonic` is its own clock, `pid` its process.

    `beats` counts what it said so far but for waiting for data, and is the same on all ranks at the same place.
    """

    rank: int
    phase: str = "setup"
    step: int = 0
    steps: int | None = None
    monotonic: float = 0.0
    pid: int | None = None
    beats: int = 0

    @property
    def place(self) -> str:
        """How people read it: `step 3 of 20, train`."""
        of = f" of {self.steps}" if self.steps else ""
        return f"step {self.step}{of}, {self.phase}"


def heartbeat_file(node_dir: Path, rank: int) -> Path:
    """Where a rank says that it lives."""
    return rank_file(node_dir, HEARTBEATS, rank)


def read_beats(node_dir: Path, ranks: Iterable[int]) -> dict[int, Beat]:
    """The newest beat of each rank that has one; files that make no sense count as none."""
    found = {rank: _read_beat(rank, read_json(heartbeat_file(node_dir, rank))) for rank in ranks}
    return {rank: beat for rank, beat in found.items() if beat}


def _read_beat(rank: int, record: Mapping[str, object]) -> Beat | None:
    phase, step, monotonic = record.get("phase"), record.get("step"), record.get("monotonic")
    if not (isinstance(phase, str) and isinstance(step, int) and isinstance(monotonic, int | float)):
        return None
    steps, pid = (value if isinstance(value, int) else None for value in (record.get("steps"), record.get("pid")))
    beats = record.get("beats")
    return Beat(rank, phase, step, steps, monotonic, pid, beats if isinstance(beats, int) else 0)


def _stands(before: Beat, beat: Beat) -> bool:
    """Whether nothing moved between two beats. Who waits for data says so again and again, and gets nowhere by that."""
    waits = before.phase == beat.phase == "data" and before.step == beat.step
    return waits or beat == before


def _order(beat: Beat) -> tuple[int, int, bool]:
    """What tells a rank that lags behind: who waits for data at a place makes the others there wait for it."""
    return beat.step, beat.beats, beat.phase != "data"


class Pulse:
    """How long each rank of this node has stood still. A rank without a beat stands in `setup`."""

    def __init__(self, ranks: Iterable[int], limit: float, now: float) -> None:
        """`limit`: the seconds that phase `train` may stand still, 0 for any time; `now`: monotonic seconds."""
        self._limit, self._looked = limit, now
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
        return self._limit > 0 and all(
            self._still[rank] > self._limit * PATIENCE.get(beat.phase, 1) for rank, beat in self._beats.items()
        )

    def started(self, step: int) -> bool:
        """Whether a rank took a step; `step` is that of the newest snapshot, where this attempt began or a little later."""
        beats = [beat for beat in self._beats.values() if beat.phase not in BEFORE_FIRST_STEP]
        return any(beat.phase != "data" or beat.step > step for beat in beats)  # it waits for data before that, too

    def laggards(self, state: Callable[[int], str]) -> tuple[Beat, ...]:
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
