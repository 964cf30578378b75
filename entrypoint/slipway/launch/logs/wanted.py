"""Which lines of the logs somebody wants to see. Pure."""

import re
from dataclasses import dataclass

from slipway.launch.logs.lines import Line

Numbers = tuple[range, ...]  # empty: any

# The lines above stacks: of an exception, of a process that was asked or crashed (faulthandler). torch puts [rankN] in front.
_STACK = re.compile(r"\(most recent call (last|first)\):?$")
_RANK = re.compile(r"^\[rank\d+\]:[ ]?")
_FAILURE = re.compile(
    r"\w(?:Error|Exception)\b|\bNCCL WARN\b|(?i:\b(?:error:|fatal\b|fail(?:ed|ure)\b|abort(?:ed|ing)\b|killed\b|panic\b)"
    r"|\bexception\b|out of memory|segmentation fault|core dumped|no space left|timed out)"
)


def parse_numbers(text: str) -> Numbers:
    """`0,3-5` as ranges. Raises ValueError."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{text!r} is no list of numbers; write for example 0,3-5")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)


class Failures:
    """Tells lines that belong to a stack, or look like a failure, from all others. Sees each rank's lines in their order."""

    def __init__(self) -> None:
        self._within: dict[tuple[int, int], bool] = {}  # by place whether the stack ends with the exception's own line

    def take(self, line: Line) -> bool:
        """Whether the line is one of them."""
        text, place = _RANK.sub("", line.text), (line.node, line.rank)
        if stack := _STACK.search(text):
            self._within[place] = stack[1] == "last"
            return True
        if place in self._within:
            if not text or text[0].isspace():
                return True
            if self._within.pop(place):
                return True
        return bool(_FAILURE.search(text))


@dataclass(frozen=True)
class Wanted:
    """What was asked for; everything by default. `since` and `until` are Unix seconds."""

    ranks: Numbers = ()
    nodes: Numbers = ()
    attempts: Numbers = ()
    pattern: re.Pattern[str] = re.compile("")
    since: float | None = None
    until: float | None = None
    failures: Failures | None = None

    def takes_file(self, node: int, rank: int) -> bool:
        """Whether anything of a file may be wanted."""
        return _among(node, self.nodes) and _among(rank, self.ranks)

    def takes(self, line: Line) -> bool:
        """Whether a line is wanted; a line without a time is not where times are asked for."""
        wanted = self.failures.take(line) if self.failures else True
        if self.since is not None or self.until is not None:
            within = (self.since or 0.0) <= line.time <= (self.until or float("inf"))
            wanted = wanted and bool(line.stamp) and within
        return wanted and _among(line.attempt, self.attempts) and bool(self.pattern.search(line.text))


def _among(number: int, numbers: Numbers) -> bool:
    return not numbers or any(number in part for part in numbers)
