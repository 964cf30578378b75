"""What ranks report about themselves in the run directory: their heartbeats, and the newest numbers that rank 0 wrote.

Each rank writes `heartbeat/rank-N.json` into its node's folder from the thread that trains: at every change of phase, and
at most twice a second otherwise.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from slipway.launch.verdict.ledger import LARGEST, RANKS
from slipway.protocol.files import (
    HEARTBEATS,
    METRICS_FILE,
    NODE,
    OUTCOME_FILE,
    RANK,
    STEPS,
    newest_step,
    number_in,
    open_run_file,
    parse_json,
    rank_file,
    read_json,
    whole_number,
)
from slipway.protocol.phases import PHASES, Phase


class Beat(NamedTuple):
    """Where a rank reports that it is; `monotonic` is its own clock, `pid` its process.

    `beats` counts its reports so far except those of waiting for data, and is the same on all ranks at the same place. `first` is
    the step that training began with, `spent` the seconds in each phase so far, up to this one, `again` those of them in which it
    made steps that it had made before. `own`: seconds that it works on a step by itself; `slow`: the rank that makes all others
    wait, and by which share it is slower; `waited`: for how many seconds they did so far, by rank.
    """

    rank: int
    phase: Phase = Phase.SETUP
    step: int = 0
    steps: int | None = None
    monotonic: float = 0.0
    pid: int | None = None
    beats: int = 0
    first: int = 0
    spent: Mapping[Phase, float] = MappingProxyType({})
    again: float = 0.0
    own: float | None = None
    slow: tuple[int, float] | None = None
    waited: Mapping[int, float] = MappingProxyType({})

    @property
    def place(self) -> str:
        """How people read it: `step 3 of 20, train`."""
        of = f" of {self.steps}" if self.steps else ""
        return f"step {self.step}{of}, {self.phase}"


def heartbeat_file(node_dir: Path, rank: int) -> Path:
    """The file that a rank writes its heartbeat to."""
    return rank_file(node_dir, HEARTBEATS, rank)


def read_beats(node_dir: Path, ranks: Iterable[int]) -> dict[int, Beat]:
    """The newest beat of each rank that has one; files that make no sense count as none."""
    found = {rank: _read_beat(rank, read_json(heartbeat_file(node_dir, rank))) for rank in ranks}
    return {rank: beat for rank, beat in found.items() if beat}


def _read_beat(rank: int, record: Mapping[str, object]) -> Beat | None:
    phase, step, monotonic = PHASES.get(str(record.get("phase"))), record.get("step"), record.get("monotonic")
    if not (phase and isinstance(step, int) and isinstance(monotonic, int | float)):
        return None
    steps, pid = (value if isinstance(value, int) else None for value in (record.get("steps"), record.get("pid")))
    beats, first = (value if isinstance(value, int) else 0 for value in (record.get("beats"), record.get("first")))
    waited = {whole_number(name): value for name, value in _seconds(record.get("waited")).items()}
    return Beat(
        rank,
        phase,
        step,
        steps,
        monotonic,
        pid,
        beats,
        first,
        spent={PHASES[name]: value for name, value in _seconds(record.get("spent")).items() if name in PHASES},
        again=_seconds(record).get("again", 0.0),
        own=_seconds(record).get("own"),
        slow=_slow(record.get("slow")),
        waited={rank: value for rank, value in waited.items() if rank is not None},
    )


def _seconds(record: object) -> dict[str, float]:
    """The numbers of an object that may be seconds; what makes no sense is left out."""
    rows = record.items() if isinstance(record, dict) else ()
    return {str(name): float(value) for name, value in rows if isinstance(value, int | float) and 0 <= value <= LARGEST}


def _slow(record: object) -> tuple[int, float] | None:
    """A rank and a share; None for anything else."""
    match record:
        case [int() as rank, int() | float() as share] if 0 <= rank < RANKS and 0 <= share <= LARGEST:
            return rank, float(share)
    return None


def highest_step(run: Path) -> int:
    """The highest step recorded in a run: in its snapshots, its verdict, and the heartbeats of ranks that were killed with their
    launcher.
    """
    steps = [newest_step(run) or 0]
    tries = read_json(run / OUTCOME_FILE).get("attempts")
    for tried in tries if isinstance(tries, list) else ():
        step = tried.get("reached") if isinstance(tried, dict) else None
        steps += [step] if isinstance(step, int) else []
    for folder in run.glob(f"{NODE}*/{HEARTBEATS}"):
        ranks = [rank for file in folder.glob("*.json") if (rank := number_in(file.stem, RANK)) is not None]
        steps += [beat.step for beat in read_beats(folder.parent, ranks).values()]
    return min(max(steps), STEPS)


TAIL = 16_384  # bytes at the end of metrics.jsonl in which its newest lines are


def newest_numbers(run: Path) -> dict[str, float]:
    """The newest value of each number in the last lines of `metrics.jsonl`, by its name; none where there are none."""
    found: dict[str, float] = {}
    with suppress(OSError), open_run_file(run / METRICS_FILE) as file:
        file.seek(max(0, file.seek(0, 2) - TAIL))
        for line in file.read().splitlines():
            with suppress(ValueError, RecursionError):
                record = parse_json(line)
                if isinstance(record, dict):
                    found |= {
                        name: float(value)
                        for name, value in record.items()
                        if isinstance(value, int | float) and not isinstance(value, bool)
                    }
    return found
