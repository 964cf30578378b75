"""Which snapshot to resume from, and how all ranks get it.

Each rank that writes snapshots searches what its node sees. The newest valid snapshot of all is sent to every rank over the
process group, so no file system needs to be shared, and a node may have an empty disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from slipway.protocol.files import (
    SNAPSHOTS,
    STEP,
    list_snapshots,
    number_in,
    snapshot_attempt,
    snapshot_name,
    snapshot_step,
)
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase
from slipway.train.snapshots.memory_buffers import MemoryBuffers
from slipway.train.snapshots.snapshot import (
    Snapshot,
    SnapshotError,
    load_newest,
    load_snapshot,
    newest_first,
)
from slipway.train.worker.context import Context

POLL = 0.05  # seconds between two checks of the disks


class SearchResult(IntEnum):
    """What a rank found, as the ranks exchange it."""

    NOTHING = 0
    SNAPSHOT = 1
    DAMAGED = 2  # snapshots, but none that can be loaded: fine where another node has one
    REFUSED = 3  # a reason not to start, whatever the others have


@dataclass(frozen=True)
class Search:
    """What one rank found: a snapshot with its path, or the reason why not."""

    finding: SearchResult = SearchResult.NOTHING
    path: Path | None = None
    snapshot: Snapshot | None = None
    failure: Exception | None = None
    on_disk: int = -1  # the step of the run's latest snapshot here, whole or not

    @property
    def in_memory(self) -> bool:
        """Whether the snapshot was in memory, not on a disk."""
        return self.snapshot is not None and self.path is None

    @property
    def report(self) -> tuple[int, int, int, int, int]:
        """What the others must know: the finding, its attempt and step, whether it was on a disk, and what the disk has."""
        found = (self.snapshot.attempt, self.snapshot.step) if self.snapshot else (-1, -1)
        return int(self.finding), *found, int(not self.in_memory), self.on_disk


@dataclass(frozen=True)
class SharedSnapshot:
    """The snapshot to resume from.

    `held`: whether this rank's run directory has what it needs: that snapshot or, if it was in memory, a latest snapshot
    that is as new as any other node's.
    """

    snapshot: Snapshot
    held: bool
    in_memory: bool = False


def search(resume: str, own: Path, context: Context, memory: MemoryBuffers) -> Search:
    """Search for the snapshot that `resume` means; `own` has the run's snapshots. Names each one that is skipped."""
    latest = next(iter(list_snapshots(own)), None)
    try:
        if resume == "none":
            if latest is None:
                return Search()
            raise ConfigurationError(
                f"{own} already holds {latest.name}. Go on with it by --resume auto, or type another --run-dir."
            )
        found = load_newer(own, context, memory) if resume == "auto" else load_named(Path(resume), context)
    except (ConfigurationError, SnapshotError) as error:
        return Search(SearchResult.REFUSED, failure=error)
    if found is None:
        if resume == "auto" and latest is not None:
            nothing = SnapshotError(f"{own} holds no snapshot that can be loaded. Start again with another --run-dir.")
            return Search(SearchResult.DAMAGED, failure=nothing)
        return Search()
    path, snapshot = found
    if latest is not None and path is not None and snapshot_step(latest) > snapshot.step and resume != "auto":
        later = f"{own} already holds {latest.name}, later than {path.name}. Type another --run-dir to branch off."
        return Search(SearchResult.REFUSED, failure=ConfigurationError(later))
    return Search(SearchResult.SNAPSHOT, path, snapshot, on_disk=snapshot_step(latest) if latest else -1)


def load_newer(own: Path, context: Context, memory: MemoryBuffers) -> tuple[Path | None, Snapshot] | None:
    """The newest snapshot that is whole, in memory or on the disk; there is no path to one in memory."""
    listed = newest_listed(own)
    if kept := memory.load(newer_than=listed):
        return None, kept
    found = load_newest(own, context.warn)
    on_disk = (found[1].attempt, found[1].step) if found else (-1, -1)
    if on_disk < listed and (kept := memory.load(newer_than=on_disk)):
        return None, kept
    return found


def search_memory(own: Path, memory: MemoryBuffers) -> Search:
    """What `search` finds in memory alone."""
    attempt, step = newest_listed(own)
    kept = memory.load(newer_than=(attempt, step))
    return Search(SearchResult.SNAPSHOT if kept else SearchResult.NOTHING, None, kept, on_disk=step)


def newest_listed(own: Path) -> tuple[int, int]:
    """Attempt and step of the newest snapshot of a run, whole or not."""
    return next(((snapshot_attempt(path), snapshot_step(path)) for path in newest_first(own)), (-1, -1))


def load_named(path: Path, context: Context) -> tuple[Path, Snapshot] | None:
    """The snapshot at `path`, or the newest valid one of the run there; None where there is neither.

    Raises SnapshotError where the snapshot itself was named and is damaged.
    """
    if (path / SNAPSHOTS).is_dir():
        return load_newest(path / SNAPSHOTS, context.warn)
    return (path, load_snapshot(path)) if number_in(path.name, STEP) is not None and path.is_dir() else None


def choose_source(reports: Sequence[tuple[int, int, int]]) -> int | None:
    """The rank whose finding counts for all: a refusal, else the newest snapshot, else damage; None without any."""
    for finding in (SearchResult.REFUSED, SearchResult.SNAPSHOT, SearchResult.DAMAGED):
        ranks = [rank for rank, report in enumerate(reports) if report[0] == finding]
        if ranks:
            return max(ranks, key=lambda rank: reports[rank][1:])
    return None


def share_snapshot(
    context: Context, resume: str, wants: Callable[[str, str], bool], memory: MemoryBuffers
) -> SharedSnapshot | None:
    """The snapshot that `resume` (none, auto or a path) means, None without any; with `auto` it may be one in memory.

    The same on all ranks, but that each keeps only the tensors that it `wants`, by file and name. Raises
    ConfigurationError and SnapshotError, on all ranks.
    """
    place = context.place
    context.beat(Phase.LOAD)
    own = search_together(resume, context, memory)
    reports = [tuple(report.tolist()) for report in context.gather(torch.tensor(own.report))]
    source = choose_source(reports)
    if source is None:
        if resume in ("none", "auto"):
            return None
        raise ConfigurationError(
            f"--resume {resume} is neither a snapshot nor a run directory with one that can be loaded."
        )
    layout = json.loads(context.share_text(json.dumps(describe_layout(own)), source))
    if layout["failure"] is not None:
        kind, message = layout["failure"]
        raise (SnapshotError if kind == "snapshot" else ConfigurationError)(message)
    name = snapshot_name(layout["step"])
    context.say(f"resuming from {layout['path'] or f'{name}, in memory'}")
    snapshot = own.snapshot if place.rank == source else None
    snapshot = receive_snapshot(context, layout, snapshot, source, wants)
    if resume == "auto":
        context.progress(snapshot.step, Path(layout["path"]).name if layout["path"] else None)
    if layout["path"] is None:
        memory.count_load(replace(snapshot, attempt=reports[source][1]))
        return SharedSnapshot(snapshot, own.on_disk >= max(report[4] for report in reports), in_memory=True)
    held = own.snapshot is not None and own.report[:4] == reports[source][:4]
    return SharedSnapshot(snapshot, resume == "auto" and held)


def search_together(resume: str, context: Context, memory: MemoryBuffers) -> Search:
    """What `search` finds, where this rank keeps snapshots; no rank waits in one long exchange, however long disks take."""
    place = context.place
    folder = place.run_dir / SNAPSHOTS
    with ThreadPoolExecutor(max_workers=1) as reader:
        own = []
        if place.keeps_snapshots:
            own = [reader.submit(search, resume, folder, context, memory)]
        elif resume == "auto" and memory.usable:  # all nodes see one disk, which rank 0 reads
            own = [reader.submit(search_memory, folder, memory)]
        while any(context.total(len(wait(own, POLL).not_done))):
            continue
    return own[0].result() if own else Search()


def receive_snapshot(
    context: Context,
    layout: Mapping[str, Any],
    own: Snapshot | None,
    source: int,
    wants: Callable[[str, str], bool],
) -> Snapshot:
    """What each rank `wants` of the snapshot of rank `source`, where it is `own`; by all ranks."""
    received: dict[str, dict[str, torch.Tensor]] = {}
    for stem, described in layout["tensors"].items():
        received[stem] = {}
        for name, shape, dtype in described:
            tensor = own.tensors[stem][name].contiguous() if own else make_empty(shape, dtype)
            context.share(tensor, source)
            if wants(stem, name):
                received[stem][name] = tensor
            context.beat(Phase.LOAD)
    return Snapshot(layout["step"], layout["state"], received)


def describe_layout(own: Search) -> dict[str, Any]:
    """What the other ranks must know before the tensors come."""
    if own.failure is not None:
        wrong = isinstance(own.failure, ConfigurationError)
        return {"failure": ["configuration" if wrong else "snapshot", str(own.failure)]}
    if own.snapshot is None:
        return {"failure": None}
    tensors = {stem: describe_tensors(tensors) for stem, tensors in own.snapshot.tensors.items()}
    described = {"step": own.snapshot.step, "state": own.snapshot.state, "tensors": tensors}
    return {"failure": None, "path": str(own.path) if own.path else None, **described}


def describe_tensors(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, list[int], str]]:
    """Name, shape and type of each tensor, as JSON can carry them."""
    return [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()]


def make_empty(shape: list[int], dtype: str) -> torch.Tensor:
    """A CPU tensor to be filled by another rank."""
    return torch.empty(shape, dtype=getattr(torch, dtype))
