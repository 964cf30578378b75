"""torch's flight recorders: what a watcher (slipway/process/watcher.py) reports of them is read, and cut to what is needed; and
NCCL's last collectives of each rank become a file, on a time-out or when the launcher asks for it.

The answer to `numbers` becomes the collectives begun and done of each process group; the answer to `all` becomes

    begun      the collectives begun last, as [process group, number, name, sizes, types, since, done, started, peer], in their
               order; seconds UTC; peer: of a send or a recv the rank at its other end, else null
    last       {process group: number of the collective begun last}
    members    {process group: its ranks, in the order that the group numbers them}
    threads    [[name, whether it is the main one, [[file, line, function], …]], …]; the innermost frame first
    store      address and port of a store that is not torchrun's at which the rank waits, then torchrun's; else empty
"""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
    """The answer to `all`. Of a recorder with another format, as of another torch, only the stacks are used."""
    begun: list[Any] = []
    last: dict[str, int] = {}
    groups = dict(content["members"])
    try:
        for place, record in enumerate(content["records"]):
            whole = any(entry["retired"] for entry in record.get("entries", []))
            for group, entries in _by_group(record, place, groups):
                last[group] = max(map(_number, entries))
                begun += _collectives(group, entries, groups.get(group, ()), whole=whole)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        begun, last = [], {}
    begun.sort(key=lambda call: call[5])
    waiting = [call for call in begun[:-COLLECTIVES] if not call[6]]
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


def _collectives(
    group: str, entries: Sequence[Mapping[str, Any]], members: Sequence[int], *, whole: bool
) -> Iterator[list[Any]]:
    """The collectives among the entries of a group, and the sends and recvs that are not over.

    Of what was begun as one, torch retires only the entry that ends it. `whole`: what is over is recorded as well; without that,
    entries begun as one are over where the one that ends them is not there any more.
    """
    batches: dict[tuple[bool, int], list[Mapping[str, Any]]] = {}
    ends: dict[tuple[bool, int], bool] = {}
    key = (False, -1)
    for entry in entries:
        if entry["profiling_name"].endswith(f":{COALESCED}") and key in batches:
            ends[key] = entry["retired"]
            continue
        # Sends and recvs have a count of their own.
        key = entry["is_p2p"], entry["p2p_seq_id"] if entry["is_p2p"] else _number(entry)
        batches.setdefault(key, []).append(entry)
    for key, batch in batches.items():
        over = ends.get(key, not whole and len(batch) > 1)
        for entry in batch:
            done = bool(entry["retired"] or over)
            if not entry["is_p2p"] or (members and not done):
                yield _call(group, entry, members, done=done)


def _call(group: str, entry: Mapping[str, Any], members: Sequence[int], *, done: bool) -> list[Any]:
    name, peer = entry["profiling_name"].rpartition(":")[2], None
    if entry["is_p2p"]:
        name, ranks = name.split(" ")  # send 0->3, recv 3<-0: ranks in the group
        peer = members[int(re.split("->|<-", ranks)[1])]
    since, started = entry["time_created_ns"] / 1e9, bool(entry.get("time_discovered_started_ns"))
    return [group, _number(entry), name, entry["input_sizes"], entry["input_dtypes"], since, done, started, peer]


def _number(entry: Mapping[str, Any]) -> Any:
    return entry["collective_seq_id"]


SIZE, OLD_SIZE, BUFFERED = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"  # collectives of a rank
PIPES = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
# s that ranks have from the request to the end: torch's look (TORCH_NCCL_COORD_CHECK_MILSEC), and writing
DUMP_SECONDS = 3.0


def buffer_size(environ: Mapping[str, str]) -> str:
    """How many collectives of a rank torch records: what the user set, under either name, or BUFFERED."""
    return environ.get(SIZE) or environ.get(OLD_SIZE) or BUFFERED


def record(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the variables that make NCCL's last collectives a file per rank, `prefix` followed by the rank, on a time-out.

    What the user set is kept, also under the names before torch 2.9.
    """
    rows = (
        (SIZE, OLD_SIZE, BUFFERED),
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
        # To name the lines where collectives were begun, torch takes the interpreter's lock. If the rank holds that, torch tries
        # again without them after 15 s (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC). Our watchers report the lines.
        ("TORCH_INCLUDE_STACK_TRACE", "TORCH_INCLUDE_STACK_TRACE", "0"),
    )
    return {name: value for name, older, value in rows if not (environ.get(name) or environ.get(older))}


class Pipes:
    """The named pipes through which ranks are asked for their files.

    With TORCH_NCCL_DEBUG_INFO_PIPE_FILE torch makes a pipe for each rank, named by its value, the rank and `.pipe`; a thread that
    does not depend on the others reads it once a second (DumpPipe in ProcessGroupNCCL.hpp, torch 2.10). The pipes are in a
    private folder, since the run directory may be on a file system without pipes.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks, self._prefix = tuple(ranks), ""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make torch listen; none where no folder can be made. The user's own pipes are used."""
        self._prefix = environ.get(PIPES, "")
        if not self._prefix:
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="slipway-", ignore_cleanup_errors=True)
            except OSError:
                return {}
            self._prefix = f"{self._folder.name}/rank-"
        # DumpPipe knows only the old name of the size. torch says once that it is deprecated, and prefers the new one.
        return {PIPES: self._prefix, OLD_SIZE: buffer_size(environ)}

    def ask(self) -> bool:
        """Ask all ranks for their files, and wait for none. Returns whether one listens."""
        answers = [_write(f"{self._prefix}{rank}.pipe") for rank in self._ranks if self._prefix]
        return any(answers)

    def close(self) -> None:
        """Remove the folder."""
        if self._folder:
            self._folder.cleanup()


def _write(pipe: str) -> bool:
    with suppress(OSError):  # none was made, or no process has it open for reading (ENXIO)
        number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(number, b"dump") > 0
        finally:
            os.close(number)
    return False
