"""Snapshots that cannot lie: a folder per snapshot, complete and verified or not there at all.

`snapshots/step-00001500/` holds `model.safetensors`, `optimizer.safetensors`, `ranks.safetensors` (what differs from rank
to rank), `state.json` (what is not a tensor) and `manifest.json` (format, step, the attempt that wrote it, size and sha256
of every other file). Of a model in two stages each part has its file, `model-1-of-2.safetensors`; whoever reads gets one
model. A snapshot is written under a temporary name, fsynced and renamed. Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from slipway.options.paths import require_local
from slipway.protocol import snapshots
from slipway.protocol.durable import FileFacts, clear, hidden, make_folder, sync_folder, write_file
from slipway.protocol.errors import DISK_ERRORS
from slipway.protocol.files import held_folder, open_run_file, read_json, touch_run_file, write_json
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.snapshots import (
    CLEAN,
    FORMAT,
    MANIFEST,
    STATE,
    STEP,
    SUSPECT,
    SUSPECTED_FILE,
    TENSORS,
    WITHDRAWN,
    Manifest,
    ManifestError,
    list_snapshots,
    newest_first,
    snapshot_attempt,
    snapshot_name,
    snapshot_step,
    snapshot_version,
)
from slipway.train.snapshots.tensors import safetensors_chunks
from slipway.train.worker.launcher import NoProgressError, SupersededError

ANY = (math.inf, math.inf)  # an attempt and step that none is after
MODEL = "model"  # the stem of the files with the weights
PART = re.compile(r"-\d+-of-\d+$")  # behind a file's stem


class SnapshotError(NoProgressError):
    """A snapshot that cannot be used; the message says which file and why."""


class NewerFormatError(SnapshotError, ConfigurationError):
    """A snapshot that a later version wrote. It is whole, so nothing older is taken instead of it."""


@dataclass(frozen=True)
class Snapshot:
    """Everything needed to go on after `step`: JSON values in `state`, tensors by file (model, optimizer, ranks).

    `attempt`: the number of the attempt on the run that made it, 0 where nobody said.
    """

    step: int
    state: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    attempt: int = 0


def save_snapshot(
    folder: Path,
    snapshot: Snapshot,
    keep: int,
    note: Callable[[int], None] = lambda size: None,
    superseded: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write `snapshot` into `folder`, verify it, then delete all but the newest `keep`. Returns its path.

    Snapshots of later steps are deleted as well: the job went on from an earlier one because they were damaged.
    `note` is called with the size of each piece that is written, `warn` with a line where an old one cannot be deleted: the next
    save tries that again. Raises OSError where it cannot be written, or where the disk
    does not give back what was written, and SupersededError where somebody else went on with the run: then nothing was
    changed, or whoever reads passes over what was written (`newest_first`).
    """
    make_folder(folder)
    final = folder / snapshot_name(snapshot.step)
    with told_of_room(folder, snapshot), held_folder(folder) as held:
        write_snapshot(held, snapshot, note, superseded)
        try:
            verify_snapshot(held / final.name)
        except SnapshotError as error:
            wrong = str(error).replace(str(held), str(folder))
            raise OSError(errno.EIO, f"the data read back from the disk are not what was written: {wrong}") from error
        if superseded():  # a process may be frozen for an hour between any two lines
            raise SupersededError("another launcher has continued this run, so no snapshot is deleted any more")
        for left, why in prune(held, snapshot, keep):
            warn(
                f"warning: {folder / left} cannot be deleted now ({why}): a process reads it perhaps, or it is protected. "
                "Training continues, and each later save tries it again"
            )
    return final


@contextmanager
def told_of_room(folder: Path, snapshot: Snapshot) -> Iterator[None]:
    """Add to the OSError of a disk that is full or broken what is needed, what is free, and which snapshot is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        size = sum(tensor.nbytes for tensors in snapshot.tensors.values() for tensor in tensors.values())
        disk, left = os.statvfs(folder), newest_first(folder)
        newest = f"the newest one left is of step {snapshot_step(left[0])}" if left else "there is none before it"
        room = f"{disk.f_bavail * disk.f_frsize / 1e6:,.1f} of {disk.f_blocks * disk.f_frsize / 1e6:,.1f} MB are free"
        text = f"{error.strerror} (the snapshot of step {snapshot.step} takes {size / 1e6:,.1f} MB, {room}; {newest})"
        raise OSError(error.errno, text, error.filename or str(folder)) from None


def write_snapshot(
    folder: Path, snapshot: Snapshot, note: Callable[[int], None], superseded: Callable[[], bool]
) -> None:
    """Put `snapshot` into `folder`, whole or not at all. Raises OSError, SupersededError."""
    if superseded():
        raise SupersededError("another launcher has continued this run, so no snapshot is written any more")
    for leftover in folder.glob(f".{STEP}*"):
        clear(leftover)
    final = folder / snapshot_name(snapshot.step)
    temporary = hidden(final, "writing")
    try:
        temporary.mkdir()
        with held_folder(temporary) as held:
            write_contents(held, snapshot, note)
    except OSError:
        if not superseded():  # else the other cleared ours away, and this one may be his
            clear(temporary)  # a full disk is needed for saying so
            raise
    if superseded():
        raise SupersededError("another launcher has continued this run, so this snapshot is not taken")
    if final.exists():  # damaged, or the job would have gone on from it
        final.rename(hidden(final, "replaced"))
    temporary.rename(final)
    sync_folder(folder)


def prune(folder: Path, written: Snapshot, keep: int) -> list[tuple[str, str]]:
    """Delete all snapshots but the one just `written`, the `keep` - 1 before it, the newest in which no rank had computed wrongly
    (`clean` in its state says until when that is known), and those of later attempts.

    One of the same step that it replaced goes as well. Returns what cannot be deleted now, and why.
    """
    snapshots = list_snapshots(folder)
    wanted = [path for path in snapshots if snapshot_step(path) <= written.step][:keep]
    clean = written.state.get("clean", -1)
    wanted += [path for path in snapshots if snapshot_step(path) <= clean][:1]
    left = []
    for path in snapshots:
        if path not in wanted and snapshot_attempt(path) <= written.attempt:
            try:  # a half-deleted snapshot must not look like a damaged one
                path.rename(hidden(path, "deleting"))
            except OSError as error:
                left.append((path.name, error.strerror or str(error)))
    gone = (*folder.glob(f".{STEP}*.replaced*"), *folder.glob(f".{STEP}*.deleting*"))
    return left + [(path.name, why) for path in gone if (why := clear(path))]


class Suspicion(NamedTuple):
    """What an attempt found: snapshots of earlier ones that are of later steps than `step` may contain wrong numbers."""

    attempt: int
    step: int


UNSUSPECTED = Suspicion(-1, 2**63 - 1)


def read_suspicion(folder: Path) -> Suspicion:
    """The newest that a folder of snapshots knows of; UNSUSPECTED where there is none."""
    record = read_json(folder / SUSPECTED_FILE)
    attempt, step = (record.get(name) for name in Suspicion._fields)
    return Suspicion(attempt, step) if isinstance(attempt, int) and isinstance(step, int) else UNSUSPECTED


def set_aside(folder: Path, found: Suspicion, *, earlier: bool = False) -> list[Path]:
    """Rename the snapshots of later steps, so that nobody resumes from them, and mark the others as clean: their states know of
    the replays before them alone. Returns the new paths. Raises OSError.

    `earlier`: only the snapshots of earlier attempts, on a node that was away when this was found.
    """
    if not folder.is_dir():
        return []
    renamed = []
    with held_folder(folder) as held:
        write_json(held / SUSPECTED_FILE, found._asdict())
        for path in list_snapshots(held):
            if earlier and snapshot_attempt(path) >= found.attempt:
                continue
            if snapshot_step(path) <= found.step:
                touch_run_file(path / CLEAN)
                continue
            aside = held / f"{SUSPECT}{path.name}"
            if aside.exists():
                clear(aside.rename(hidden(path, "deleting")))
            (path / WITHDRAWN).unlink(missing_ok=True)  # somebody has renamed it back before
            renamed.append(folder / path.rename(aside).name)
        sync_folder(held)
    return renamed


def write_contents(folder: Path, snapshot: Snapshot, note: Callable[[int], None]) -> None:
    """Write all files of a snapshot, the manifest last, and fsync each."""
    state = json.dumps(snapshot.state, indent=1, sort_keys=True).encode()
    files = {STATE: write_file(folder / STATE, [state], note)}
    for stem, tensors in snapshot.tensors.items():
        name = f"{stem}{TENSORS}"
        files[name] = write_file(folder / name, safetensors_chunks(tensors), note)
    write_file(folder / MANIFEST, [Manifest(snapshot.step, snapshot.attempt, files).text], note)
    sync_folder(folder)


def read_manifest(path: Path) -> Manifest:
    """The manifest of a snapshot. Raises SnapshotError, and NewerFormatError for a later version's."""
    try:
        manifest = snapshots.read_manifest(path)
    except FileNotFoundError:
        raise SnapshotError(f"{path / MANIFEST} is missing") from None
    except ManifestError as error:
        raise SnapshotError(f"{path / MANIFEST} {error}") from error
    except OSError as error:
        raise SnapshotError(f"{path / MANIFEST} cannot be read ({error!r})") from error
    if manifest.format > FORMAT:
        raise NewerFormatError(
            f"{path} has format {manifest.format}, this version of slipway reads up to {FORMAT}. "
            "Use the version that wrote it, or type --resume PATH with an older snapshot."
        )
    if snapshot_name(manifest.step) != path.name:
        raise SnapshotError(f"{path / MANIFEST} belongs to step {manifest.step}")
    return manifest


def verify_snapshot(path: Path) -> None:
    """Compare every file with the manifest. Raises SnapshotError naming the first wrong one."""
    for name, facts in read_manifest(path).files.items():
        verify_file(path / name, facts)


def verify_file(path: Path, facts: FileFacts) -> None:
    """Raise SnapshotError unless these are the file's."""
    with as_snapshot_errors(path), open_run_file(path) as file:
        require_match(path, os.fstat(file.fileno()).st_size, facts.size, "bytes")
        require_match(path, hashlib.file_digest(file, "sha256").hexdigest(), facts.sha256, "as checksum")


def read_file(path: Path, facts: FileFacts) -> bytes:
    """The content of a file, which is what was verified. Raises SnapshotError unless it has these facts."""
    with as_snapshot_errors(path):
        with open_run_file(path) as file:
            require_match(path, os.fstat(file.fileno()).st_size, facts.size, "bytes")
            content = file.read()
        require_match(path, hashlib.sha256(content).hexdigest(), facts.sha256, "as checksum")
    return content


def require_match(path: Path, found: object, expected: object, what: str) -> None:
    """Raise SnapshotError where a file is not as the manifest says."""
    if found != expected:
        raise SnapshotError(f"{path} has {found} {what} instead of {expected}")


@contextmanager
def as_snapshot_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a SnapshotError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise SnapshotError(f"{path} is missing") from None
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read ({error.strerror})") from error


def load_snapshot(path: Path, stems: Collection[str] = ()) -> Snapshot:
    """Verify and read one snapshot into CPU tensors: all, or those of `stems`. Raises SnapshotError."""
    files = read_manifest(path).files
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, facts in files.items():
        stem = PART.sub("", Path(name).stem)
        if stems and stem not in stems:
            verify_file(path / name, facts)
        elif name != STATE:
            tensors.setdefault(stem, {}).update(parse_tensors(path / name, read_file(path / name, facts)))
    state = parse_state(path, read_file(path / STATE, files[STATE]))
    if (path / CLEAN).exists():
        state["clean"] = snapshot_step(path)
    return Snapshot(snapshot_step(path), state, tensors, snapshot_attempt(path))


def parse_tensors(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    """The tensors in a file whose checksum fits, which says nothing of who wrote it. Raises SnapshotError."""
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise SnapshotError(f"{path} cannot be read as tensors ({error})") from error


def parse_state(path: Path, content: bytes) -> dict[str, Any]:
    """What is not a tensor. Raises SnapshotError."""
    try:
        state = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{path / STATE} cannot be read ({error})") from error
    if not isinstance(state, dict):
        raise SnapshotError(f"{path / STATE} does not contain an object")
    return state


def load_newest(
    folder: Path, warn: Callable[[str], None], stems: Collection[str] = (), until: tuple[float, float] = ANY
) -> tuple[Path, Snapshot] | None:
    """The newest snapshot in `folder` that verifies, None without any. Each one skipped is named through `warn`.

    `stems`: as for `load_snapshot`. `until`: an attempt and step; later ones are passed over.

    Raises NewerFormatError where a later version wrote the newest, ConfigurationError for an address such as s3://bucket.
    """
    require_local(folder, str(folder))
    for path in newest_first(folder):
        if snapshot_version(path) > until:
            continue
        try:
            found = load_snapshot(path, stems)
        except NewerFormatError:
            raise
        except SnapshotError as error:
            warn(f"skipping the damaged snapshot {path.name}: {error}")
            continue
        for later in list_snapshots(folder):
            if snapshot_step(later) > found.step and 0 < snapshot_attempt(later) < found.attempt:
                warn(
                    f"skipping {later.name}: an earlier attempt completed it after this attempt had resumed from another snapshot"
                )
        return path, found
    return None
