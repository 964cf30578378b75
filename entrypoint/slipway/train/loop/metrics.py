"""What a run reports: `options.json` and `metrics.jsonl` for programs, TensorBoard charts, and progress lines or a bar.

`tensorboard --logdir runs` shows every run under its own name.
"""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from slipway.options import Options
from slipway.protocol.durable import replace_file
from slipway.protocol.files import OPTIONS_FILE, append_to_run_file, read_run_text
from slipway.protocol.marks import LOG_ALONE


def write_options(run: Path, workload: str, options: Options, **decided: Any) -> None:
    """Write the options to `options.json` as they were resolved, with what was `decided` since. Raises OSError."""
    values = {"workload": workload, **options.values(), **decided, "sources": dict(options.sources)}
    replace_file(run / OPTIONS_FILE, json.dumps(values, indent=1))


def keep_metrics(path: Path, step: int) -> None:
    """Drop lines after `step` from a metrics file: training resumes there and takes those steps again."""
    if not path.exists():
        return
    kept = [line for line, values in stored_metrics(path) if values["step"] <= step]
    replace_file(path, "".join(f"{line}\n" for line in kept))


def read_evaluation(path: Path, step: int) -> dict[str, float]:
    """Return the newest evaluation results up to `step` in a metrics file, with their `step`; empty if there are none."""
    newest: dict[str, float] = {}
    for _, values in stored_metrics(path) if path.exists() else []:
        if "val_loss" in values and newest.get("step", 0) <= values["step"] <= step:
            newest = {name: value for name, value in values.items() if name != "time"}
    return newest


def stored_metrics(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line of a metrics file and its values, without lines that a crash left incomplete."""
    for line in read_run_text(path).splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            yield line, values


class MetricsFile:
    """Writes JSON lines, each with `time` (Unix seconds) and `step`, and the same values to `charts`; either may be None."""

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
        """Add a text to the charts only."""
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


class Charts:
    """Writes TensorBoard charts to a new event file in `folder`; points of earlier starts after `step` are dropped.

    Raises nothing: without tensorboard or with a full disk it warns once, and training continues without charts.
    """

    def __init__(self, folder: Path, step: int, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._records: Any = None
        with self._or_without():
            # Imported here because only rank 0 needs it. The package's own writer has a thread, whose errors cannot be caught.
            from tensorboard.summary.writer.record_writer import RecordWriter

            folder.mkdir(exist_ok=True)
            self._records = RecordWriter(os.fdopen(append_to_run_file(new_file(folder)), "ab"))
            self._add(file_version="brain.Event:2")
            self._add(
                step=step + 1, session_log={"status": "START"}
            )  # readers drop earlier points of this and later steps

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each value's chart."""
        with self._or_without():
            # In the form of torch's SummaryWriter; readers do not drop points that are stored as tensors.
            points = [{"tag": tag(name), "simple_value": value} for name, value in values.items()]
            self._add(step=step, summary={"value": points})

    def write_text(self, step: int, name: str, text: str) -> None:
        """Add a text, shown without formatting."""
        with self._or_without():
            from tensorboard.plugins.text.summary_v2 import text_pb

            indented = text.replace("\n", "\n    ")  # a code block in Markdown: shown without formatting
            self._add(step=step, summary=text_pb(name, f"    {indented}"))

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        """Add a picture, uint8 of shape (3, height, width)."""
        with self._or_without():
            from PIL import Image

            png = io.BytesIO()
            Image.fromarray(picture.permute(1, 2, 0).cpu().numpy()).save(png, "PNG")
            _, height, width = picture.shape
            image = {"height": height, "width": width, "colorspace": 3, "encoded_image_string": png.getvalue()}
            self._add(step=step, summary={"value": [{"tag": name, "image": image}]})

    def close(self) -> None:
        """Close the file."""
        if self._records:
            with suppress(OSError):
                self._records.close()

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        if self._records:
            self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
            self._records.flush()

    @contextmanager
    def _or_without(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a broken installation may raise anything; training must not end because of charts
            self.close()
            self._records = None
            self._warn(
                f"warning: no charts for TensorBoard from here on ({type(error).__name__}: {error}); training goes on, "
                "and metrics.jsonl has the same numbers"
            )


def new_file(folder: Path) -> Path:
    """Return a name for an event file that sorts after those in `folder`, whatever the clock says: readers use that order."""
    names = [path.name.split(".") for path in folder.glob("events.out.tfevents.*")]
    last = max((int(parts[3]) for parts in names if parts[3].isdigit()), default=0)
    number = max(int(time.time()), last + 1)
    return folder / f"events.out.tfevents.{number:010d}.{socket.gethostname()}.{os.getpid()}"


TRAINING = frozenset({"loss", "lr", "grad_norm", "epoch", "skipped", "mfu"})


def tag(name: str) -> str:
    """Return a metric's name in TensorBoard: `train/loss`, `val/loss`, `throughput/tokens_per_second`, `memory/peak_gib`."""
    if name in TRAINING:
        return f"train/{name}"
    if name.endswith("_per_second"):
        return f"throughput/{name}"
    if name.startswith("memory_"):
        return f"memory/{name.removeprefix('memory_')}"
    return f"val/{name.removeprefix('val_')}"


# The launcher cuts the line at the terminal's width, so the most important parts come first.
BAR = "{percentage:3.0f}% |{bar:12}| {n_fmt}/{total_fmt}  {remaining} left{postfix}"
SHOWN = 5  # lines per run that a terminal shows above the bar,
UNSEEN = 600.0  # and seconds after which it shows another one anyway


class Progress:
    """Prints lines with loss, throughput and time left, and on a terminal a bar.

    Above a bar only one line per fifth of the run or per ten minutes is shown; the others go only to the log.
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
        """Measure throughput from here: what happened since was not training."""
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
        if self._speaks:
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
