"""The page of `slipway report`: everything read about the runs, laid out and written."""

from __future__ import annotations

import base64
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from slipway import __version__
from slipway.inspect import report_tables
from slipway.inspect.report_run import Record
from slipway.inspect.report_tables import measurements, plots, remarks
from slipway.protocol.durable import replace_file
from slipway.protocol.files import open_regular
from slipway.train.measure.plots import COLOURS, PLOT_CSS, SERIES, Axis, Curve, comparison_rows, draw

GENERATOR = "slipway report"


class NotOursError(Exception):
    """There is a file where the page belongs, and it is not one of our pages."""


def make_page(runs: Sequence[Record]) -> str:
    """The page about `runs` (at least one), as HTML that refers to nothing outside itself."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = tell_apart(runs)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    measured = [run for run in runs if measurements(run)]
    style, template = (read_template(f"report.{kind}") for kind in ("css", "html"))
    return environment.from_string(template).render(
        runs=runs,
        generator=f"{GENERATOR} {__version__}",
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        style=Markup(style + PLOT_CSS + switches(len(runs))),  # noqa: S704  # ours
        colours=[f"var(--c{number}, {colour})" for number, colour in enumerate(COLOURS)],
        overview=report_tables.overview(runs),
        curves=[Markup(picture) for picture in curves(runs)],  # noqa: S704  # made by an XML library, which escapes
        results=report_tables.last_values(runs),
        throughput=report_tables.throughput(runs),
        comparison=comparison_rows,
        missing_curves=report_tables.missing_curves,
        measured=measured,
        bandwidth=[Markup(picture) for picture in plots(runs)],  # noqa: S704  # likewise
        remarks=remarks,
        rows=lambda run: [row.cells for row in measurements(run)],
        spending=spending,
        settings=report_tables.settings(runs),
        data=lambda picture: f"data:image/png;base64,{base64.b64encode(picture).decode()}",
    )


def read_template(name: str) -> str:
    """Return a file of slipway/templates; in a template every value is escaped."""
    return resources.files("slipway").joinpath("templates", name).read_text(encoding="utf-8")


def tell_apart(runs: Sequence[Record]) -> list[Record]:
    """The runs, those of the same name with the name of their folder in front."""
    count = Counter(run.name for run in runs)
    return [replace(run, name=f"{run.path.parent.name}/{run.name}") if count[run.name] > 1 else run for run in runs]


STEP = Axis("step", "{:,.0f}".format)
VALUE = Axis("", lambda value: f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}")


def curves(runs: Sequence[Record]) -> list[str]:
    """A chart for each metric that has a course, with a curve for each run that has it."""
    pictures = []
    for name in report_tables.metric_names(runs):
        found = [
            Curve(run.name, run.metrics.curves[name], number)
            for number, run in enumerate(runs)
            if name in run.metrics.curves
        ]
        if any(len(curve.points) > 1 for curve in found):
            pictures.append(draw(name, found, STEP, VALUE))
    return pictures


def switches(count: int) -> str:
    """The style that hides a run's curves where its box is not ticked; a page without scripts has to say it so."""
    return "\n".join(
        f"body:has(#show-{number}:not(:checked)) .runs .color-{number} {{ display: none }}"
        for number in range(min(count, SERIES))
    )


def write_page(path: Path, page: str) -> None:
    """Write the page, in one go, over an older one if there is any. Raises OSError, and NotOursError for another file."""
    if os.path.lexists(path) and not _is_page(path):
        raise NotOursError(f"{path} is not a page of `{GENERATOR}`, and is not overwritten.")
    replace_file(path, page)


def _is_page(path: Path) -> bool:
    """Whether such a page is there, and not a link, a pipe or a device in its place."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return f'content="{GENERATOR}'.encode() in file.read(1000)
    except OSError:
        return False


WIDTH = 1000  # of the bar


def spending(run: Record) -> list[tuple[str, ...]]:
    """Each part of the bar of a run's time, in the order of the ledger: its fill, where it begins and how wide it is; and in words
    what the time went into, how long that took, and its share.
    """
    whole, at = sum(run.ending.seconds.values()), 0.0
    parts: list[tuple[str, ...]] = []
    for (kind, seconds), fill in zip(run.ending.seconds.items(), fills(), strict=False):
        width = WIDTH * seconds / whole
        parts.append((fill, f"{at:.2f}", f"{width:.2f}", kind, f"{seconds:,.1f} s", f"{seconds / whole:.1%}"))
        at += width
    return parts


def fills() -> Iterator[str]:
    """A fill for each part, paler ones once all are used up."""
    for opacity in (1, 0.55, 0.3):
        for number, colour in enumerate(COLOURS):
            yield f"fill: var(--c{number}, {colour}); fill-opacity: {opacity}"
