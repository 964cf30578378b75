"""A run's losses as a small picture in characters, for the end of a job. Pure."""

from collections.abc import Sequence

ROWS, COLUMNS = 5, 60  # of the picture, at most, without its scale
SCALE = 9  # columns
LEAST, LEAST_COLUMNS = 4, 30  # points, of which fewer are no curve; columns, of which fewer have no room for the steps


def draw_curve(points: Sequence[tuple[int, float]], width: int) -> list[str]:
    """The lines, of `width` columns at most, of a picture of losses by step, each with what its row stands for.

    None where there is nothing to see, or no room.
    """
    columns = min(COLUMNS, width - SCALE - 1)
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    if len(points) < LEAST or columns < LEAST_COLUMNS or max(losses) == min(losses) or steps[-1] <= steps[0]:
        return []
    low, high = min(losses), max(losses)
    rows = [round((loss - low) / (high - low) * (ROWS - 1)) for loss in _spread(points, columns)]
    picture = [[" "] * columns for _ in range(ROWS)]
    for column, row in enumerate(rows):
        before = rows[column - 1] if column else row
        _join(picture, column, before, row)
    scale = [high - (high - low) * number / (ROWS - 1) for number in range(ROWS)]
    lines = [f"{value:7.3f} ┤{''.join(row).rstrip()}" for value, row in zip(scale, reversed(picture), strict=True)]
    first, last = f"step {steps[0]}", f"step {steps[-1]}"
    return [*lines, f"{'loss':>7}  {first:<{columns - len(last)}}{last}"]


def _spread(points: Sequence[tuple[int, float]], columns: int) -> list[float]:
    """The loss in each column: between two points the line that joins them."""
    losses, place = [], 0
    first, last = points[0][0], points[-1][0]
    for column in range(columns):
        step = first + (last - first) * column / (columns - 1)
        while place < len(points) - 2 and points[place + 1][0] <= step:
            place += 1
        (left, before), (right, after) = points[place], points[place + 1]
        share = min(1.0, (step - left) / max(right - left, 1))
        losses.append(before + (after - before) * share)
    return losses


def _join(picture: list[list[str]], column: int, before: int, row: int) -> None:
    """Lead the line from the row where it was to the row where it is."""
    if before == row:
        picture[row][column] = "─"
        return
    falls = row < before
    picture[before][column] = "╮" if falls else "╯"
    picture[row][column] = "╰" if falls else "╭"
    for between in range(min(before, row) + 1, max(before, row)):
        picture[between][column] = "│"
