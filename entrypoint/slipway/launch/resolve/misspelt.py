"""Names in the environment or a `.env` file that look like a setting's, mistyped. Pure.

Nobody else's name may be taken for one: a name with our prefix is ours, any other has to come within a letter or two.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from slipway.launch.resolve.settings import NAMES
from slipway.protocol.mistake import nearest

PREFIX = "SLIPWAY_"
# Beside the settings: what the launcher tells its workers, and the image the launcher (docs/design.md); and the tests'.
WITHIN = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "ATTEMPT", "DEVICE", "EVENTS", "IMAGE", "LOCAL_CORES", "LOCAL_DEVICES", "MEMORY", "NODE_DIR", "PIPES",
        "PREVIOUS_OUTCOME", "PROGRESS", "SHARED_RUN_DIR", "WATCHER",
    )
)  # fmt: skip
TESTS = f"{PREFIX}TEST_"
# What Kubernetes tells every pod of a Service called slipway-…
SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
# Further from the right name than a slip of the finger, and not used by others.
LONGER = {"MASTER_ADDRESS": "MASTER_ADDR", "NNODE": "NNODES"}
# From how many letters on one of them may be wrong, and two; in shorter names only two that changed places.
ONE, TWO = 8, 12


def misspelt(given: Mapping[str, str], where: str, known: Collection[str] = ()) -> Iterator[str]:
    """A sentence for each of the variables `given` in `where` that seems to be a setting mistyped.

    One whose right name is `known` to have a value was not meant to be that.
    """
    for name, value in given.items():
        if not value or name in NAMES or name in WITHIN or name.startswith(TESTS) or _is_service(name, value):
            continue
        near = meant(name)
        if near and near not in known:
            yield f"{name} (from {where}) is no setting of Slipway's. Did you mean {near}?"
        elif not near and name.startswith(PREFIX):
            yield f"{name} (from {where}) is no setting of Slipway's; `slipway run --help` lists them."


def meant(name: str) -> str:
    """The setting that a name which is none was probably meant to be; empty where none comes near."""
    if name in LONGER:
        return LONGER[name]
    if name.startswith(PREFIX):
        return _meant_behind_prefix(name.removeprefix(PREFIX))
    # Nobody slips at the first letter, and this is asked of every variable at every start.
    return next((known for known in _beginning_with(name[:1]) if _is_slip(name, known)), "")


@cache
def _beginning_with(letter: str) -> tuple[str, ...]:
    return tuple(sorted(known for known in NAMES if known.startswith(letter)))


def _meant_behind_prefix(rest: str) -> str:
    bare = {known.removeprefix(PREFIX): known for known in sorted(NAMES)}
    if rest in bare:
        return bare[rest]
    words = rest.split("_")
    within = [known for known in bare if set(words) <= set(known.split("_"))]  # SLIPWAY_GRACE
    begun = [known for known in bare if known.split("_")[0] == words[0]]  # SLIPWAY_CPU
    only = next((names[0] for names in (within, begun) if len(names) == 1), "")
    return bare.get(only or nearest(rest, bare), "")


def _is_service(name: str, value: str) -> bool:
    return SERVICE.search(name) is not None or re.match(r"(tcp|udp|sctp)://", value) is not None


def _is_slip(name: str, known: str) -> bool:
    typed, right = name.replace("_", ""), known.replace("_", "")
    if typed == f"{known}S":  # WORKLOADS: a word of its own
        return False
    if len(right) < ONE:
        return typed != right and sorted(typed) == sorted(right) and _distance(typed, right) == 1
    allowed = 2 if len(right) >= TWO else 1
    return abs(len(typed) - len(right)) <= allowed and _distance(typed, right) <= allowed


def _distance(one: str, other: str) -> int:
    """How many letters were left out, added, changed, or changed places (optimal string alignment)."""

    @cache
    def between(i: int, j: int) -> int:
        if min(i, j) == 0:
            return max(i, j)
        ways = [between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (one[i - 1] != other[j - 1])]
        if min(i, j) > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
            ways.append(between(i - 2, j - 2) + 1)
        return min(ways)

    return between(len(one), len(other))
