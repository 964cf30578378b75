"""Snapshots that cannot lie: a folder per snapshot, complete and verified or not there at all.

`snapshots/step-00001500/` holds `model.safetensors`, `optimizer.safetensors`, `rng.safetensors`, `state.json` (what is
not a tensor) and `manifest.json` (format, step, size and sha256 of every other file). It is written under a temporary
name, fsynced and renamed. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from slipway.train.durable import safetensors_chunks, sync_folder, write_file

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"


class SnapshotError(Exception):
    """A snapshot that cannot be used; the message says which file and why."""


class NewerFormatError(SnapshotError):
    """A snapshot that a later version wrote. It is whole, so nothing older is taken instead of it."""


@dataclass(frozen=True)
class Snapshot:
    """Everything needed to go on after `step`: JSON values in `state`, tensors by file (model, optimizer, rng)."""

    step: int
    state: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, torch.Tensor]]


def snapshot_name(step: int) -> str:
    """The folder's name, which sorts by step."""
    return f"step-{step:08d}"


def list_snapshots(folder: Path) -> list[Path]:
    """Snapshots in `folder`, newest first by step (clocks and file times do not matter)."""
    found = [path for path in folder.glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def save_snapshot(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Write `snapshot` into `folder`, verify it, then delete all but the newest `keep`. Returns its path.

    Snapshots of later steps are deleted as well: the job went on from an earlier one, so they can only be damaged.
    Raises OSError where it cannot be written and SnapshotError where the disk does not give back what was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover)
    final = folder / snapshot_name(snapshot.step)
    temporary = folder / f".{final.name}.writing"
    try:
        temporary.mkdir()
        write_files(temporary, snapshot)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk is needed for saying so
        raise
    if final.exists():
        final.rename(folder / f".{final.name}.replaced")
    temporary.rename(final)
    sync_folder(folder)
    verify_snapshot(final)
    older = [path for path in list_snapshots(folder) if int(path.name[5:]) < snapshot.step]
    wanted = {final, *older[: keep - 1]}
    for path in list_snapshots(folder):
        if path not in wanted:
            # A half-deleted snapshot must not look like a damaged one.
            shutil.rmtree(path.rename(folder / f".{path.name}.deleting"))
    return final


def write_files(folder: Path, snapshot: Snapshot) -> None:
    """Write all files of a snapshot, the manifest last, and fsync each."""
    state = json.dumps(snapshot.state, indent=1, sort_keys=True).encode()
    files = {STATE: write_file(folder / STATE, iter([state]))}
    for stem, tensors in snapshot.tensors.items():
        name = f"{stem}.safetensors"
        files[name] = write_file(folder / name, safetensors_chunks(tensors))
    manifest = {"format": FORMAT, "step": snapshot.step, "files": files}
    write_file(folder / MANIFEST, iter([json.dumps(manifest, indent=1, sort_keys=True).encode()]))
    sync_folder(folder)


def verify_snapshot(path: Path) -> list[str]:
    """Compare every file with the manifest; returns their names. Raises SnapshotError naming the first wrong one."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        written, step, files = manifest["format"], manifest["step"], dict(manifest["files"])
        if written > FORMAT:
            raise NewerFormatError(
                f"{path} has format {written}, this version of slipway reads up to {FORMAT}. "
                "Go on with the version that wrote it, or type --resume PATH with an older snapshot."
            )
        if snapshot_name(step) != path.name:
            raise SnapshotError(f"{path / MANIFEST} belongs to step {step}")
        for name, expected in files.items():
            verify_file(path / name, expected["size"], expected["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error!r})"
        raise SnapshotError(f"{path / MANIFEST} {reason}") from error
    return sorted(files)


def verify_file(path: Path, size: int, sha256: str) -> None:
    """Raise SnapshotError unless the file has this size and checksum."""
    try:
        found = path.stat().st_size
        if found != size:
            raise SnapshotError(f"{path} has {found} bytes instead of {size}")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise SnapshotError(f"{path} does not have the checksum that the manifest gives")
    except FileNotFoundError:
        raise SnapshotError(f"{path} is missing") from None
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read ({error.strerror})") from error


def load_snapshot(path: Path) -> Snapshot:
    """Verify and read one snapshot into CPU tensors. Raises SnapshotError."""
    names = verify_snapshot(path)
    state = json.loads((path / STATE).read_bytes())
    tensors = {Path(name).stem: load_file(path / name) for name in names if name.endswith(".safetensors")}
    return Snapshot(int(path.name[5:]), state, tensors)


def load_newest(folder: Path, warn: Callable[[str], None]) -> tuple[Path, Snapshot] | None:
    """The newest snapshot in `folder` that verifies, None without any. Each one skipped is named through `warn`.

    Raises NewerFormatError where a later version wrote the newest.
    """
    for path in list_snapshots(folder):
        try:
            return path, load_snapshot(path)
        except NewerFormatError:
            raise
        except SnapshotError as error:
            warn(f"skipping the damaged snapshot {path.name}: {error}")
    return None
