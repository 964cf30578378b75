"""What a run shows people (lines or a bar), and what is done with its files when it resumes."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from slipway.options import Options
from slipway.protocol.durable import replace_file
from slipway.protocol.files import OPTIONS_FILE, read_metrics
from slipway.protocol.marks import LOG_ALONE


def write_options(run: Path, workload: str, options: Options, **decided: Any) -> None:
    """Write the options to `options.json` as they were resolved, with what was `decided` since. Raises OSError."""
    values = {"workload": workload, **options.values(), **decided, "sources": dict(options.sources)}
    replace_file(run / OPTIONS_FILE, json.dumps(values, indent=1))


def keep_metrics(path: Path, step: int) -> None:
    """Drop lines after `step` from a metrics file: training resumes there and takes those steps again."""
    if not path.exists():
        return
    kept = [line for line, values in read_metrics(path) if values["step"] <= step]
    replace_file(path, "".join(f"{line}\n" for line in kept))


def keep_first_metrics(path: Path, count: int) -> int:
    """Drop all lines of a metrics file but the first `count`. Returns how many there are then."""
    if not path.exists():
        return 0
    kept = [line for line, _ in read_metrics(path)][:count]
    replace_file(path, "".join(f"{line}\n" for line in kept))
    return len(kept)


def read_evaluation(path: Path, step: int) -> dict[str, float]:
    """Return the newest evaluation results up to `step` in a metrics file, with their `step`; empty if there are none."""
    newest: dict[str, float] = {}
    for _, values in read_metrics(path) if path.exists() else []:
        if "val_loss" in values and newest.get("step", 0) <= values["step"] <= step:
            newest = {name: value for name, value in values.items() if name != "time"}
    return newest


# The launcher cuts the line at the terminal's width, so the most important parts come first.
BAR = "{percentage:3.0f}% |{bar:12}| {n_fmt}/{total_fmt}  {remaining} left{postfix}"
SHOWN = 5  # lines per run that a terminal shows above the bar,
UNSEEN = 600.0  # and seconds after which it shows another one anyway


class Progress:
    """Prints lines with loss, throughput and time left, and on a terminal a bar.

    Above a bar only one line per fifth of the run or per ten minutes is shown; the others go only to the log.
    """

    def __init__(self, total: int, step: int, is_local_leader: bool, bar: bool, unit: str, units_per_step: int) -> None:
        """Begin at `step` of `total`, each worth `units_per_step` of `unit` (as in `tokens`)."""
        self._total = total
        self._is_local_leader = is_local_leader
        self._unit = unit
        self._units_per_step = units_per_step
        self._bar = tqdm(total=total, initial=step, bar_format=BAR, leave=False) if bar else None
        self._shown = (step, time.perf_counter())
        self.restart(step)

    def restart(self, step: int) -> None:
        """Measure throughput from here: what happened since was not training."""
        self._since = (step, time.perf_counter())

    def advance(self) -> None:
        """Move the bar by a step."""
        if self._bar is not None:
            self._bar.update()

    def begin(self, step: int, every: int) -> None:
        """Without a bar, show that the first step is done: the first line with a loss may come minutes later."""
        if self._bar is None:
            self.say(f"step {step}/{self._total}  done; a line with the loss comes every {every} steps")

    def speed(self, step: int) -> float:
        """Units per second since the last report or restart."""
        return self._rate(step) * self._units_per_step

    def _rate(self, step: int) -> float:
        return (step - self._since[0]) / max(time.perf_counter() - self._since[1], 1e-9)

    def report(self, step: int, loss: str, text: str) -> None:
        """Print the `loss`, the rest of the `text`, throughput and time left."""
        rate = self._rate(step)
        left = clock((self._total - step) / rate) if rate else "?"
        speed = f"{short(rate * self._units_per_step)} {self._unit}/s"
        if self._bar is not None:
            self._bar.set_postfix_str(f"{loss}  {speed}")
        self.say(f"step {step}/{self._total}  {loss}  {text}  {speed}  {left} left", everywhere=self._is_due(step))
        self.restart(step)

    def _is_due(self, step: int) -> bool:
        since, when = self._shown
        due = self._bar is None or (step - since) * SHOWN >= self._total or time.perf_counter() - when >= UNSEEN
        if due:
            self._shown = (step, time.perf_counter())
        return due

    def say(self, text: str, *, everywhere: bool = True) -> None:
        """Print a line. The launcher shows it above the bar, or writes it only to the log unless `everywhere`."""
        if self._is_local_leader:
            print(f"{'' if everywhere else LOG_ALONE.decode()}{text}", flush=True)

    def close(self) -> None:
        """Remove the bar: the last line has the same information."""
        if self._bar is not None:
            self._bar.close()


def peak_memory(device: torch.device) -> float:
    """Return this process's peak memory so far in GiB: of its GPU, or of the host if it has none."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts KiB


def clock(seconds: float) -> str:
    """Format a duration: 0:42, 1:07:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def short(number: float) -> str:
    """Format a number with three digits and a unit prefix: 950, 55.3k, 1.21M."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{prefix}"
    return f"{number:.3g}"
