"""The picture of the results is that of the page's table, and can be read."""

import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench"
sys.path.insert(0, str(BENCH))

from picture import Ratio, draw, read_ratios  # noqa: E402

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
