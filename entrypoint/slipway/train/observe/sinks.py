"""Where a run's metrics go: a list of sinks, to each of which `fit` writes the same numbers.

`metrics.jsonl` is always there, and a disk that cannot take it ends the training. All others are optional: one that fails is
reported once and left out from then on, and the training continues.

To add a service: a class like `Sink`, as `Mlflow` in `train/observe/mlflow_run.py`; a line in `SERVICES` in
`options/common.py`, whose key is what users type and the name of the package; mypy's list of packages without types in
pyproject.toml; tests in `tests/train/test_sinks.py`; docs/monitoring.md, and docs/cli.md generated again. If its package prints
lines at the end of a program, `_FOLLOWS` in `protocol/tracebacks.py` has to know them. The progress line
(`train/loop/metrics.py`) and Prometheus (`launch/companions/metrics.py`) are no sinks.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from slipway.options.common import SERVICES
from slipway.protocol.durable import named
from slipway.protocol.files import CHARTS, METRICS_FILE, append_to_run_file

TRAINING = frozenset({"loss", "lr", "grad_norm", "epoch", "skipped", "mfu"})


def tag(name: str) -> str:
    """Where TensorBoard shows a metric: `train/loss`, `val/loss`, `throughput/tokens_per_second`, `memory/peak_gib`."""
    if name in TRAINING:
        return f"train/{name}"
    if name.endswith("_per_second"):
        return f"throughput/{name}"
    if name.startswith("memory_"):
        return f"memory/{name.removeprefix('memory_')}"
    return f"val/{name.removeprefix('val_')}"


class Sink(Protocol):
    """What takes the metrics of a run. Every method may raise; see Sinks."""

    name: str
    where: str  # the address of a page that shows them; empty where there is none

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step."""

    def write_text(self, step: int, name: str, text: str) -> None:
        """Take a text, as it is."""

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        """Take a picture, uint8 of shape (3, height, width)."""

    def close(self) -> None:
        """Finish."""


class Sinks:
    """`metrics.jsonl` and the optional sinks of a run; nothing where rank 0 is another process."""

    def __init__(
        self, file: Path | None, openers: Sequence[tuple[str, Callable[[], Sink]]], say: Callable[[str], None]
    ) -> None:
        """Append to `file`, and open the others, each with its name. Raises OSError for the file alone."""
        self._path = file
        self._file = os.fdopen(append_to_run_file(file), "a", buffering=1) if file else None
        self._say = say
        self._others: list[Sink] = []
        for name, make in openers:
            self._try(name, lambda make=make: self._others.append(make()))  # type: ignore[misc]
        for sink in self._others:
            if sink.where:
                say(f"metrics in {sink.name}: {sink.where}")

    def write(self, step: int, **values: float) -> None:
        """Add the values of a step, with `time` (Unix seconds) and `step` in the file. Raises OSError for the file."""
        if self._file and self._path:
            with named(self._path):
                self._file.write(json.dumps({"time": round(time.time(), 3), "step": step, **values}) + "\n")
        self._each(lambda sink: sink.write(step, values))

    def write_text(self, step: int, name: str, text: str) -> None:
        """Add a text, which is no metric and not in the file."""
        self._each(lambda sink: sink.write_text(step, name, text))

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        """Add a picture, uint8 of shape (3, height, width), which is not in the file."""
        self._each(lambda sink: sink.write_picture(step, name, picture))

    def close(self) -> None:
        """Close all."""
        if self._file:
            self._file.close()
        self._each(lambda sink: sink.close())

    def _each(self, act: Callable[[Sink], None]) -> None:
        for sink in tuple(self._others):
            if not self._try(sink.name, lambda sink=sink: act(sink)):  # type: ignore[misc]
                self._others.remove(sink)
                with suppress(Exception):
                    sink.close()

    def _try(self, name: str, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:  # a broken installation or a server may raise anything
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self._say(
                f"warning: no more metrics for {name} ({why}); training continues, and metrics.jsonl has the same numbers"
            )
            return False
        return True


class Charts:
    """TensorBoard: a new event file in `folder` for this start; points of earlier starts after `step` are taken back."""

    name, where = "TensorBoard", ""

    def __init__(self, folder: Path, step: int) -> None:
        # The package's own writer has a thread, whose errors nobody could catch.
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        self._records = RecordWriter(os.fdopen(append_to_run_file(new_file(folder)), "ab"))
        try:
            self._add(file_version="brain.Event:2")
            self._add(step=step + 1, session_log={"status": "START"})  # readers drop what has this step or a later one
        except BaseException:
            with suppress(OSError):
                self.close()
            raise

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to the chart of each value."""
        # As torch's SummaryWriter has them; readers do not take back points that are stored as tensors.
        points = [{"tag": tag(name), "simple_value": value} for name, value in values.items()]
        self._add(step=step, summary={"value": points})

    def write_text(self, step: int, name: str, text: str) -> None:
        """Add a text, shown as it stands."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        indented = text.replace("\n", "\n    ")  # Markdown's way to say that it is no Markdown
        self._add(step=step, summary=text_pb(name, f"    {indented}"))

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        """Add a picture, uint8 of shape (3, height, width)."""
        from PIL import Image

        png = io.BytesIO()
        Image.fromarray(picture.permute(1, 2, 0).cpu().numpy()).save(png, "PNG")
        _, height, width = picture.shape
        image = {"height": height, "width": width, "colorspace": 3, "encoded_image_string": png.getvalue()}
        self._add(step=step, summary={"value": [{"tag": name, "image": image}]})

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


def new_file(folder: Path) -> Path:
    """An event file's name that sorts behind those in `folder`, whatever the clock says: readers go by that order."""
    names = [path.name.split(".") for path in folder.glob("events.out.tfevents.*")]
    last = max((int(parts[3]) for parts in names if parts[3].isdigit()), default=0)
    number = max(int(time.time()), last + 1)
    return folder / f"events.out.tfevents.{number:010d}.{socket.gethostname()}.{os.getpid()}"


def open_sinks(
    run: Path | None, step: int, log_to: str, options: Mapping[str, Any], say: Callable[[str], None]
) -> Sinks:
    """The sinks of a run whose training begins at `step`; `run` is None on all ranks but 0. Raises OSError for metrics.jsonl.

    `log_to` names services as `--log-to` does, and `options` is what they show as the run's configuration.
    """
    if run is None:
        return Sinks(None, (), say)
    openers: list[tuple[str, Callable[[], Sink]]] = [(Charts.name, lambda: Charts(run / CHARTS, step))]
    for service in filter(None, log_to.split(",")):
        openers.append((service, lambda service=service: _open_service(service, run, options)))  # type: ignore[misc]
    return Sinks(run / METRICS_FILE, openers, say)


def _open_service(service: str, run: Path, options: Mapping[str, Any]) -> Sink:
    name, module = SERVICES[service]
    sink: Sink = getattr(importlib.import_module(module), name)(run, options)
    return sink
