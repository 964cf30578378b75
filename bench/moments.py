"""When a start came how far: what its processes noted (traced/sitecustomize.py), and what the workload leaves.

That is Slipway's run directory, or what the plain loop (steps.py) prints. One machine, so one clock.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKS, SAID = "marks", "said"  # in a node's folder: what its processes note, and what they print

# What a start comes to, in this order; of several processes and nodes the last one counts.
MOMENTS = {
    "first Python": "the first Python runs",
    "torchrun": "torchrun's Python runs",
    "torchrun has torch": "  which has imported torch",
    "worker": "the workers' Pythons run",
    "worker has torch": "  which have imported torch",
    "imported": "  and all that stands at the top of the program",
    "ready": "group, data, model and DDP are there",
    "stepped": "the first training step is done",
}


@dataclass(frozen=True)
class Start:
    """A start that was seen through: seconds from its beginning to each moment, CPU seconds to its end, the first loss."""

    moments: Mapping[str, float]
    cpu: float
    loss: float


def read_start(folders: Sequence[Path], began: float) -> Start:
    """What the nodes left in their folders. Node 0's rank 0 tells of the training."""
    moments: dict[str, float] = {}
    cpu = 0.0
    for folder in folders:
        marks = [line.split(" ", 2) for line in (folder / MARKS).read_text().splitlines()]
        cpu += max(float(used) for _, used, _ in marks)  # the first process of all counts those that it waited for
        for what in {what for _, _, what in marks}:
            times = [float(when) for when, _, mark in marks if mark == what]
            moments[what] = max(moments.get(what, 0.0), min(times) if what == "first Python" else max(times))
    runs = list(folders[0].glob("*/run.json"))
    told, loss = read_run(runs[0].parent, folders) if runs else read_lines(folders[0] / SAID)
    moments |= told
    return Start({name: moments[name] - began for name in MOMENTS}, cpu, loss)


def read_run(run: Path, folders: Sequence[Path]) -> tuple[dict[str, float], float]:
    """The moments and the first loss that a run directory tells of: its files are written once, when they are due."""
    joining = [file.stat().st_mtime for folder in folders for file in folder.glob("*/node-*/honours-stop")]
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    ready = (run / "options.json").stat().st_mtime
    return {"imported": max(joining), "ready": ready, "stepped": first["time"]}, first["loss"]


def read_lines(file: Path) -> tuple[dict[str, float], float]:
    """The same of the lines that steps.py prints."""
    lines = [line.split() for line in file.read_text(errors="replace").splitlines() if line.startswith("moment ")]
    loss = next(float(line[3]) for line in lines if line[2] == "loss")
    return {line[2]: float(line[1]) for line in lines}, loss
