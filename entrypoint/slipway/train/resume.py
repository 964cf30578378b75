"""Which snapshot to go on from, and how all ranks come by it.

Only rank 0 reads and writes; the others receive its tensors, so no file system needs to be shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slipway.train.context import Context
from slipway.train.options import ConfigurationError
from slipway.train.snapshot import (
    NewerFormatError,
    Snapshot,
    SnapshotError,
    list_snapshots,
    load_newest,
    load_snapshot,
)

SNAPSHOTS = "snapshots"


def find_snapshot(context: Context) -> tuple[Path, Snapshot] | None:
    """The snapshot that SLIPWAY_RESUME means, None to begin at zero. For rank 0.

    Raises ConfigurationError where it names nothing, or where this run directory holds later steps than the snapshot
    named, and SnapshotError where that one is damaged.
    """
    resume, own = context.place.resume, context.place.run_dir / SNAPSHOTS
    latest = next(iter(list_snapshots(own)), None)
    if resume == "none":
        if latest is not None:
            raise ConfigurationError(
                f"{own} already holds {latest.name}. Go on with it by --resume auto, or type another --run-dir."
            )
        return None
    if resume == "auto":
        return load_newest(own, context.warn)
    path = Path(resume)
    if (path / SNAPSHOTS).is_dir():
        found = load_newest(path / SNAPSHOTS, context.warn)
    else:
        found = (path, load_snapshot(path)) if path.name.startswith("step-") and path.is_dir() else None
    if found is None:
        raise ConfigurationError(
            f"--resume {resume} is neither a snapshot nor a run directory with one that can be loaded."
        )
    if latest is not None and snapshot_step(latest) > found[1].step:
        raise ConfigurationError(
            f"{own} already holds {latest.name}, later than {found[0].name}. Type another --run-dir to branch off."
        )
    return found


def snapshot_step(path: Path) -> int:
    """The step in a snapshot's name."""
    return int(path.name.removeprefix("step-"))


def share_snapshot(context: Context) -> Snapshot | None:
    """Find the snapshot on rank 0 and give it to all ranks. Raises what `find_snapshot` raises, on all ranks."""
    found: Snapshot | None = None
    failure: Exception | None = None
    if context.place.rank == 0:
        try:
            found = announce(context, find_snapshot(context))
        except (ConfigurationError, SnapshotError) as error:
            failure = error
    layout = json.loads(context.share_text(json.dumps(describe_layout(found, failure))))
    if layout["failure"] is not None:
        wrong, message = layout["failure"]
        raise failure or (SnapshotError if wrong == "snapshot" else ConfigurationError)(message)
    if layout["step"] is None:
        return None
    received = {
        stem: {
            name: context.share(found.tensors[stem][name] if found else make_empty(shape, dtype))
            for name, shape, dtype in described
        }
        for stem, described in layout["tensors"].items()
    }
    return Snapshot(layout["step"], layout["state"], received)


def announce(context: Context, found: tuple[Path, Snapshot] | None) -> Snapshot | None:
    """Say which snapshot training goes on from."""
    if found is None:
        return None
    path, snapshot = found
    context.say(f"going on from {path}")
    context.progress(snapshot.step, path.name)
    return snapshot


def describe_layout(found: Snapshot | None, failure: Exception | None) -> dict[str, Any]:
    """What the other ranks must know before the tensors come."""
    if failure is not None:
        wrong = "configuration" if isinstance(failure, ConfigurationError | NewerFormatError) else "snapshot"
        return {"failure": [wrong, str(failure)]}
    if found is None:
        return {"failure": None, "step": None}
    tensors = {stem: describe(tensors) for stem, tensors in found.tensors.items()}
    return {"failure": None, "step": found.step, "state": found.state, "tensors": tensors}


def describe(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, list[int], str]]:
    """Name, shape and type of each tensor, as JSON can carry them."""
    return [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()]


def make_empty(shape: list[int], dtype: str) -> torch.Tensor:
    """A CPU tensor to be filled by another rank."""
    return torch.empty(shape, dtype=getattr(torch, dtype))
