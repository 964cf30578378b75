"""What rank 0 wrote down: its newest numbers (`metrics.jsonl`), and when the replicas differed (`replicas.json`)."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slipway.protocol.files import METRICS_FILE, REPLICAS_FILE, open_run_file, parse_json, read_json

TAIL = 16_384  # bytes of it in which its newest lines stand


def newest_numbers(run: Path) -> dict[str, float]:
    """The newest value of each number by its name, as far as the newest lines tell; none where there are none."""
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


class Difference(NamedTuple):
    """The replicas of the model were found to differ: when (Unix seconds), after which step, on which nodes, and in what."""

    time: float
    step: int
    nodes: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        """How people read it."""
        return f"step {self.step}, {' and '.join(self.nodes)}: {self.text}"


def replica_differences(run: Path) -> list[Difference]:
    """All that were found, oldest first; what makes no sense is left out."""
    found = []
    rows = read_json(run / REPLICAS_FILE).get("differences")
    for row in rows if isinstance(rows, list) else ():
        match row:
            case {
                "time": int() | float() as at,
                "step": int() as step,
                "nodes": list() as nodes,
                "text": str() as text,
            }:
                found.append(Difference(at, step, tuple(map(str, nodes)), text))
    return found
