"""What a probe found: one row of the table that `slipway check` or `slipway selftest` prints."""

import dataclasses
import shutil
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import click

from slipway.launch.rendezvous.messages import BROKEN, ERROR, OK, SKIPPED, WARNING, Finding
from slipway.protocol.errors import CONFIGURATION, FAILED, FINISHED, UNHEALTHY

T = TypeVar("T")


@dataclass(frozen=True)
class NodeReport:
    """All that was found on one node."""

    node_rank: int
    host: str
    findings: tuple[Finding, ...]

    @property
    def rank(self) -> int | None:
        """The node rank, None as long as it is unknown."""
        return self.node_rank if self.node_rank >= 0 else None


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


def broken(what: str, found: str, code: int | None = FAILED, advice: str = "") -> Finding:
    """A trial of a selftest that failed; only an exit code that names the node or a setting is passed on."""
    return Finding(what, BROKEN, found, advice, code if code in (UNHEALTHY, CONFIGURATION) else FAILED)


def skipped(what: str, reason: str) -> Finding:
    """What cannot be tried here."""
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


COLOURS = MappingProxyType({OK: "green", WARNING: "yellow", ERROR: "red", BROKEN: "red", SKIPPED: "bright_black"})
WIDTH = 110  # columns of the table at most
NARROWEST = 60  # and at least
LONGEST_WHAT = 24  # columns of the first text; a longer one pushes its row to the right


def findings_lines(findings: Sequence[Finding], colour: bool = False, width: int = WIDTH) -> list[str]:
    """A table of level, what and found, with the advice below each row; `colour` for a terminal."""
    column = min(LONGEST_WHAT, max((len(row.what) for row in findings), default=0))
    return [line for row in findings for line in _row(row, column, colour, width)]


def _row(row: Finding, column: int, colour: bool, width: int) -> Iterator[str]:
    level = f"{row.level:<7}"
    indent = " " * (column + 13)
    head = f"  {click.style(level, fg=COLOURS[row.level]) if colour else level}  {row.what:<{column}}  "
    advised = f"→ {row.advice}" if row.advice else ""
    for line in [*row.found.splitlines(), *advised.splitlines()] or [""]:
        for part in textwrap.wrap(line, width - len(indent), break_on_hyphens=False) or [""]:
            yield f"{head}{part}".rstrip()
            head = indent


def terminal_width() -> int:
    """Columns for a table on stdout: those of the terminal or of COLUMNS within reason, WIDTH where there are neither."""
    return min(WIDTH, max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns))
