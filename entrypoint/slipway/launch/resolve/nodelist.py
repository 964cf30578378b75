"""Slurm's compressed host lists, expanded without `scontrol` (which no container has).

`gpu[07-08],login` -> `gpu07`, `gpu08`, `login`. The grammar is that of `scontrol show hostnames`:
https://slurm.schedmd.com/scontrol.html (hostlist expressions), several brackets in one name included.
"""

import itertools
import math
import re

from slipway.protocol.errors import LaunchError

LIMIT = 65_536  # hosts; Slurm's own MAX_RANGE (64k) for one expression
_NAME = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]+\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_nodelist(text: str) -> tuple[str, ...]:
    """Return the host names of a Slurm host list in its own order. Raises LaunchError where it cannot be read."""
    hosts: list[str] = []
    position = 0
    while True:
        name = _NAME.match(text, position)
        if name is None:
            raise _unreadable(text, f"a host name was expected at character {position + 1}")
        hosts += _expand_name(name[0], text)
        if len(hosts) > LIMIT:
            raise _unreadable(text, f"it names more than {LIMIT} hosts")
        position = name.end()
        if position == len(text):
            return tuple(hosts)
        if text[position] != ",":
            raise _unreadable(text, f"a comma was expected at character {position + 1}")
        position += 1


def _expand_name(name: str, text: str) -> list[str]:
    literals = re.split(r"\[([0-9,-]+)\]", name)  # literal, ranges, literal, ranges, ..., literal
    choices = [_expand_ranges(part, text) if odd % 2 else [part] for odd, part in enumerate(literals)]
    if math.prod(map(len, choices)) > LIMIT:
        raise _unreadable(text, f"it names more than {LIMIT} hosts")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise _unreadable(text, f"[{ranges}] is not a list of numbers and ranges")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) >= LIMIT:
            raise _unreadable(text, f"{part} is not a range that can be counted")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _unreadable(text: str, why: str) -> LaunchError:
    return LaunchError(
        f"The Slurm host list {text[:200]!r} cannot be read: {why}. "
        "Give the address of the first node yourself: --master-addr HOST."
    )
