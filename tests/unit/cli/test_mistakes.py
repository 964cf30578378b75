"""Sixty mistakes of a newcomer, each with a message that says what was read, from where, and what to type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from mistakes import ALL, MISTAKES, Mistake, score
from stand_ins import Slipway, make_devices

from slipway.cli import cli
from slipway.launch.resolve import host

PAGE = Path(__file__).parents[3] / "docs/troubleshooting.md"
HEADING = "## Common mistakes\n"
RENEW = bool(os.environ.get("RENEW_GOLDEN"))  # the fixture clears the environment


@pytest.fixture(autouse=True)
def docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's advice, wherever the tests run."""
    for module in (cli, host):
        monkeypatch.setattr(module, "detect_runtime", lambda *_: "docker")


def answer(slipway: Slipway, mistake: Mistake) -> str:
    """What is said of a mistake: the error, or the warning."""
    for name, content in mistake.files.items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    devices = make_devices(mistake.gpus) if mistake.gpus else None
    told = slipway(*mistake.words.split(), devices=devices, **mistake.environ)
    for name in mistake.files:
        Path(name).unlink()
    assert told.code == mistake.code, told
    assert "Traceback" not in told.err
    lines = told.err.splitlines() if mistake.code else [line for line in told.out.splitlines() if "warning: " in line]
    return lines[-1].removeprefix("slipway: ").removeprefix("Error: ").replace(str(Path.cwd()), "/work")


def test_there_are_sixty() -> None:
    assert len(ALL) == len({(mistake.typed, *mistake.files.items()) for mistake in ALL}) >= 60


@pytest.mark.parametrize("mistake", ALL, ids=lambda mistake: mistake.typed)
def test_the_message_says_what_was_read_from_where_and_what_to_type(slipway: Slipway, mistake: Mistake) -> None:
    message = answer(slipway, mistake)
    assert score(mistake, message) == 3, message


def rows(slipway: Slipway) -> Iterator[str]:
    """The page's section: a table for each group."""
    for title, mistakes in MISTAKES.items():
        yield f"\n**{title}**\n\n| typed | said | ends with |\n| --- | --- | --- |"
        for mistake in mistakes:
            message = answer(slipway, mistake).replace("|", "\\|").replace("<", "&lt;")
            files = "".join(f" (`{name}`: `{_shown(content)}`)" for name, content in mistake.files.items() if content)
            yield f"| `{mistake.typed}`{files} | {message} | {mistake.code} |"


def _shown(content: str | bytes) -> str:
    text = content if isinstance(content, str) else repr(content)
    return " ⏎ ".join(text.strip().splitlines()).replace("|", "\\|")


def test_the_page_shows_each_of_them(slipway: Slipway) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, heading, behind = page.partition(HEADING)
    assert heading
    intro, _, _ = behind.partition("\n**Words**")
    _, end, after = behind.partition("\n## Exit codes")
    made = before + HEADING + intro + "\n".join(rows(slipway)) + "\n" + end + after
    if RENEW:
        PAGE.write_text(page := made, encoding="utf-8")
    assert page.splitlines() == made.splitlines()


@pytest.mark.parametrize(
    ("message", "points"),
    [
        ("No such option '--learning-rate': it is --lr here. Type: slipway gpt --lr 0.1", 3),
        ("No such option '--learning-rate'.", 2),
        ("Wrong option. Type another.", 2),
        ("Error.", 1),
    ],
)
def test_a_message_that_says_less_has_fewer_points(message: str, points: int) -> None:
    [mistake] = [mistake for mistake in ALL if "learning-rate" in mistake.words]
    assert score(mistake, message) <= points
    assert (score(mistake, message) == 3) == (points == 3)
