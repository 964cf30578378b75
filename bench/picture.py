"""The picture of a page of results, drawn from the page's own table, so that it can be drawn again without measuring anew.

    python bench/picture.py [bench/RESULTS.md]

A bar for each ratio to a peer: how many times as fast as that peer, each side at its best, with the smallest and the largest of
all rounds. The axis is logarithmic, so that twice as fast and half as fast look alike; a group for each question. Standard
library only.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROW = re.compile(
    r"\| (?P<what>[^|]+ / [^|]+) \| (?P<median>\S+) \((?P<least>\S+) to (?P<most>\S+)\) × \| (?P<sense>[≤≥]) "
)
TITLE = re.compile(r"^## (.+)$", re.MULTILINE)
WIDTH, LEFT, RIGHT, LINE = 960, 380, 60, 24  # of the picture, its labels, its right margin, a row
STYLE = """
    .panel { fill: #ffffff }
    .ink { fill: #1f2328 }
    .soft { fill: #57606a }
    .grid { stroke: #d0d7de }
    .one { stroke: #1f2328; stroke-width: 2 }
    .spread { stroke: #57606a; stroke-width: 1.5 }
    .faster { fill: #58a6d6 }
    .slower { fill: #d99a4e }
    @media (prefers-color-scheme: dark) {
      .panel { fill: #0d1117 }
      .ink { fill: #e6edf3 }
      .soft { fill: #9da7b3 }
      .grid { stroke: #30363d }
      .one { stroke: #e6edf3 }
      .spread { stroke: #9da7b3 }
      .faster { fill: #2f6f9f }
      .slower { fill: #94632a }
    }
"""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as a peer: the median of all rounds, the least and the most of them."""

    question: str
    what: str
    median: float
    least: float
    most: float


def read_ratios(page: str) -> list[Ratio]:
    """The ratios to peers in a page's first table. A ratio of times is turned over: more is faster."""
    ratios = []
    for row in ROW.finditer(page.partition("\n## ")[0]):
        if "like for like" in row["what"]:
            continue
        question = next(title for title in TITLE.findall(page) if row["what"].startswith(f"{title}: "))
        numbers = [float(row[name]) for name in ("median", "least", "most")]
        if row["sense"] == "≤":
            median, most, least = (1 / number for number in numbers)
            numbers = [median, least, most]
        ratios.append(Ratio(question, row["what"].removeprefix(f"{question}: "), *numbers))
    return ratios


def draw(ratios: list[Ratio]) -> str:
    """The ratios as an SVG that is readable on light and on dark pages."""
    least, most = min(0.5, *(ratio.least for ratio in ratios)), max(2.0, *(ratio.most for ratio in ratios))
    first, last = math.floor(math.log2(least)), math.ceil(math.log2(most))

    def place(speed: float) -> str:
        return f"{LEFT + (math.log2(speed) - first) / (last - first) * (WIDTH - LEFT - RIGHT):.1f}"

    lines, y, question = list[str](), 64, ""
    for ratio in ratios:
        if ratio.question != question:
            question, y = ratio.question, y + LINE // 2
            lines.append(f'<text class="ink" x="20" y="{y + 16}" font-weight="600">{escape(question)}</text>')
            y += LINE
        lines += row(ratio, y, place)
        y += LINE
    axis = [line for power in range(first, last + 1) for line in tick(2.0**power, y, place)]
    told = "; ".join(f"{ratio.question}, {ratio.what}: {number(ratio.median)}" for ratio in ratios)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 20}" width="{WIDTH}" height="{y + 20}"',
            '     role="img" aria-labelledby="results-title results-desc" font-family="system-ui, sans-serif" font-size="13">',
            '  <title id="results-title">How many times as fast as its peers Slipway is</title>',
            f'  <desc id="results-desc">{escape(told)}</desc>',
            f"  <style>{STYLE}  </style>",
            f'  <rect class="panel" width="{WIDTH}" height="{y + 20}" rx="6"/>',
            '  <text class="ink" x="20" y="28" font-size="15" font-weight="600">Times as fast as the peer</text>',
            '  <text class="soft" x="20" y="46">1 is equal; thin lines: slowest to fastest round</text>',
            *(f"  {line}" for line in [*axis, *lines]),
            "</svg>",
            "",
        ]
    )


def row(ratio: Ratio, y: int, place: Callable[[float], str]) -> list[str]:
    """Label, bar from 1, spread and number of a ratio."""
    begin, end = sorted((float(place(1)), float(place(ratio.median))))
    right = max(float(place(ratio.most)), float(place(1))) + 8
    kind = "faster" if ratio.median >= 1 else "slower"
    return [
        f'<text class="soft" x="{LEFT - 12}" y="{y + 16}" text-anchor="end">{escape(ratio.what)}</text>',
        f'<rect class="{kind}" x="{begin}" y="{y + 4}" width="{end - begin:.1f}" height="16"/>',
        f'<path class="spread" d="M{place(ratio.least)} {y + 12} H{place(ratio.most)}"/>',
        f'<text class="ink" x="{right:.1f}" y="{y + 16}">{number(ratio.median)}</text>',
    ]


def number(speed: float) -> str:
    """As many digits as the page has."""
    return f"{speed:.2f}" if speed < 10 else f"{speed:.1f}"


def tick(speed: float, bottom: int, place: Callable[[float], str]) -> list[str]:
    """A line of the axis, with its number."""
    kind = "one" if speed == 1 else "grid"
    return [
        f'<path class="{kind}" d="M{place(speed)} 60 V{bottom}"/>',
        f'<text class="soft" x="{place(speed)}" y="54" text-anchor="middle">{speed:g}</text>',
    ]


if __name__ == "__main__":
    page = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("RESULTS.md")
    page.with_name(f"{page.stem.lower()}.svg").write_text(draw(read_ratios(page.read_text(encoding="utf-8"))))
