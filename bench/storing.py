"""What a copy in a store costs a training: a step beside an upload, and how long a snapshot makes it stand still meanwhile.

    python bench/storing.py [--rounds 8] [--limit 100] [--folder DIR] [--s3]

A GPT with AdamW, 0.74 GB of state, on the CPU with one thread and one core. The process that copies has the other core, and with
--s3 so has the server (SeaweedFS, `make test-tools`); otherwise the store is a folder. The rate is that of --store-limit.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from report import Report, options_parser, read_options
from sides import Spread
from snapshot_sides import STEPS, make_training, seconds, take_steps

from slipway.protocol.files import RUN_FILE, node_folder, read_json
from slipway.protocol.snapshots import newest_step
from slipway.train.loop.saving import save, wait_for_writers
from slipway.train.loop.training import Training

BESIDE, STALL = 0.98, 1.1  # of the pace of a step alone; of a stall without an upload
EMBED, SMOKE = 656, 64
MOST = 60  # steps beside one upload
VOLUMES = 60  # of 64 MB that the server needs for a round: deleted snapshots keep their room


class Round(NamedTuple):
    """Seconds of a step alone and beside an upload, and of a snapshot's stall alone and beside an upload."""

    alone: float
    beside: float
    stall: float
    stall_beside: float


@dataclass(frozen=True)
class Copying:
    """The process that copies a run, and its record in the node's folder."""

    process: subprocess.Popen[bytes]
    run: Path

    @property
    def record(self) -> dict[str, Any]:
        """What it says of the copy."""
        return read_json(node_folder(self.run, 0) / "store.json")

    @property
    def busy(self) -> bool:
        """Whether an upload is under way."""
        return self.record.get("copying") is not None

    @property
    def done(self) -> bool:
        """Whether the newest snapshot on the disk is in the store."""
        return not self.busy and self.record.get("step") == newest_step(self.run)

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds. RuntimeError where the process has ended."""
        while not holds():
            if self.process.poll() is not None:
                raise RuntimeError(f"the process that copies ended with {self.process.returncode}")
            time.sleep(0.01)


def main() -> int:
    """Print the table; 1 where a target is missed without a reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; by default the system's own")
    parser.add_argument("--limit", type=float, default=100.0, help="megabytes per second of the copy")
    parser.add_argument("--s3", action="store_true", help="a real server of S3 instead of a folder")
    options = read_options(parser)
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    own, other = cores[:1], cores[-1:]
    where = "a server of S3" if options.s3 else "a folder"
    about = f"Training on core {own[0]}, the copy to {where} ({options.limit:.0f} MB/s) on core {other[0]}."
    report = Report("Copies in a store: what they cost a training", about, options)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as name,
        serve(Path(name), other, VOLUMES * options.rounds if options.s3 else 0) as (address, environ),
    ):
        os.sched_setaffinity(0, own)
        training = make_training(Path(name) / "run", SMOKE if options.smoke else EMBED)
        with copy(Path(name) / "run", address, environ, options.limit * 1e6, other) as copying:
            rounds = [measure(training, copying) for _ in range(options.rounds)]
            record = copying.record
    rows = [[what, str(Spread.of([getattr(one, what) for one in rounds]))] for what in Round._fields]
    cost = record["seconds"] / (record["bytes"] / 1e9)
    report.table("Seconds", ["", "median (min to max)"], [*rows, ["CPU s of the copy per GB", f"{cost:.2f}"]])
    pace = Spread.of([one.alone / one.beside for one in rounds])
    report.target("a step alone / beside an upload", pace, BESIDE)
    stall = Spread.of([one.stall_beside / one.stall for one in rounds])
    report.target("a snapshot's stall beside an upload / alone", stall, STALL, at_most=True)
    return report.close()


def measure(training: Training, copying: Copying) -> Round:
    """One round: steps alone, a snapshot whose upload begins, steps beside it, and a snapshot during the next upload."""
    alone = take_steps(training, lambda number: number == 2 * STEPS)
    stall = write_snapshot(training)
    copying.wait(lambda: copying.busy or copying.done)
    beside = take_steps(training, lambda number: number == MOST or not copying.busy)
    copying.wait(lambda: copying.done)
    write_snapshot(training)
    copying.wait(lambda: copying.busy or copying.done)
    stall_beside = write_snapshot(training)
    copying.wait(lambda: copying.done)
    return Round(median(alone), median(beside), stall, stall_beside)


def write_snapshot(training: Training) -> float:
    """Take a step and a snapshot, and wait until it is on the disk. Returns the seconds that training stood still."""
    take_steps(training, lambda number: number == 1)
    stall = seconds(lambda: save(training))
    wait_for_writers(training)
    return stall


@contextmanager
def copy(run: Path, address: str, environ: Mapping[str, str], limit: float, core: list[int]) -> Iterator[Copying]:
    """The process that copies a run, on one core, as the launcher starts it (slipway/launch/companions/copies.py)."""
    node = node_folder(run, 0)
    node.mkdir(parents=True, exist_ok=True)
    (run / RUN_FILE).write_text(json.dumps({"workload": "gpt", "attempt": 1}))
    options = {"url": address, "limit": limit, "parallel": 4}
    command = [sys.executable, "-P", "-u", "-m", "slipway.store.copier", json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, **environ}
    ) as process:
        assert process.stdin
        os.sched_setaffinity(process.pid, core)
        about = {"run": "run", "attempt": 1, "path": str(run), "node": str(node), "ranks": [0], "keep": 1}
        process.stdin.write(json.dumps({"do": "copy", **about}).encode() + b"\n")
        process.stdin.flush()
        try:
            yield Copying(process, run)
        finally:
            process.kill()


@contextmanager
def serve(folder: Path, core: list[int], volumes: int) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a store, and the variables that lead to it: a server with so many `volumes` on a core, with 0 a folder."""
    (folder / "store").mkdir()
    if not volumes:
        yield f"file://{folder}/store", {}
        return
    tests = Path(__file__).parents[1] / "tests"
    sys.path[:0] = [str(tests), str(tests / "launch")]
    from s3_server import serve_s3, variables

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)  # which the server inherits
    with serve_s3(folder / "store", volumes) as port:
        os.sched_setaffinity(0, before)
        yield "s3://test/bench", variables(port)


if __name__ == "__main__":
    sys.exit(main())
