"""The newest numbers that rank 0 wrote into `metrics.jsonl`."""

from contextlib import suppress
from pathlib import Path

from slipway.protocol.files import METRICS_FILE, open_run_file, parse_json

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
