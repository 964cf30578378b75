"""The losses of a run as a small picture in characters."""

from pathlib import Path

import pytest

from slipway.launch import closing
from slipway.launch.closing import COLUMNS, ROWS, draw_curve
from slipway.launch.run_directory.directory import RunDirectory

FALLS = [(50, 4.0), (100, 3.0), (500, 2.0), (1000, 1.0)]


def test_a_curve_falls_from_the_first_loss_to_the_last() -> None:
    *rows, scale = draw_curve(FALLS, 80)
    assert len(rows) == ROWS
    assert [row.split()[0] for row in rows] == ["4.000", "3.250", "2.500", "1.750", "1.000"]
    assert rows[0][9] == "─"
    assert rows[-1].endswith("─")
    assert scale.split() == ["loss", "step", "50", "step", "1000"]
    assert max(map(len, [*rows, scale])) <= 9 + COLUMNS < 80
    heights = [
        min(number for number, row in enumerate(rows) if row[column : column + 1].strip())
        for column in range(9, 9 + COLUMNS)
    ]
    assert heights == sorted(heights), "it never rises"


def test_every_column_has_a_point_and_what_is_between_two_rows_is_joined() -> None:
    rows = [f"{row:<80}" for row in draw_curve([(1, 0.0), (2, 1.0), (3, 0.0), (4, 1.0)], 80)[:-1]]
    assert all(any(row[column].strip() for row in rows) for column in range(9, 9 + COLUMNS))
    assert {letter for row in rows for letter in row[9:]} <= set(" ─│╭╮╯╰")


@pytest.mark.parametrize(
    "points", [[], FALLS[:3], [(step, 2.0) for step in range(9)], [(7, 1.0), (7, 2.0), (7, 3.0), (7, 4.0)]]
)
def test_where_there_is_nothing_to_see_there_is_no_picture(points: list[tuple[int, float]]) -> None:
    assert draw_curve(points, 80) == []


def test_losses_are_read_past_what_a_crash_tore(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 3.5}\n{"step": 1, "val_loss": 3}\n[1]\n{"step": 2, "loss": null}\n{"st'
    )
    assert closing.losses_of(RunDirectory(tmp_path)) == [(1, 3.5)]
