"""Curves as SVG: static pictures whose values show under the pointer, without any script or font from elsewhere.

The pictures carry no style of their own: a page that holds several has PLOT_CSS once and says with variables (--text,
--faint, --c0 …) whether it is light or dark. `svg_file` makes a file of one.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.protocol.printable import counted

Point = tuple[float, float]

POINTS = 240  # of a curve at most; a chart is not wider than that many places that a pointer can hit
# Okabe and Ito's colours, which people with any kind of colour vision can tell apart, and which show on light and dark
# (https://jfly.uni-koeln.de/color/).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
SERIES = 32  # how many curves of a chart have a colour
USELESS = {"defs", "desc", "comment", "tooltip-overlay", "text-overlay"}  # elements and classes
PLACES = {"cx", "cy", "x", "y", "d", "transform"}
ROUND = 0.1  # how far beyond a label an axis may go before it gets another one
LONG_NUMBER = re.compile(r"\d+\.\d{2,}")
COLOUR = re.compile(r"color-(\d+)")

PLOT_CSS = "\n".join(
    [
        ".pygal-chart text { font: 12px system-ui, sans-serif; fill: var(--text, #222); stroke: none }",
        ".pygal-chart { max-width: 100%; height: auto }",
        ".pygal-chart .background { fill: none }",
        ".pygal-chart .title { text-anchor: middle; opacity: .75 }",
        ".pygal-chart .plot_title { font-size: 14px; font-weight: 600; opacity: 1 }",
        ".pygal-chart .axis.x text { text-anchor: middle }",
        ".pygal-chart .axis.y text { text-anchor: end }",
        ".pygal-chart .guide.line { fill: none; stroke: var(--faint, #ddd); stroke-width: 1 }",
        ".pygal-chart .axis > .line, .pygal-chart .axis.line { fill: none; stroke: var(--faint, #ddd) }",
        ".pygal-chart .nofill { fill: none; stroke-width: 1.6; stroke-linejoin: round }",
        ".pygal-chart .dot { fill-opacity: 0; stroke-opacity: 0; stroke-width: 9 }",
        ".pygal-chart .dot:hover { fill-opacity: 1; stroke-opacity: .35 }",
        *(
            f".pygal-chart .color-{i} {{ fill: var(--c{i % len(COLOURS)}, {COLOURS[i % len(COLOURS)]}); "
            f"stroke: var(--c{i % len(COLOURS)}, {COLOURS[i % len(COLOURS)]}) }}"
            for i in range(SERIES)
        ),
    ]
)


@dataclass(frozen=True)
class Curve:
    """A named line. `colour` is the number of its colour, so that a run has the same one in every chart."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0


@dataclass(frozen=True)
class Axis:
    """What an axis shows: how its values are written, and the base of its powers where it is logarithmic."""

    title: str = ""
    text: Callable[[float], str] = "{:.4g}".format
    base: int = 0

    def place(self, value: float) -> float:
        """Where a value lies on the axis."""
        return math.log(value, self.base) if self.base else value

    def shows(self, value: float) -> bool:
        """Whether a value can be shown at all."""
        return math.isfinite(value) and (value > 0 or not self.base)

    def labels(self, values: Sequence[float]) -> list[dict[str, object]] | None:
        """Places and texts of the labels for these values: whole powers, or whatever is convenient (None)."""
        if not self.base or not values:
            return None
        places = [self.place(value) for value in values]
        powers = range(math.floor(min(places) + ROUND), math.ceil(max(places) - ROUND) + 1)
        return [{"value": power, "label": self.text(float(self.base) ** power)} for power in powers][
            :: len(powers) // 9 + 1
        ]


def draw(title: str, curves: Sequence[Curve], x: Axis, y: Axis, legend: bool = False) -> str:
    """An SVG element with the curves. Values that an axis cannot show are left out."""
    pygal = load_pygal()
    shown = [
        (curve, thin([point for point in curve.points if x.shows(point[0]) and y.shows(point[1])])) for curve in curves
    ]
    chart = pygal.XY(
        width=560, height=320, margin=8, margin_right=28, js=[], show_legend=legend, legend_at_bottom=True, legend_box_size=10,
        title=title, x_title=x.title or None, dots_size=2.5, max_scale=6, x_value_formatter=x.text,
        value_formatter=y.text, show_x_guides=False, css=[],
        truncate_label=-1,
    )  # fmt: skip
    for name, axis in enumerate((x, y)):
        if labels := axis.labels([point[name] for _, points in shown for point in points]):
            setattr(chart, f"{'xy'[name]}_labels", labels)
    for curve, points in shown:
        marks: list[dict[str, object]] = [
            {"value": (x.place(at), y.place(value)), "tooltip": f"{curve.name}\n{x.text(at)}: {y.text(value)}"}
            for at, value in points
        ]
        chart.add(curve.name, [marks[0] | {"node": {"style": "fill-opacity: 1"}}] if len(marks) == 1 else marks)
    return strip_chart(chart, [curve.colour for curve in curves])


def load_pygal() -> Any:
    """The library, without what it adds to Python's imports for its maps: with that, Python 3.11 warns at other imports."""
    import pygal  # type: ignore[import-untyped]

    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "PluginImportFixer"]
    return pygal


def svg_file(svg: str) -> str:
    """The element as a file of its own: with its style, on white."""
    head, bracket, rest = svg.partition(">")
    return f'{head} style="background: white"{bracket}<style>{PLOT_CSS}</style>{rest}\n'


def strip_chart(chart: Any, colours: Sequence[int]) -> str:
    """The chart without what pygal brings for its own script: that script, its settings, comments, exact coordinates."""
    from pygal.etree import etree  # type: ignore[import-untyped]

    tree = chart.render_tree()
    del tree.attrib["id"]
    for parent in list(tree.iter()):
        for name in PLACES & set(parent.attrib):
            parent.set(name, LONG_NUMBER.sub(lambda found: f"{float(found[0]):.1f}", parent.get(name)))
        if found := COLOUR.search(parent.get("class") or ""):
            parent.set("class", COLOUR.sub(f"color-{colours[int(found[1])]}", parent.get("class")))
        for child in list(parent):
            kind = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else "comment"
            if kind in USELESS or USELESS & set((child.get("class") or "").split()):
                parent.remove(child)
    text: str = etree.tostring(tree, encoding="unicode")
    return text


def thin(points: Sequence[Point]) -> list[Point]:
    """At most POINTS of them, which keep what the eye sees: the least and the largest of each stretch, in order."""
    if len(points) <= POINTS:
        return list(points)
    stretches = POINTS // 2 - 1
    kept = [points[0]]
    for number in range(stretches):
        part = points[1:-1][number * (len(points) - 2) // stretches : (number + 1) * (len(points) - 2) // stretches]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]


def comparison_rows(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a comparison with and without DDP; empty where the file makes no sense."""
    try:
        processes, steps, seconds = int(found["processes"]), int(found["steps"]), found["seconds"]
        rows = [
            [str(name), f"{one:.8f}", f"{other:.8f}", f"{abs(one - other):.1e}"]
            for name, one, other in found["weights"]
        ]
        if found["others"][0]:
            rows.append([f"… and {found['others'][0]:,} more", "", "", f"≤ {found['others'][1]:.1e}"])
        rows.append(["largest difference", "", "", f"{found['difference']:.1e}"])
        rows.append([f"seconds for {counted(steps, 'step')}", *(f"{value:.2f}" for value in seconds), ""])
    except (KeyError, TypeError, ValueError, IndexError):
        return [], []
    with_ddp = f"{processes} processes, DDP" if processes > 1 else "1 process"
    return ["weight", with_ddp, "1 process, no DDP", "difference"], rows


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines for a terminal: the first column to the left, all others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([name.ljust(first), *(text.rjust(width) for text, width in zip(texts, others, strict=True))]).rstrip()
        for name, *texts in rows
    ]
