"""Charts as SVG: what is drawn, and that long curves stay small without losing what the eye would see."""

from __future__ import annotations

import math
import re
import sys

import pytest

from slipway.train.measure.bandwidth import size_text
from slipway.train.measure.plots import POINTS, Axis, Curve, draw, svg_file, thin


def drawn(*curves: Curve, x: Axis = Axis(), y: Axis = Axis()) -> list[str]:  # noqa: B008  # frozen
    return re.findall(r'class="dots"><title>(.*?)</title>', draw("", curves, x, y), re.DOTALL)


def test_points_show_their_values_under_the_pointer() -> None:
    curve = Curve("a <run>", ((1, 0.5), (2, 0.25)))
    assert drawn(curve, x=Axis("step", "{:.0f}".format)) == ["a &lt;run&gt;\n1: 0.5", "a &lt;run&gt;\n2: 0.25"]


@pytest.mark.parametrize("base", [0, 2, 10])
def test_what_an_axis_cannot_show_is_left_out(base: int) -> None:
    points = ((1.0, 1.0), (2.0, math.nan), (3.0, math.inf), (4.0, -1.0), (0.0, 0.0), (5.0, 2.0))
    shown = drawn(Curve("", points), y=Axis(base=base))
    assert len(shown) == (2 if base else 4)


def test_a_logarithmic_axis_is_labelled_at_whole_powers() -> None:
    sizes = tuple((float(4**power - 4), 1.0 + power) for power in range(5, 9))  # as all-gather rounds them
    picture = draw("", [Curve("", sizes)], Axis("", size_text, base=2), Axis())
    labels = re.findall(r"<text [^>]*>(\d+ \w+)</text>", picture)
    assert labels == ["1 KiB", "2 KiB", "4 KiB", "8 KiB", "16 KiB", "32 KiB", "64 KiB"]


def test_a_curve_keeps_its_colour_whatever_else_is_in_the_chart() -> None:
    picture = draw("", [Curve("a", ((1, 1), (2, 2)), 3), Curve("b", ((1, 2), (2, 1)), 12)], Axis(), Axis())
    assert set(re.findall(r"serie-\d+ color-(\d+)", picture)) == {"3", "12"}


def test_a_long_curve_is_thinned_to_its_extremes() -> None:
    points = [(float(step), math.sin(step / 500)) for step in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    points[70_000] = (70_000.0, -9.0)
    kept = thin(points)
    assert len(kept) <= POINTS
    assert {points[0], points[-1], points[54_321], points[70_000]} <= set(kept)
    assert kept == sorted(kept)


@pytest.mark.parametrize("count", [0, 1, 2, POINTS, POINTS + 1, 2 * POINTS + 1])
def test_any_number_of_points_can_be_drawn(count: int) -> None:
    points = [(float(step), 1.0) for step in range(count)]
    assert len(thin(points)) <= POINTS
    assert len(drawn(Curve("", tuple(points)))) == len(thin(points))


def test_drawing_leaves_the_imports_of_python_alone() -> None:
    before = list(sys.meta_path)
    draw("", [Curve("", ((1, 1), (2, 2)))], Axis(), Axis())
    assert sys.meta_path == before


def test_a_file_of_its_own_has_its_style_and_no_script() -> None:
    picture = svg_file(draw("loss", [Curve("a", ((1, 1), (2, 2)))], Axis(), Axis()))
    assert picture.startswith("<svg ")
    assert "<style>" in picture
    assert "<script" not in picture
    assert re.findall(r"https?:", re.sub(r' xmlns(:\w+)?="[^"]*"', "", picture)) == []
