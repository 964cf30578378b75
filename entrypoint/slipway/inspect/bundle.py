"""The archive about a run for a bug report: its text files without secrets, versions, a check of this node, and a list of these.

The middle of a large file is left out, and a line in its place says how much is missing.
"""

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipway.check.finding import findings_lines
from slipway.check.quick import quick_check
from slipway.inspect.logs import tell_elsewhere
from slipway.launch.resolve.devices import read_devices
from slipway.launch.resolve.host import read_host
from slipway.launch.resolve.packages import read_versions
from slipway.launch.run_directory.directory import RunDirectory
from slipway.protocol import files
from slipway.protocol.errors import LaunchError, code_of
from slipway.protocol.printable import utc
from slipway.protocol.redact import make_redactor, redact_json, secret_arguments, secret_values

NAME_ENDS = ".tar.gz"
# Name patterns in a run directory, and what they hold; everything else is left out.
PARTS = (
    (files.RUN_FILE, "workload, arguments, version, nodes, attempt"),
    (files.OUTCOME_FILE, "the verdict, with every attempt"),
    (files.OPTIONS_FILE, "the workload's options as resolved"),
    (files.METRICS_FILE, "loss, throughput and validation by step"),
    (f"{files.NODE}*/{files.PLAN_FILE}", "the launcher's decisions with their sources, and the torchrun command"),
    (f"{files.NODE}*/{files.LEDGER_FILE}", "how the time of the job was spent"),
    (f"{files.NODE}*/{files.HEARTBEATS}/*.json", "the last state of each rank"),
    (f"{files.NODE}*/{files.OUTCOMES}/*.json", "how each rank ended"),
    (f"{files.NODE}*/{files.LOGS}/*.log", "what each rank printed, and torchrun"),
)
HERE = (("versions.json", "software and devices where this was packed"), ("check.txt", "the health of that node"))
LARGEST = 16 << 20  # bytes of one file
ALL = 128 << 20  # bytes of all files before compression, divided among them
SMALLEST = 64 << 10  # bytes that a file may have, however many there are
HEAD = 0.25  # of the bytes that a file may have; the rest is for its tail, which is the most informative part


@dataclass(frozen=True)
class Bundle:
    """An archive, its size in bytes, notes for whoever reads it, and what of the run is not in it."""

    path: Path
    size: int
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class ArchivePart:
    """A member of the archive: its name there and its text, in pieces where something between them is left out."""

    name: str
    pieces: tuple[str, ...]


def bundle_run(run: Path, name: str, environ: Mapping[str, str], env_file: Mapping[str, str], now: float) -> Bundle:
    """Pack a run into the archive `name`, by default one in the working directory. Raises LaunchError.

    The values of secrets in `environ`, `env_file` and the run's arguments are removed, and everything that looks like one.
    """
    run = run.resolve()
    target = Path(name or f"slipway-{run.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}{NAME_ENDS}")
    secrets = secret_values(environ, env_file)
    packed = find_files(run)
    left_out = tuple(list_others(run, packed))
    notes = [
        f"secrets whose values were known here: {', '.join(sorted(secrets)) or 'none'}; other secrets that a program "
        "printed without their names are found only by their form"
    ]
    notes += [elsewhere] if (elsewhere := tell_elsewhere(run)) else []

    def parts() -> Iterator[ArchivePart]:
        most = max(SMALLEST, min(LARGEST, ALL // max(len(packed), 1)))
        for file in packed:
            part, missing = read_part(str(file.relative_to(run)), file, most)
            notes.extend([f"{part.name} was truncated: {missing:,} bytes in the middle are missing"] if missing else [])
            yield part
        yield from look_here(run, environ)
        yield ArchivePart("README.txt", (readme(run, packed, notes, left_out, now),))

    typed = secret_arguments(list(RunDirectory(run).record.arguments))
    write_archive(target, parts(), make_redactor([*secrets.values(), *typed]), now)
    return Bundle(target, target.stat().st_size, tuple(notes), left_out)


def find_files(run: Path) -> list[Path]:
    """The files of a run directory to pack."""
    return [path for pattern, _ in PARTS for path in RunDirectory(run).files(pattern)]


def read_part(name: str, path: Path, most: int) -> tuple[ArchivePart, int]:
    """A file, and how many bytes of it are missing: of a large one only whole lines of its head and tail are taken."""
    try:
        with files.open_run_file(path) as file:
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


def list_others(run: Path, packed: list[Path]) -> list[str]:
    """What is left out of a run directory, with its size: by folder, or by file at the top level."""
    kept, sizes = set(packed), dict[str, list[int]]()
    for path in (Path(parent, name) for parent, _, names in os.walk(run) for name in names):
        if path not in kept:
            parts = path.relative_to(run).parts
            depth = 2 if parts[0].startswith(files.NODE) else 1
            name = "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")
            with suppress(OSError):  # a snapshot that a running job just deleted
                sizes.setdefault(name, []).append(path.lstat().st_size)
    return [
        f"{name} ({len(each)} file{'s' if len(each) > 1 else ''}, {sum(each):,} bytes)"
        for name, each in sorted(sizes.items())
    ]


def look_here(run: Path, environ: Mapping[str, str]) -> Iterator[ArchivePart]:
    """Versions and health of the node where this is called. An error is reported in their place."""
    texts = ["", ""]
    try:
        host, devices = read_host(environ), read_devices(environ)
        texts[0] = json.dumps(read_versions(host, devices), indent=1) + "\n"
        texts[1] = "\n".join(findings_lines(quick_check(environ, host, devices, run.parent, None))) + "\n"
    except Exception as error:
        texts = [text or f"{type(error).__name__}: {error}\n" for text in texts]
    for (name, _), text in zip(HERE, texts, strict=True):
        yield ArchivePart(name, (text,))


def readme(run: Path, packed: list[Path], notes: list[str], left_out: tuple[str, ...], now: float) -> str:
    """README.txt: what is in the archive, and what is not."""
    lines = [f"The run {run.name}, packed by `slipway logs --bundle` at {utc(now)}.", ""]
    for pattern, what in PARTS:
        count = sum(file.relative_to(run).match(pattern) for file in packed)
        lines.append(f"{pattern:<26}{what}{f' ({count} files)' if count > 1 else '' if count else ': none here'}")
    lines += [f"{name:<26}{what}" for name, what in HERE]
    lines += [
        "",
        "Secrets that were recognized by name or form were replaced by ***. Review the archive before you share it.",
    ]
    return "\n".join([*lines, "", "Notes:", *notes, "", "Left out:", *(left_out or ["nothing"])]) + "\n"


def write_archive(target: Path, parts: Iterable[ArchivePart], clean: Callable[[str], str], now: float) -> None:
    """Write the parts, through `clean`, into a folder of the archive's name. Raises LaunchError; nothing is overwritten.

    Nobody else may read the archive, and a link that somebody put in the place of a file is not followed.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if os.path.lexists(target):
            raise LaunchError(
                f"{target} exists already, and nothing is overwritten. Name another: --bundle FILE{NAME_ENDS}."
            )
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
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


def clean_part(part: ArchivePart, clean: Callable[[str], str]) -> str:
    """A member's text without secrets; in JSON names tell which values are secret."""
    if part.name.endswith(".json") and len(part.pieces) == 1:
        with suppress(ValueError, RecursionError):  # damaged
            return json.dumps(redact_json(json.loads(part.pieces[0]), clean), indent=1) + "\n"
    return "".join(map(clean, part.pieces))
