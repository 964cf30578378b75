"""What a snapshot is, on a disk and in a store: a folder that is complete, as its manifest says, or not there at all.

    snapshots/step-00001500/             model.safetensors, optimizer.safetensors, ranks.safetensors, state.json, manifest.json
    snapshots/part-00003/step-00001500/  the same of one part, where parameters are spread over ranks
    snapshots/suspect-step-00001500/     one that was set aside, since it may contain wrong numbers
    snapshots/suspected.json             what a node that was away then has to set aside

Launchers, workers and the process that copies to a store all know snapshots through this module alone; what is in the files of
tensors only `train/snapshots/snapshot.py` knows.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from slipway.protocol.durable import FileFacts
from slipway.protocol.files import LARGEST, SNAPSHOTS, attempt_in, number_in, parse_json, read_json, read_run_bytes

FORMAT = 1  # of what this version writes; it reads this one and earlier ones
STEP, PART, SUSPECT = "step-", "part-", "suspect-"  # what stands before the number in a name
MANIFEST = "manifest.json"  # written last: format, step, attempt, and the size and sha256 of every other file
STATE, TENSORS = "state.json", ".safetensors"  # what is not a tensor; the other files
WITHDRAWN = "withdrawn"  # in the folder of one that was set aside: the store has no copy of it that counts
SUSPECTED_FILE = "suspected.json"
CLEAN = "clean"  # in the folder of one that was kept then: until its step all ranks had computed the same
FILE = re.compile(r"[A-Za-z][A-Za-z0-9-]*\.safetensors")  # all on one level: no name leads out of the folder
Version = tuple[int, int]  # attempt and step: a later attempt continued the run, from an earlier step perhaps


def snapshot_name(step: int) -> str:
    """The name of a snapshot's folder, which sorts by step."""
    return f"{STEP}{step:08d}"


def snapshot_step(path: Path) -> int:
    """The step in a snapshot's name. ValueError where it is none."""
    step = number_in(path.name, STEP)
    if step is None:
        raise ValueError(f"{path} is no snapshot")
    return step


def list_snapshots(folder: Path) -> list[Path]:
    """Snapshots in `folder`, newest first by step (clocks and file times do not matter)."""
    found = [path for path in folder.glob(f"{STEP}*") if number_in(path.name, STEP) is not None]
    return sorted(found, key=snapshot_step, reverse=True)


def list_suspects(folder: Path) -> list[Path]:
    """Snapshots in `folder` that were set aside."""
    before = f"{SUSPECT}{STEP}"
    return [path for path in folder.glob(f"{before}*") if number_in(path.name, before) is not None]


def part_name(part: int) -> str:
    """The name of the folder with the snapshots of a part."""
    return f"{PART}{part:05d}"


def newest_step(run: Path) -> int | None:
    """The step of the newest snapshot in a run directory, None without one. A node may hold only some parts of it."""
    found = _first_of(run, list_snapshots)
    return snapshot_step(found) if found else None


def part_folder(run: Path, part: int) -> Path:
    """The folder of a run directory with the snapshots of a part."""
    return run / SNAPSHOTS / part_name(part) if part else run / SNAPSHOTS


def snapshot_attempt(path: Path) -> int:
    """The number of the attempt that wrote a snapshot; 0 where its manifest does not say."""
    return attempt_in(read_json(path / MANIFEST))


def snapshot_version(path: Path) -> Version:
    """What orders the snapshots of a run."""
    return snapshot_attempt(path), snapshot_step(path)


def newest_first(folder: Path) -> list[Path]:
    """Snapshots in `folder` in the order in which to go on from them: by the attempt that wrote them, then by step.

    A launcher that was frozen may wake in the middle of a save after another went on with the run, from an earlier step
    perhaps: what it finishes then is of an earlier attempt. Where the manifest does not tell, the step alone counts.
    """
    found = list_snapshots(folder)
    attempts = {path: snapshot_attempt(path) for path in found}
    newest = max(attempts.values(), default=0)
    return sorted(found, key=lambda path: (attempts[path] or newest, snapshot_step(path)), reverse=True)


def newest_version(run: Path) -> Version:
    """That of the snapshot on this disk from which workers resume, if it is whole; -1 twice without one."""
    found = _first_of(run, newest_first)
    return snapshot_version(found) if found else (-1, -1)


def _first_of(run: Path, ordered: Callable[[Path], list[Path]]) -> Path | None:
    """The first of the first part that this disk has."""
    try:
        parts = (run / SNAPSHOTS, *(run / SNAPSHOTS).glob(f"{PART}*"))
        return next((found[0] for found in map(ordered, parts) if found), None)
    except OSError:  # a disk that is away for a while
        return None


class ManifestError(ValueError):
    """A manifest that makes no sense; the message says why, and follows the manifest's name."""


class Manifest(NamedTuple):
    """What a snapshot consists of: its files by name, sorted. `attempt` wrote it; 0 if nobody said."""

    step: int
    attempt: int
    files: Mapping[str, FileFacts]
    format: int = FORMAT

    @property
    def text(self) -> bytes:
        """As it is written."""
        told = {**self._asdict(), "files": {name: facts._asdict() for name, facts in self.files.items()}}
        return json.dumps(told, indent=1, sort_keys=True).encode()


def parse_manifest(text: bytes) -> Manifest:
    """Read a manifest. One of a later format may have no files, and step -1. Raises ManifestError."""
    try:
        record = parse_json(text)
        number = record["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ManifestError(f"cannot be read ({error!r})") from error
    if type(number) is not int or number < 1:
        raise ManifestError(f"has the invalid format {number!r}")
    try:
        step = record["step"]
        files = {
            name: FileFacts(int(each["size"]), str(each["sha256"])) for name, each in sorted(record["files"].items())
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if number > FORMAT:
            return Manifest(-1, 0, {}, number)
        raise ManifestError(f"cannot be read ({error!r})") from error
    if number <= FORMAT and STATE not in files:
        raise ManifestError(f"does not name {STATE}")
    for name in files:
        known = name == STATE or FILE.fullmatch(name) or number > FORMAT
        if not known or "/" in name or "\0" in name or name in ("", ".", "..", MANIFEST):
            raise ManifestError(f"names {name!r}, which is not a file of a snapshot")
    return Manifest(step if type(step) is int else -1, attempt_in(record), files, number)


def read_manifest(path: Path) -> Manifest:
    """The manifest of the snapshot in a folder. Raises OSError, ManifestError."""
    return parse_manifest(read_run_bytes(path / MANIFEST, LARGEST))
