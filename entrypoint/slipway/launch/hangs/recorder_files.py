"""Files that torch's flight recorders left, of any job of torchrun: one for each rank, after a time-out or on request
(TORCH_NCCL_DUMP_ON_TIMEOUT), as pickles or as JSON. They are read as data: an unpickler that knows no classes executes nothing.
"""

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slipway.launch.hangs.flight_recorder import read_answer
from slipway.launch.hangs.stack_dump import NO_DUMP, StackDump, read_stack_dump
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.protocol.printable import rank_ranges

NAME = re.compile(r"(.*?)(\d{1,7})(\.json|\.pickle|\.pkl)?")  # its rank ends a file's name
LARGEST = 256 << 20  # bytes of a file; 2,000 collectives with their stacks take 5 million
MOST_RANKS = 100_000
# What an unpickler or a reader of JSON raises for bytes that are neither.
DAMAGED = (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError,
           OverflowError, MemoryError, RecursionError)  # fmt: skip


class RecorderFiles(NamedTuple):
    """What the files of a folder say. `notes`: what was left out, as lines; `begun`: by rank, all that its file holds."""

    dumps: tuple[StackDump, ...]
    notes: tuple[str, ...]
    answers: Mapping[int, Mapping[str, Any]]


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """No class is known."""
        raise pickle.UnpicklingError(f"it names {module}.{name}; a recorder's file has no classes")


def read_recorder_files(folder: Path) -> RecorderFiles:
    """The newest set of files in a folder, by what their names begin with. Raises LaunchError if there is none."""
    try:
        files = [(path, found) for path in folder.iterdir() if (found := NAME.fullmatch(path.name)) and path.is_file()]
        newest = sorted(files, key=lambda row: row[0].stat().st_mtime_ns, reverse=True)
    except OSError as error:
        raise LaunchError(f"The recorders cannot be read: {error}", CONFIGURATION) from None
    notes = list[str]()
    sets = dict.fromkeys(found[1] for _, found in newest)
    for prefix in sets:
        read = {int(found[2]): _read(path, notes) for path, found in newest if found[1] == prefix}
        records = {rank: record for rank, record in sorted(read.items()) if record}
        if records:
            if len(sets) > 1:
                notes.append(f"{folder} has several sets of files; the newest is read: {prefix}*")
            return _dumps_of(records, notes)
    why = "".join(f" {note}." for note in notes[:3])
    raise LaunchError(
        f"{folder} has no files of torch's flight recorders, whose names end with a rank, as _dump_0 does.{why} torch "
        "leaves them where TORCH_FR_DUMP_TEMP_FILE says.",
        CONFIGURATION,
    )


def _read(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """A file's content; None, and a note, where it is none of a recorder."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"larger than {LARGEST >> 20} MiB")
        with path.open("rb") as file:
            content = json.load(file) if file.peek(1)[:1] in b"{[" else _DataUnpickler(file).load()
        if not isinstance(content, dict) or not isinstance(content["entries"], list):
            raise ValueError("no entries")
    except (OSError, *DAMAGED) as error:
        notes.append(f"{path.name} is not a recorder's file: {type(error).__name__}: {error}"[:300])
        return None
    return content


def _dumps_of(records: Mapping[int, dict[str, Any]], notes: list[str]) -> RecorderFiles:
    dumps, answers, all_ranks = list[StackDump](), dict[int, Mapping[str, Any]](), set[int]()
    for rank, record in records.items():
        try:
            members = _members(record)
            answers[rank] = read_answer({"records": [record], "members": members, "threads": []})
            dumps.append(read_stack_dump(rank, -1, answers[rank]))
            all_ranks.update(*members.values())
            if record["entries"] and not answers[rank]["begun"]:
                notes.append(f"the file of rank {rank} has another format, as of another torch: it is not used")
        except DAMAGED as error:
            notes.append(f"the file of rank {rank} makes no sense: {type(error).__name__}: {error}"[:300])
    missing = sorted(all_ranks - {one.rank for one in dumps})
    if missing:
        notes.append(f"no file of rank{'s' * (len(missing) > 1)} {rank_ranges(missing)}")
    return RecorderFiles((*dumps, *(StackDump(rank, -1, NO_DUMP) for rank in missing)), tuple(notes), answers)


def _members(record: Mapping[str, Any]) -> dict[str, list[int]]:
    """The ranks of each process group, in the group's order. ValueError and its kin where that makes no sense."""
    found = {}
    for name, row in record.get("pg_config", {}).items():
        ranks = json.loads(row["ranks"])
        if not all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in ranks):
            raise ValueError("a rank that is none")
        found[str(name)] = ranks
    return found
