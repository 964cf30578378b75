"""What a log should hold of progress bars: what a terminal would show in the end."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress
from tqdm import tqdm

from slipway.launch.attempt.terminal import MOST_ROWS, Screen

UP = b"\x1b[A"
# What was printed: the rows that are finished, those that are not, and whether they are a bar.
PRINTED: dict[str, tuple[bytes, list[bytes], list[bytes], bool]] = {
    "lines": (b"a\n\nb\n", [b"a", b"", b"b"], [b""], False),
    "a prompt": (b"a\n(Pdb) ", [b"a"], [b"(Pdb) "], False),
    "colours": (b"\x1b[31mred\x1b[0m\n\x1b[1mx", [b"\x1b[31mred\x1b[0m"], [b"\x1b[1mx"], False),
    "lines of Windows": (b"a\r\nb\r\n", [b"a", b"b"], [b""], False),
    "a bar of tqdm": (b"\r 10%|#  |\r 20%|## |", [], [b" 20%|## |"], True),
    "its end": (b"\r 10%|#  |\r100%|###|\n", [b"100%|###|"], [b""], False),
    "a bar that is taken away": (b"\r 10%|#|\r        \rnext\n", [b"next"], [b""], False),
    "a returning cursor": (b"10%\r20%\r", [], [b"20%"], True),
    "its end with a line behind": (b"10%\r20%\rdone\n", [b"done"], [b""], False),
    "a bar inside another": (b"\router 0\n\rinner 0" + UP + b"\router 1", [b"outer 0"], [b"outer 1", b"inner 0"], True),
    "which goes on": (
        b"\ro 0\n\ri 0" + UP + b"\ro 1\n\ri 1" + UP + b"\ro 2\n\ri 2\n", [b"o 0", b"o 2", b"i 2"], [b""], False,
    ),
    "rich": (b"a 0\nb 0\r\x1b[2K\x1b[1A\x1b[2Ka 1\nb 1", [b"a 0"], [b"a 1", b"b 1"], True),
    "its end, too": (b"\r\x1b[2Ka 1\n", [b"a 1"], [b""], False),
    "what erases to the right": (b"text\x1b[K\n\x1b[01;31mx\x1b[K", [b"text"], [b"\x1b[01;31mx"], False),
    "far up": (b"x\x1b[999999999999Ay", [], [b"y", *[b""] * (MOST_ROWS - 2), b"x"], True),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_finished_and_what_may_still_change(name: str) -> None:
    printed, finished, rows, bar = PRINTED[name]
    screen = Screen()
    assert [row.text for row in screen.feed(printed)] == finished
    assert (screen.rows, screen.bar) == (rows, bar)


PIECES = st.sampled_from(
    [b"a", b"bc ", b"\n", b"\r", UP, b"\x1b[2K", b"\x1b[K", b"\x1b[1B", b"\x1b[32m", b"\x1b", b"[", b"7"]
)


@given(st.lists(PIECES, max_size=40).map(b"".join), st.integers(1, 7))
def test_it_does_not_matter_in_what_pieces_output_comes(printed: bytes, size: int) -> None:
    whole, pieces = Screen(), Screen()
    finished = whole.feed(printed)
    parts = [printed[start : start + size] for start in range(0, len(printed), size)]
    assert [row for part in parts for row in pieces.feed(part)] == finished
    assert (pieces.rows, pieces.bar) == (whole.rows, whole.bar)
    assert pieces.finish() == whole.finish()


@given(st.binary(max_size=200).filter(lambda text: not re.search(rb"[\r\x1b]", text)))
def test_other_text_is_passed_on_byte_for_byte(printed: bytes) -> None:
    screen = Screen()
    finished = [row.text for row in screen.feed(printed)]
    assert b"\n".join([*finished, *screen.rows]) == printed


def test_real_bars_of_tqdm_are_a_row_each() -> None:
    printed = io.StringIO()
    for _ in tqdm(range(2), desc="outer", file=printed, ascii=True, mininterval=0):
        for _ in tqdm(range(9), desc="inner", file=printed, ascii=True, mininterval=0, leave=False):
            pass
    screen = Screen()
    finished = [row.text for row in screen.feed(printed.getvalue().encode())]
    assert screen.over, "until more comes: one could go on inside of it"
    finished += [row.text for row in screen.feed(b"a line\n")]
    assert [text.partition(b"|")[0] for text in finished] == [b"outer:   0%", b"outer: 100%", b"a line"]
    assert (screen.rows, screen.bar, screen.over) == ([b""], False, False)


def test_real_bars_of_rich_are_a_row_each() -> None:
    printed = io.StringIO()
    with Progress(console=Console(file=printed, force_terminal=True, width=60), auto_refresh=False) as progress:
        tasks = [progress.add_task(f"task {number}", total=5) for number in range(3)]
        for _ in range(5):
            for task in tasks:
                progress.advance(task)
            progress.refresh()
    finished = Screen().feed(printed.getvalue().encode())
    assert sum(b"100%" in row.text for row in finished) == 3
    assert sum(b"  0%" in row.text for row in finished) <= 3, "a row that has none above it may be its last state"
    assert len(finished) <= 6
