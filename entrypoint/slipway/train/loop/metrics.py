"""What a run leaves for machines (`metrics.jsonl`) and what it shows people (lines or a progress bar)."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from slipway.options import Options
from slipway.protocol.durable import replace_file
from slipway.protocol.files import OPTIONS_FILE, append_to_run_file, read_run_text
from slipway.protocol.marks import LOG_ALONE
from slipway.train.loop.charts import Charts

# The launcher cuts it at the terminal's width: what matters most comes first.
BAR = "{percentage:3.0f}% |{bar:12}| {n_fmt}/{total_fmt}  {remaining} left{postfix}"
SHOWN = 5  # lines of a whole run that a terminal shows above the bar,
UNSEEN = 600.0  # seconds after which it shows one anyway


def write_options(run: Path, workload: str, options: Options, **decided: Any) -> None:
    """Write to `options.json` the options as they were resolved, or `decided` since. Raises OSError."""
    values = {"workload": workload, **options.values(), **decided, "sources": dict(options.sources)}
    replace_file(run / OPTIONS_FILE, json.dumps(values, indent=1))


def keep_metrics(path: Path, step: int) -> None:
    """Drop from a metrics file what lies after `step`, where training goes on: those steps will be taken again."""
    if not path.exists():
        return
    kept = []
    for line in read_run_text(path).splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # torn by a crash while it was written
    replace_file(path, "".join(f"{line}\n" for line in kept))


def read_evaluation(path: Path, step: int) -> dict[str, float]:
    """The newest results in a metrics file up to `step`, with the `step` they belong to; empty without any."""
    newest: dict[str, float] = {}
    for line in read_run_text(path).splitlines() if path.exists() else []:
        try:
            values = json.loads(line)
        except ValueError:
            continue  # torn by a crash while it was written
        if "val_loss" in values and newest.get("step", 0) <= values["step"] <= step:
            newest = {name: value for name, value in values.items() if name != "time"}
    return newest


class MetricsFile:
    """JSON lines, each with `time` (Unix seconds) and `step`, and the same in `charts`; nothing where they are None."""

    def __init__(self, path: Path | None, charts: Charts | None) -> None:
        """Append to `path`. Raises OSError."""
        self._file = os.fdopen(append_to_run_file(path), "a", buffering=1) if path else None
        self._charts = charts

    def write(self, step: int, **values: float) -> None:
        """Add a line. Raises OSError."""
        if self._file:
            self._file.write(json.dumps({"time": round(time.time(), 3), "step": step, **values}) + "\n")
        if self._charts:
            self._charts.write(step, values)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Add a text to the charts; it is no metric."""
        if self._charts:
            self._charts.write_text(step, name, text)

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        """Add a picture, uint8 of shape (3, height, width), to the charts."""
        if self._charts:
            self._charts.write_picture(step, name, picture)

    def close(self) -> None:
        """Close the files."""
        if self._file:
            self._file.close()
        if self._charts:
            self._charts.close()


class Progress:
    """Lines with loss, throughput and time left. On a terminal a bar below them, and of the lines every fifth of the run one,
    or one in ten minutes; the others are in the log alone.
    """

    def __init__(self, total: int, step: int, speaks: bool, bar: bool, unit: str, units_per_step: int) -> None:
        """Begin at `step` of `total`, each worth `units_per_step` of `unit` (as in `tokens`)."""
        self._total = total
        self._speaks = speaks
        self._unit = unit
        self._units_per_step = units_per_step
        self._bar = tqdm(total=total, initial=step, bar_format=BAR, leave=False) if bar else None
        self._shown = (step, time.perf_counter())
        self.restart(step)

    def restart(self, step: int) -> None:
        """Measure throughput from here on: what just happened was not training."""
        self._since = (step, time.perf_counter())

    def advance(self) -> None:
        """Move the bar by a step."""
        if self._bar is not None:
            self._bar.update()

    def speed(self, step: int) -> float:
        """Units per second since the last report or restart."""
        return self._rate(step) * self._units_per_step

    def _rate(self, step: int) -> float:
        return (step - self._since[0]) / max(time.perf_counter() - self._since[1], 1e-9)

    def report(self, step: int, loss: str, text: str) -> None:
        """Print where training stands: the `loss`, behind it what else there is to say."""
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
        """Print a line, which the launcher shows above the bar, or puts into the log alone."""
        if self._speaks:
            print(f"{'' if everywhere else LOG_ALONE.decode()}{text}", flush=True)

    def close(self) -> None:
        """Take the bar away: the last line says the same."""
        if self._bar is not None:
            self._bar.close()


def peak_memory(device: torch.device) -> float:
    """The most memory that this process has had so far, in GiB: of its GPU, or where it has none of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts KiB


def clock(seconds: float) -> str:
    """A duration as people write it: 0:42, 1:07:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def short(number: float) -> str:
    """A number with three digits and a unit prefix: 950, 55.3k, 1.21M."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{prefix}"
    return f"{number:.3g}"
