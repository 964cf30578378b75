"""The page: everything read about the runs, laid out and written."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

from slipway import __version__
from slipway.protocol.durable import replace_file
from slipway.train.measure.plots import COLOURS, PLOT_CSS, SERIES, Axis, Curve, draw
from slipway.train.report import tables
from slipway.train.report.collectives import measurements, plots, remarks
from slipway.train.report.run import Record
from slipway.train.report.spending import draw_time, legend
from slipway.train.report.template import STYLE, TEMPLATE

GENERATOR = "slipway report"
STEP, VALUE = (
    Axis("step", "{:,.0f}".format),
    Axis("", lambda value: f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"),
)


class NotOursError(Exception):
    """There is a file where the page belongs, and it is not one of our pages."""


def make_page(runs: Sequence[Record]) -> str:
    """The page about `runs` (at least one), as HTML that refers to nothing outside itself."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = tell_apart(runs)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    measured = [run for run in runs if measurements(run)]
    return environment.from_string(TEMPLATE).render(
        runs=runs,
        generator=f"{GENERATOR} {__version__}",
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        style=Markup(STYLE + PLOT_CSS + switches(len(runs))),  # noqa: S704  # ours
        colours=[f"var(--c{number}, {colour})" for number, colour in enumerate(COLOURS)],
        overview=tables.overview(runs),
        curves=[Markup(picture) for picture in curves(runs)],  # noqa: S704  # made by an XML library, which escapes
        results=tables.last_values(runs),
        throughput=tables.throughput(runs),
        comparison=tables.comparison_rows,
        measured=measured,
        bandwidth=[Markup(picture) for picture in plots(runs)],  # noqa: S704  # likewise
        remarks=remarks,
        rows=lambda run: [row.cells for row in measurements(run)],
        attempts=lambda run: [astuple(tried) for tried in run.ending.tries],
        spent=lambda run: Markup(draw_time(run)),  # noqa: S704  # escaped there
        legend=legend,
        settings=tables.settings(runs),
        data=lambda picture: f"data:image/png;base64,{base64.b64encode(picture).decode()}",
    )


def tell_apart(runs: Sequence[Record]) -> list[Record]:
    """The runs with the folder they lie in before their names, where several have the same."""
    count = Counter(run.name for run in runs)
    return [replace(run, name=f"{run.path.parent.name}/{run.name}") if count[run.name] > 1 else run for run in runs]


def curves(runs: Sequence[Record]) -> list[str]:
    """A chart for each metric that has a course, with a curve for each run that has it."""
    pictures = []
    for name in tables.metric_names(runs):
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
    if path.exists() and f'content="{GENERATOR}' not in path.read_text(errors="replace")[:1000]:
        raise NotOursError(f"{path} is not a page of `{GENERATOR}`, and is not overwritten.")
    replace_file(path, page)
