"""What a run's directory holds for people, read with patience: files may be torn, damaged or missing."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from slipway.inspect.status import Status, read_status
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.records import NodeEnd, RunRecord, TriedRecord
from slipway.launch.verdict.block import ENDINGS, heading
from slipway.launch.verdict.ledger import KINDS, waiting_texts
from slipway.protocol.files import (
    ALLREDUCE_FILE,
    CHARTS,
    COMPARISON_FILE,
    METRICS_FILE,
    OPTIONS_FILE,
    RUN_FILE,
)
from slipway.protocol.outcomes import GOOD
from slipway.protocol.printable import utc
from slipway.train.measure.plots import Point

NONE = "–"
LARGEST = sys.float_info.max  # JSON knows larger numbers, and NaN, which is no more than anything
RECORDS = (RUN_FILE, OPTIONS_FILE, METRICS_FILE, ALLREDUCE_FILE, COMPARISON_FILE)  # a folder with any of these is a run


@dataclass(frozen=True)
class RunEnding:
    """How a run is going or ended, as the launcher reports it: one word for it, the rest as label and text; a row of cells for
    each attempt: its number, where and how it ended, when, and the step of the newest snapshot it left; and the `seconds` that
    the run spent on each kind of thing.
    """

    state: str
    good: bool = True
    facts: tuple[tuple[str, str], ...] = ()
    tries: tuple[tuple[str, ...], ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricCurves:
    """The curves of a run by name; `first` and `last` are Unix seconds, `damaged` counts lines that make no sense, `unread`
    says why there are none.
    """

    curves: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    damaged: int = 0
    unread: str = ""

    @property
    def steps(self) -> int:
        """The last step that anything is known of."""
        return int(max((points[-1][0] for points in self.curves.values()), default=0))


@dataclass(frozen=True)
class Record:
    """Everything about one run that the page shows. `pictures` are PNG files by name."""

    path: Path
    name: str
    about: RunRecord
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
        return str(self.about.workload or self.options.get("workload") or "a run")

    @property
    def sources(self) -> Mapping[str, str]:
        """Where each option came from."""
        sources = self.options.get("sources")
        return sources if isinstance(sources, dict) else {}


def read_run(path: Path) -> Record:
    """Read a run's directory."""
    run, (texts, pictures) = RunDirectory(path), read_charts(path / CHARTS)
    ending = describe_ending(read_status(path))
    return Record(
        path, path.name, run.record, ending, run.content(OPTIONS_FILE), read_curves(run), run.content(ALLREDUCE_FILE),
        run.content(COMPARISON_FILE), texts, pictures,
    )  # fmt: skip


def describe_ending(status: Status) -> RunEnding:
    """How a run is going or ended, in words for a page."""
    outcome, first = status.outcome, status.outcome.first
    tries = tuple(_tried(tried) for tried in outcome.attempts)
    seconds = {kind.value: status.ledger[kind] for kind in KINDS if status.ledger[kind]} if status.ledger else {}
    lost = waiting_texts(status.ledger) if status.ledger else []
    differed = [difference.sentence for difference in status.differences]
    seen = [(label, "; ".join(texts)) for label, texts in (("lost time", lost), ("replicas", differed)) if texts]
    if status.alive:
        running = [("running", holder.text) for holder in status.holders[:1]]
        return RunEnding("running", facts=(*running, *seen), seconds=seconds)
    if outcome.word not in ENDINGS or first is None:
        return RunEnding("without a verdict", status.record == RunRecord(), tuple(seen), tries, seconds)
    facts = [
        ("verdict", first.evidence or NONE),
        ("where", first.place),
        ("ended", _when(first)),
        ("stacks", "\n".join(first.stacks)),
        ("what to do", first.advice.replace("`", "")),
        ("exit code", NONE if outcome.code is None else str(outcome.code)),
        ("no restart", outcome.no_restart),
        *seen,
    ]
    said = tuple((label, text) for label, text in facts if text)
    return RunEnding(heading(outcome.word, first.cause), outcome.word in GOOD, said, tries, seconds)


def _tried(tried: TriedRecord) -> tuple[str, ...]:
    end = tried.outcome
    called = heading(end.word, end.cause) if end.word in ENDINGS else "unknown"
    after = NONE if tried.after is None else str(tried.after)
    return str(tried.number or NONE), end.place, f"{called}: {end.evidence or NONE}", _when(end), after


def _when(end: NodeEnd) -> str:
    return NONE if end.time is None else utc(end.time)


def read_curves(run: RunDirectory) -> MetricCurves:
    """The curves of a run. Lines that cannot be read are counted and skipped; values that are no numbers are skipped."""
    curves: dict[str, dict[float, float]] = {}
    times, damaged = [], 0
    try:
        for line in run.metrics():
            if line is None or not is_number(step := line.get("step")) or not is_number(now := line.get("time")):
                damaged += 1
                continue
            times.append(float(now))
            for name, value in line.items():
                if name not in ("time", "step") and is_number(value):
                    curves.setdefault(str(name), {})[int(step)] = float(value)
    except FileNotFoundError:
        return MetricCurves()
    except OSError as error:
        return MetricCurves(unread=f"{error.filename} {error.strerror}")
    points = {name: tuple(sorted(places.items())) for name, places in curves.items()}
    return MetricCurves(points, min(times, default=None), max(times, default=None), damaged)


def is_number(value: Any) -> TypeGuard[float]:
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
