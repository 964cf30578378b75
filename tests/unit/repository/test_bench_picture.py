"""The picture of the results is that of the page's table, and can be read."""

import itertools
import math
import re
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench"
sys.path.insert(0, str(BENCH))

from picture import LEFT, Ratio, draw, read_ratios  # noqa: E402

PAGE = (BENCH / "RESULTS.md").read_text()
RATIOS = read_ratios(PAGE)
PICTURE = draw(RATIOS)


def test_the_picture_that_is_kept_is_that_of_the_page() -> None:
    assert (BENCH / "results.svg").read_text() == PICTURE


def test_more_is_faster_whether_times_or_speeds_were_compared() -> None:
    table = "\n".join(
        [
            "| A: slipway / torchrun | 0.5 (0.4 to 0.8) × | ≤ 1 × | met |",
            "| A: slipway / slow, 2 workers | 3 (2 to 4) × | ≥ 2 × | met |",
            "| A: like for like, slipway / slow | 9 (8 to 9) × | ≥ 1 × | met |",
            "| A: efficiency | 0.8 (0.7 to 0.9) × | ≥ 1 × | **missed**: a / b |",
            "\n## A\n",
        ]
    )
    assert read_ratios(table) == [
        Ratio("A", "slipway / torchrun", 2.0, 1.25, 2.5), Ratio("A", "slipway / slow, 2 workers", 3.0, 2.0, 4.0)
    ]  # fmt: skip


def test_each_question_has_one_group_and_equal_factors_are_equally_wide() -> None:
    headings = re.findall(r'font-weight="600">([^<]+)</text>', PICTURE)[1:]
    assert headings == list(dict.fromkeys(ratio.question for ratio in RATIOS))
    ticks = {
        float(speed): float(x)
        for x, speed in re.findall(r'x="([\d.]+)" y="54" text-anchor="middle">([\d.]+)<', PICTURE)
    }
    steps = {round(ticks[speed * 2] - ticks[speed]) for speed in ticks if speed * 2 in ticks}
    assert len(steps) == 1 or max(steps) - min(steps) <= 1, "logarithmic"
    [one] = re.findall(r'class="one" d="M([\d.]+) ', PICTURE)
    assert float(one) == ticks[1.0]
    for ratio in RATIOS:
        assert min(ticks) <= ratio.least <= ratio.median <= ratio.most <= max(ticks)
    assert all(math.log2(speed).is_integer() for speed in ticks)


def test_no_label_stands_on_another() -> None:
    labels = re.findall(r'class="soft" x="\d+" y="(\d+)" text-anchor="end">([^<]+)<', PICTURE)
    headings = re.findall(r'class="ink" x="20" y="(\d+)"', PICTURE)
    heights = sorted(int(y) for y in [*(y for y, _ in labels), *headings])
    assert min(high - low for low, high in itertools.pairwise(heights)) >= 18
    assert max(len(text) for _, text in labels) * 7 < LEFT, "7 px a letter"
