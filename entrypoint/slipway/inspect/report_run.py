"""What a run's directory holds for people, read with patience: files may be torn, damaged or missing."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.protocol.files import (
    ALLREDUCE_FILE,
    CHARTS,
    COMPARISON_FILE,
    METRICS_FILE,
    OPTIONS_FILE,
    RUN_FILE,
    read_json,
    read_run_text,
)
from slipway.train.measure.plots import Point

LARGEST = sys.float_info.max  # JSON knows larger numbers, and NaN, which is no more than anything
RECORDS = (RUN_FILE, OPTIONS_FILE, METRICS_FILE, ALLREDUCE_FILE, COMPARISON_FILE)  # a folder with any of these is a run


@dataclass(frozen=True)
class Tried:
    """An attempt: where and how it ended, when (as text), and the step of the newest snapshot it left."""

    number: str
    place: str
    evidence: str
    when: str
    snapshot: str


@dataclass(frozen=True)
class RunEnding:
    """How a run stands or ended, as the launcher tells it: one word for it, the rest as label and text; and the `seconds` that it
    spent on each kind of thing.
    """

    state: str
    good: bool = True
    facts: tuple[tuple[str, str], ...] = ()
    tries: tuple[Tried, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricCurves:
    """The curves of a run by name; `first` and `last` are Unix seconds, `damaged` counts lines that make no sense."""

    curves: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    damaged: int = 0

    @property
    def steps(self) -> int:
        """The last step that anything is known of."""
        return int(max((points[-1][0] for points in self.curves.values()), default=0))


@dataclass(frozen=True)
class Record:
    """Everything about one run that the page shows. `pictures` are PNG files by name."""

    path: Path
    name: str
    about: Mapping[str, Any]
    ending: RunEnding
    options: Mapping[str, Any]
    metrics: MetricCurves
    allreduce: Mapping[str, Any]
    comparison: Mapping[str, Any]
    texts: Mapping[str, str]
    pictures: Mapping[str, bytes]

    @property
    def workload(self) -> str:
        """What was trained."""
        return str(self.about.get("workload") or self.options.get("workload") or "a run")

    @property
    def sources(self) -> Mapping[str, str]:
        """Where each option came from."""
        sources = self.options.get("sources")
        return sources if isinstance(sources, dict) else {}


def read_run(path: Path, ending: RunEnding) -> Record:
    """Read a run's directory; `ending` is the launcher's to tell."""
    texts, pictures = read_charts(path / CHARTS)
    return Record(
        path, path.name, read_json(path / RUN_FILE), ending, read_json(path / OPTIONS_FILE), read_metrics(path / METRICS_FILE),
        read_json(path / ALLREDUCE_FILE), read_json(path / COMPARISON_FILE), texts, pictures,
    )  # fmt: skip


def read_metrics(path: Path) -> MetricCurves:
    """The curves in a metrics file. Lines that are torn or make no sense are counted, values that are no numbers left out."""
    curves: dict[str, dict[float, float]] = {}
    times, damaged = [], 0
    try:
        lines = read_run_text(path).splitlines()
    except OSError:
        return MetricCurves()
    for text in lines:
        try:
            line = json.loads(text)
            step, now = int(line["step"]), float(line["time"])
            if not is_number(now) or not is_number(step):
                raise ValueError
        except (ValueError, KeyError, TypeError, OverflowError):
            damaged += 1
            continue
        times.append(now)
        for name, value in line.items():
            if name not in ("time", "step") and is_number(value):
                curves.setdefault(str(name), {})[step] = float(value)
    points = {name: tuple(sorted(places.items())) for name, places in curves.items()}
    return MetricCurves(points, min(times, default=None), max(times, default=None), damaged)


def is_number(value: object) -> bool:
    """Whether a JSON value can be a point of a curve."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def read_charts(folder: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """The newest of each text and picture that the run left for TensorBoard; nothing where that cannot be read."""
    if not folder.is_dir():
        return {}, {}
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        newest = {"scalars": 1, "images": 1, "tensors": 1, "histograms": 1, "compressedHistograms": 1}
        charts = EventAccumulator(str(folder), size_guidance=newest)
        with restarts_expected():
            charts.Reload()
        texts = {
            name: b"".join(charts.Tensors(name)[-1].tensor_proto.string_val).decode(errors="replace")
            for name in charts.Tags()["tensors"]
        }
        left = {name: charts.Images(name) for name in charts.Tags()["images"]}  # none where a restart took all back
        pictures = {name: images[-1].encoded_image_string for name, images in left.items() if images}
    except Exception:  # event files may be damaged in any way, and a page without a sample is still a page
        return {}, {}
    # The text was set as code in Markdown, with four spaces in front of each line.
    return {name: re.sub(r"(?m)^ {4}", "", text) for name, text in texts.items()}, pictures


@contextmanager
def restarts_expected() -> Iterator[None]:
    """Keep TensorBoard from warning that a restart takes points back, which Charts asks it to; all else it says comes out."""

    def is_news(record: logging.LogRecord) -> bool:
        return "out of order event.step" not in record.getMessage()

    logger = logging.getLogger("tensorboard")  # as in tensorboard.util.tb_logging
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)
