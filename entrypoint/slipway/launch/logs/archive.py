"""The archive about a run: its files of text, without secrets. Of a large one the middle is left out, with a word on how much."""

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipway.protocol.errors import LaunchError, code_of
from slipway.protocol.files import (
    HEARTBEATS,
    LEDGER_FILE,
    LOGS,
    METRICS_FILE,
    NODE,
    OPTIONS_FILE,
    OUTCOME_FILE,
    OUTCOMES,
    PLAN_FILE,
    RUN_FILE,
    open_run_file,
)
from slipway.protocol.redact import redact_json

NAME_ENDS = ".tar.gz"
# Name patterns in a run directory, and what they hold; everything else is left out.
PARTS = (
    (RUN_FILE, "workload, arguments, version, nodes, attempt"),
    (OUTCOME_FILE, "the verdict, with every attempt"),
    (OPTIONS_FILE, "the workload's options as resolved"),
    (METRICS_FILE, "loss, throughput and validation by step"),
    (f"{NODE}*/{PLAN_FILE}", "what the launcher decided, from where, and the torchrun command"),
    (f"{NODE}*/{LEDGER_FILE}", "what each second of the job went into"),
    (f"{NODE}*/{HEARTBEATS}/*.json", "where each rank stood last"),
    (f"{NODE}*/{OUTCOMES}/*.json", "how each rank ended"),
    (f"{NODE}*/{LOGS}/*.log", "what each rank printed, and torchrun"),
)
HEAD = 0.25  # of the bytes that a file may have; the rest is for its tail, since what stands last tells most
LARGEST = 16 << 20  # bytes of one file
ALL = 128 << 20  # bytes of all files before compression, divided among them
SMALLEST = 64 << 10  # bytes that a file may have, however many there are


@dataclass(frozen=True)
class ArchivePart:
    """A member of the archive: its name there and its text, in pieces where something between them is left out."""

    name: str
    pieces: tuple[str, ...]


def write_archive(target: Path, parts: Iterable[ArchivePart], clean: Callable[[str], str], now: float) -> None:
    """Write the parts, through `clean`, into a folder of the archive's name. Raises LaunchError; nothing is overwritten."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists():
            raise LaunchError(
                f"{target} exists already, and nothing is overwritten. Name another: --bundle FILE{NAME_ENDS}."
            )
        with temporary.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                for part in parts:
                    content = clean_part(part, clean).encode(errors="replace")
                    member = tarfile.TarInfo(f"{target.name.removesuffix(NAME_ENDS)}/{part.name}")
                    member.size, member.mtime = len(content), int(now)
                    archive.addfile(member, io.BytesIO(content))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)
    except OSError as error:
        message = f"The archive cannot be written to {target.absolute().parent}: {error.strerror or error}."
        raise LaunchError(f"{message} Name another place: --bundle FILE{NAME_ENDS}.", code_of(error)) from None
    finally:
        with suppress(OSError):  # it is not there, or cannot be
            temporary.unlink()


def find_files(run: Path) -> list[Path]:
    """The files of a run directory to pack. None that a link leads to from outside, or that a process died while writing."""
    run = run.resolve()
    found = [path for pattern, _ in PARTS for path in sorted(run.glob(pattern))]
    return [path for path in found if path.is_file() and path.resolve() == path and not path.name.startswith(".")]


def read_part(name: str, path: Path, most: int) -> tuple[ArchivePart, int]:
    """A file, and how many bytes of it are missing: of a large one only whole lines of its head and tail are taken."""
    try:
        with open_run_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most:
                return ArchivePart(name, (file.read(most).decode(errors="replace"),)), 0
            head = file.read(int(most * HEAD)).rpartition(b"\n")[0]
            file.seek(size - int(most * (1 - HEAD)))
            tail = file.read(int(most * (1 - HEAD))).partition(b"\n")[2]
    except OSError as error:
        return ArchivePart(name, (f"cannot be read: {error}\n",)), 0
    missing = size - len(head) - len(tail)
    between = f"\n--- {missing:,} bytes of {size:,} were left out here ---\n"
    return ArchivePart(name, (head.decode(errors="replace"), between, tail.decode(errors="replace"))), missing


def clean_part(part: ArchivePart, clean: Callable[[str], str]) -> str:
    """A member's text without secrets; JSON is looked at by its names."""
    if part.name.endswith(".json") and len(part.pieces) == 1:
        with suppress(ValueError, RecursionError):  # damaged
            return json.dumps(redact_json(json.loads(part.pieces[0]), clean), indent=1) + "\n"
    return "".join(map(clean, part.pieces))


def list_others(run: Path, packed: list[Path]) -> list[str]:
    """What is left out of a run directory, with its size: by folder, or by file where it lies on top."""
    kept, sizes = set(packed), dict[str, list[int]]()
    for path in (Path(parent, name) for parent, _, names in os.walk(run) for name in names):
        if path not in kept:
            parts = path.relative_to(run).parts
            depth = 2 if parts[0].startswith(NODE) else 1
            name = "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")
            with suppress(OSError):  # a snapshot that a running job just deleted
                sizes.setdefault(name, []).append(path.lstat().st_size)
    return [
        f"{name} ({len(each)} file{'s' if len(each) > 1 else ''}, {sum(each):,} bytes)"
        for name, each in sorted(sizes.items())
    ]
