"""Charts for TensorBoard beside `metrics.jsonl`; `tensorboard --logdir runs` shows every run under its own name."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from slipway.protocol.files import append_to_run_file

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


class Charts:
    """A new event file in `folder` for this start; points of earlier starts after `step` are taken back.

    Nothing is raised: without tensorboard or with a full disk it warns once, and training goes on without charts.
    """

    def __init__(self, folder: Path, step: int, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._records: Any = None
        with self._or_without():
            # Loaded here, on rank 0 alone. The package's own writer has a thread, whose errors nobody could catch.
            from tensorboard.summary.writer.record_writer import RecordWriter

            folder.mkdir(exist_ok=True)
            self._records = RecordWriter(os.fdopen(append_to_run_file(new_file(folder)), "ab"))
            self._add(file_version="brain.Event:2")
            self._add(step=step + 1, session_log={"status": "START"})  # readers drop what has this step or a later one

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to the chart of each value."""
        with self._or_without():
            # As torch's SummaryWriter has them; readers do not take back points that are stored as tensors.
            points = [{"tag": tag(name), "simple_value": value} for name, value in values.items()]
            self._add(step=step, summary={"value": points})

    def write_text(self, step: int, name: str, text: str) -> None:
        """Add a text, shown as it stands."""
        with self._or_without():
            from tensorboard.plugins.text.summary_v2 import text_pb

            indented = text.replace("\n", "\n    ")  # Markdown's way to say that it is no Markdown
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
        except Exception as error:  # a broken installation may raise anything, and charts must not end a training
            self.close()
            self._records = None
            self._warn(
                f"warning: no charts for TensorBoard from here on ({type(error).__name__}: {error}); training goes on, "
                "and metrics.jsonl has the same numbers"
            )


def new_file(folder: Path) -> Path:
    """An event file's name that sorts behind those in `folder`, whatever the clock says: readers go by that order."""
    names = [path.name.split(".") for path in folder.glob("events.out.tfevents.*")]
    last = max((int(parts[3]) for parts in names if parts[3].isdigit()), default=0)
    number = max(int(time.time()), last + 1)
    return folder / f"events.out.tfevents.{number:010d}.{socket.gethostname()}.{os.getpid()}"
