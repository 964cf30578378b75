"""What torch's flight recorders tell of a rank, as a watcher hands it on (watcher.py): read, and cut to what is needed. Pure.

The answer to `numbers` becomes the collectives begun and done of each process group; the answer to `all` becomes

    begun      the collectives begun last, as [process group, number, name, sizes, types, since, done]; seconds UTC
    last       {process group: number of the collective begun last}
    members    {process group: its ranks}
    threads    [[name, whether it is the main one, [[file, line, function], …]], …]; the innermost frame first
    store      address and port of a store that is not torchrun's at which the rank waits, then torchrun's; else empty
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

COLLECTIVES = 60  # at most, beside those that are not done
COALESCED = "coalesced"  # the entry that ends a number of collectives begun as one


def read_numbers(records: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Of each process group how many collectives were begun and done. TypeError and its kin where that makes no sense."""
    groups = {}
    for place, record in enumerate(records):
        for group, status in record.get("pg_status", {}).items():
            begun, done = status.get("last_enqueued_collective", -1), status.get("last_completed_collective", -1)
            groups[f"{group}/{place}"] = [int(begun), int(done)]
    return groups


def read_answer(content: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to `all`. A recorder that says it in another way, another torch's, leaves the stacks."""
    begun: list[Any] = []
    last: dict[str, int] = {}
    groups = dict(content["members"])
    try:
        for place, record in enumerate(content["records"]):
            for group, entries in _by_group(record, place, groups):
                last[group] = max(map(_number, entries))
                begun += _collectives(group, entries)
    except (KeyError, TypeError, AttributeError, IndexError):
        begun, last = [], {}
    begun.sort(key=lambda call: call[5])
    waiting = [call for call in begun[:-COLLECTIVES] if not call[-1]]
    return {
        "begun": waiting + begun[-COLLECTIVES:],
        "last": last,
        "members": groups,
        "threads": content["threads"],
        "store": content.get("store", []),
    }


def _by_group(
    record: Mapping[str, Any], place: int, groups: dict[str, Any]
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The entries of each process group. Of two backends in one group each counts for itself: it gets a name of its own."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for entry in record.get("entries", []):
        found.setdefault(entry["process_group"][0], []).append(entry)
    for group, entries in found.items():
        name = f"{group}/{place}" if place and group in groups else group
        if name != group:
            groups[name] = groups[group]
        yield name, entries


def _collectives(group: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The collectives among the entries of a group.

    What send and recv wait for shows in the stacks: they have a count of their own, and a number of collectives besides. Of
    collectives that were begun as one, torch retires the entry alone that ends them.
    """
    ends, retired, before = set(), set(), None
    for entry in entries:
        if entry["profiling_name"].endswith(f":{COALESCED}") and before and _number(before) == _number(entry):
            ends.add(id(entry))
            if entry["retired"] and not before["is_p2p"]:
                retired.add(_number(entry))
        before = entry
    for entry in entries:
        if not entry["is_p2p"] and id(entry) not in ends:
            name, since = entry["profiling_name"].rpartition(":")[2], entry["time_created_ns"] / 1e9
            done = entry["retired"] or _number(entry) in retired
            yield [group, _number(entry), name, entry["input_sizes"], entry["input_dtypes"], since, done]


def _number(entry: Mapping[str, Any]) -> Any:
    return entry["collective_seq_id"]
