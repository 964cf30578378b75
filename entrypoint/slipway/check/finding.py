"""What a probe found: one row of the table that `slipway check` prints."""

import dataclasses
import shutil
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import click

from slipway.launch.rendezvous.messages import ERROR, OK, SKIPPED, WARNING, Finding
from slipway.protocol.errors import CONFIGURATION, FINISHED, UNHEALTHY

T = TypeVar("T")


@dataclass(frozen=True)
class NodeReport:
    """All that was found on one node."""

    node_rank: int
    host: str
    findings: tuple[Finding, ...]


def ok(what: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(what, OK, found)


def warning(what: str, found: str, advice: str = "") -> Finding:
    """A job may run, but slowly or not for long."""
    return Finding(what, WARNING, found, advice)


def sick(what: str, found: str, advice: str = "") -> Finding:
    """An error of this node, which another node does not have."""
    return Finding(what, ERROR, found, advice, UNHEALTHY)


def misconfigured(what: str, found: str, advice: str = "") -> Finding:
    """An error of the configuration, which another node would have, too."""
    return Finding(what, ERROR, found, advice, CONFIGURATION)


def skipped(what: str, reason: str) -> Finding:
    """A probe that cannot run here."""
    return Finding(what, SKIPPED, reason)


def probe(what: str, look: Callable[[], Iterable[Finding]]) -> tuple[Finding, ...]:
    """What a probe finds. A probe that fails is reported in its own row and hides no other."""
    try:
        return tuple(look())
    except Exception as error:
        return (skipped(what, f"the probe failed: {type(error).__name__}: {error}"),)


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, but TimeoutError after so many seconds; its thread is then abandoned.

    A name server that does not answer, or a file server that hangs, must not hold up a check.
    """
    came: list[Any] = []

    def do() -> None:
        try:
            came.append((work(), None))
        except BaseException as error:
            came.append((None, error))

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(seconds)
    if not came:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    result, error = came[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def exit_code(findings: Iterable[Finding]) -> int:
    """0 without errors, UNHEALTHY (77) where any error is the node's own, else CONFIGURATION (78)."""
    codes = {finding.code for finding in findings if finding.level == ERROR}
    return UNHEALTHY if UNHEALTHY in codes else CONFIGURATION if codes else FINISHED


def summary(findings: Iterable[Finding]) -> str:
    """`1 error, 2 warnings`, or that there are none."""
    levels = [finding.level for finding in findings]
    counts = [(levels.count(level), level) for level in (ERROR, WARNING)]
    told = [f"{count} {level}{'' if count == 1 else 's'}" for count, level in counts if count]
    return ", ".join(told) or "no errors or warnings"


def findings_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The documented form of `slipway check --json`, for one node."""
    return [dataclasses.asdict(finding) for finding in findings]


COLOURS = MappingProxyType({OK: "green", WARNING: "yellow", ERROR: "red", SKIPPED: "bright_black"})
WIDTH = 110  # columns of the table at most
NARROWEST = 60  # and at least
LONGEST_WHAT = 24  # columns of the first text; a longer one pushes its row to the right


def findings_lines(findings: Sequence[Finding], colour: bool = False, width: int = WIDTH) -> list[str]:
    """A table of level, what and found, with the advice below each row; `colour` for a terminal."""
    return table_lines([(row.level, row.what, row.found, row.advice) for row in findings], COLOURS, colour, width)


def table_lines(
    rows: Sequence[tuple[str, str, str, str]], colours: Mapping[str, str], colour: bool, width: int
) -> list[str]:
    """The same for rows of level, what, found and advice; `colours` by level."""
    column = min(LONGEST_WHAT, max((len(what) for _, what, _, _ in rows), default=0))
    return [line for row in rows for line in _row(*row, column, colours if colour else {}, width)]


def _row(
    level: str, what: str, found: str, advice: str, column: int, colours: Mapping[str, str], width: int
) -> Iterator[str]:
    shown = click.style(f"{level:<7}", fg=colours[level]) if colours else f"{level:<7}"
    indent = " " * (column + 13)
    head = f"  {shown}  {what:<{column}}  "
    advised = f"→ {advice}" if advice else ""
    for line in [*found.splitlines(), *advised.splitlines()] or [""]:
        for part in textwrap.wrap(line, width - len(indent), break_on_hyphens=False) or [""]:
            yield f"{head}{part}".rstrip()
            head = indent


def terminal_width() -> int:
    """Columns for a table on stdout: those of the terminal or of COLUMNS within reason, WIDTH where there are neither."""
    return min(WIDTH, max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns))
