"""Which snapshot to resume from, and how all ranks get it.

Each rank that writes snapshots searches what its node sees. The newest valid snapshot of all is sent to every rank over the
process group, in pieces whose checksums are compared, so no file system needs to be shared, and a node may have an empty disk.
Where parameters are spread over ranks, the newest one counts of which every part (parts.py) is there, and a rank that has its
part is sent nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from slipway.protocol import files, snapshots
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase
from slipway.protocol.printable import counted, rank_ranges
from slipway.train.snapshots.memory_buffers import MemoryBuffers
from slipway.train.snapshots.parts import RankParts
from slipway.train.snapshots.snapshot import (
    ANY,
    UNSUSPECTED,
    Snapshot,
    SnapshotError,
    Suspicion,
    load_newest,
    load_snapshot,
    read_suspicion,
    set_aside,
)
from slipway.train.snapshots.tensors import sum_of_bits
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import PeerError, UnhealthyError

KINDS = ("none", "auto")  # of --resume, beside a path
POLL = 0.05  # seconds between two checks of the disks
TOGETHER = 2**24  # bytes of tensors that are sent in one exchange
SENDS = 3  # times that they are sent at most, until they arrive undamaged
Described = tuple[str, list[int], str]  # name, shape and type of a tensor


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
    def report(self) -> tuple[int, ...]:
        """What the others must know: the finding, its attempt, step and set, whether it was on a disk, what the disk has, and
        whether an earlier snapshot was complete.
        """
        found, after = (-1, -1, 0), False
        if self.snapshot:
            state = self.snapshot.state
            found, after = (self.snapshot.attempt, self.snapshot.step, state.get("set", 0)), state.get("earlier", False)
        return int(self.finding), *found, int(not self.in_memory), self.on_disk, int(after)


@dataclass(frozen=True)
class SharedSnapshot:
    """The snapshot to resume from.

    `held`: whether this rank's run directory has what it needs: that snapshot or, if it was in memory, a latest snapshot
    that is as new as any other node's.
    """

    snapshot: Snapshot
    held: bool
    in_memory: bool = False


Version = tuple[float, float]  # attempt and step


def search(
    resume: str, own: Path, context: Context, memory: MemoryBuffers, parts: RankParts, until: Version = ANY
) -> Search:
    """Search for the snapshot that `resume` means, at most `until`; `own` has those of this rank's part. Names each one that is
    skipped.
    """
    latest = next(iter(snapshots.list_snapshots(own)), None)
    try:
        if resume == "none":
            if latest is None:
                return Search()
            raise ConfigurationError(
                f"{own} already holds {latest.name}. Resume it with --resume auto, or type another --run-dir."
            )
        found = (
            load_newer(own, context, memory, until)
            if resume == "auto"
            else load_named(Path(resume), context, parts, until)
        )
        if found is not None:
            require_parts(found[1], parts)
            if resume != "auto":
                require_unsuspected(resume, found[1].step, own)
    except (ConfigurationError, SnapshotError) as error:
        return Search(SearchResult.REFUSED, failure=error)
    if found is None:
        if resume == "auto" and latest is not None:
            nothing = SnapshotError(f"{own} holds no snapshot that can be loaded. Start again with another --run-dir.")
            return Search(SearchResult.DAMAGED, failure=nothing)
        return Search()
    path, snapshot = found
    if latest is not None and path is not None and snapshots.snapshot_step(latest) > snapshot.step and resume != "auto":
        later = f"{own} already holds {latest.name}, later than {path.name}. Type another --run-dir to branch off."
        return Search(SearchResult.REFUSED, failure=ConfigurationError(later))
    return Search(SearchResult.SNAPSHOT, path, snapshot, on_disk=snapshots.snapshot_step(latest) if latest else -1)


def require_parts(snapshot: Snapshot, parts: RankParts) -> None:
    """Raise ConfigurationError where a snapshot's tensors were spread over ranks in another way than this job's."""
    before, now = snapshot.state.get("parts"), [*parts.of_ranks] if parts.several else None
    if before != now:
        raise ConfigurationError(
            f"The snapshot at step {snapshot.step} is of {snapshot.state.get('world_size')} processes with "
            f"{describe_parts(before)}, and this job has {len(parts.of_ranks)} with {describe_parts(now)}. Start as many "
            "processes as before, with the same fully_shard, or another run: --run-dir PATH."
        )


def require_unsuspected(other: str, step: int, own: Path) -> None:
    """Raise ConfigurationError where this run began with the same wrong numbers once already, as replays have found since."""
    found = read_suspicion(own)
    if step > found.step:
        raise ConfigurationError(
            f"--resume {other}: the snapshot at step {step} may contain wrong numbers, as this run found in attempt "
            f"{found.attempt}. Type --resume with one of step {found.step} or before, or start another run: --run-dir PATH."
        )


def describe_parts(of_ranks: Sequence[int] | None) -> str:
    """Return how tensors are spread, for a message."""
    if of_ranks is None:
        return "parameters that each of them holds whole"
    count = len(set(of_ranks))
    replicas = f", {counted(len(of_ranks) // count, 'replica')}" if count < len(of_ranks) else ""
    return f"parameters that are spread over {count} of them{replicas}"


def load_newer(
    own: Path, context: Context, memory: MemoryBuffers, until: Version
) -> tuple[Path | None, Snapshot] | None:
    """The newest snapshot that is whole, in memory or on the disk; there is no path to one in memory."""
    listed = newest_listed(own, until)
    if kept := memory.load(listed, until):
        return None, kept
    found = load_newest(own, context.warn, until=until)
    on_disk = (found[1].attempt, found[1].step) if found else (-1, -1)
    if on_disk < listed and (kept := memory.load(on_disk, until)):
        return None, kept
    return found


def search_memory(own: Path, memory: MemoryBuffers, parts: RankParts, until: Version) -> Search:
    """What `search` finds in memory alone."""
    attempt, step = newest_listed(own, until)
    kept = memory.load((attempt, step), until)
    if kept is not None:
        try:
            require_parts(kept, parts)
        except ConfigurationError as error:
            return Search(SearchResult.REFUSED, failure=error)
    return Search(SearchResult.SNAPSHOT if kept else SearchResult.NOTHING, None, kept, on_disk=step)


def newest_listed(own: Path, until: Version = ANY) -> tuple[int, int]:
    """Attempt and step of the newest snapshot of a run, at most `until`, whole or not."""
    versions = (snapshots.snapshot_version(path) for path in snapshots.newest_first(own))
    return next((version for version in versions if version <= until), (-1, -1))


def load_named(path: Path, context: Context, parts: RankParts, until: Version) -> tuple[Path, Snapshot] | None:
    """This rank's part of the snapshot at `path`, or of the newest valid one of the run there; None where there is neither.

    Raises SnapshotError where the snapshot itself was named and is damaged.
    """
    if (path / files.SNAPSHOTS).is_dir():
        return load_newest(parts.folder(path / files.SNAPSHOTS), context.warn, until=until)
    own = parts.folder(path.parent) / path.name
    return (own, load_snapshot(own)) if files.number_in(own.name, snapshots.STEP) is not None and own.is_dir() else None


def choose_source(reports: Sequence[tuple[int, ...]]) -> int | None:
    """The rank whose finding counts for all: a refusal, else the newest snapshot, else damage; None without any."""
    for finding in (SearchResult.REFUSED, SearchResult.SNAPSHOT, SearchResult.DAMAGED):
        ranks = [rank for rank, report in enumerate(reports) if report[0] == finding]
        if ranks:
            return max(ranks, key=lambda rank: reports[rank][1:])
    return None


def newest_of_parts(
    reports: Sequence[tuple[int, ...]], of_ranks: Sequence[int]
) -> dict[int, tuple[int, int, int] | None]:
    """Return attempt, step and set of the newest snapshot that was found of each part."""
    newest: dict[int, tuple[int, int, int] | None] = dict.fromkeys(sorted(set(of_ranks)))
    for part, (finding, *version) in zip(of_ranks, reports, strict=True):
        if finding == SearchResult.SNAPSHOT:
            newest[part] = max(newest[part] or (-1, -1, 0), (version[0], version[1], version[2]))
    return newest


def agree_on_bound(newest: Sequence[tuple[int, int, int]]) -> Version | None:
    """Return the version up to which all search again, where the `newest` of the parts do not belong together; else None."""
    if len(set(newest)) == 1:
        return None
    attempt, step, _ = min(newest)
    return (attempt, step - 1) if len({version[:2] for version in newest}) == 1 else (attempt, step)


def require_no_earlier(
    missing: Sequence[int], reports: Sequence[tuple[int, ...]], of_ranks: Sequence[int], context: Context
) -> None:
    """Raise SnapshotError where parts of all snapshots are missing, unless the first snapshot was never complete."""
    ranks = ", ".join(str(rank) for rank, part in enumerate(of_ranks) if part in missing)
    if any(report[6] for report in reports):
        raise SnapshotError(
            f"Each rank saves its own part of the parameters, and no node has a part of rank {ranks} that belongs to those of "
            "the others. Bring back the disk that it was saved on, or start another run: --run-dir PATH."
        )
    context.say(f"starting from the beginning: the first snapshot is not complete, the part of rank {ranks} is missing")


def find_whole(
    context: Context, resume: str, memory: MemoryBuffers, parts: RankParts
) -> tuple[Search, list[tuple[int, ...]]]:
    """Search together until the findings of all parts belong together. Returns this rank's, and what all ranks report."""
    until: Version | None = ANY
    while until is not None:
        own = search_together(resume, context, memory, parts, until)
        reports = [tuple(report.tolist()) for report in context.gather(torch.tensor(own.report))]
        if not parts.several or any(report[0] == SearchResult.REFUSED for report in reports):
            break
        newest = newest_of_parts(reports, parts.of_ranks)
        missing = [part for part, version in newest.items() if version is None]
        if not missing:
            until = agree_on_bound([version for version in newest.values() if version])
        elif len(missing) == len(newest):
            break
        else:
            require_no_earlier(missing, reports, parts.of_ranks, context)
            return Search(), [Search().report] * len(reports)
    return own, reports


def share_snapshot(
    context: Context, resume: str, wants: Callable[[str, str], bool], memory: MemoryBuffers, parts: RankParts
) -> SharedSnapshot | None:
    """The snapshot that `resume` (none, auto or a path) means, None without any; with `auto` it may be one in memory.

    The same on all ranks of a part, but that each keeps only the tensors that it `wants`, by file and name. Raises
    ConfigurationError and SnapshotError, on all ranks.
    """
    place = context.place
    context.beat(Phase.LOAD)
    ways, given = agree_on_ways(context, resume)
    for resume in ways:
        if resume == "auto":
            set_aside_earlier(context, memory, parts)
        own, reports = find_whole(context, resume, memory, parts)
        source = choose_source(reports)
        if source is not None:
            break
    if source is None:
        if not given:
            return None
        raise ConfigurationError(
            f"--resume {given} is neither a snapshot nor a run directory with one that can be loaded."
        )
    layout = json.loads(context.share_text(json.dumps(describe_layout(own)), source))
    if layout["failure"] is not None:
        kind, message = layout["failure"]
        raise (SnapshotError if kind == "snapshot" else ConfigurationError)(message)
    name = snapshots.snapshot_name(layout["step"])
    context.say(f"resuming from {layout['path'] or f'{name}, in memory'}")
    if parts.several:
        snapshot, sources = receive_parts(context, own, reports, parts)
        source = sources[place.rank]
    else:
        sources = [source] * place.world_size
        snapshot = receive_snapshot(context, layout, own.snapshot if place.rank == source else None, source, wants)
    in_memory = not all(reports[each][4] for each in sources)
    if resume == "auto":
        context.progress(snapshot.step, None if in_memory else name)
    if in_memory:
        memory.count_load(replace(snapshot, attempt=reports[source][1]))
        return SharedSnapshot(snapshot, own.on_disk >= max(report[5] for report in reports), in_memory=True)
    held = own.snapshot is not None and own.report[:5] == reports[source][:5]
    return SharedSnapshot(snapshot, resume == "auto" and held)


def agree_on_ways(context: Context, resume: str) -> tuple[list[str], str]:
    """What this rank searches, one after the other until a snapshot is found, and the path that a rank was given, if any.

    By all ranks. Nodes may have been started differently, such as one that its scheduler starts again before the job has begun.
    `auto` on one rank counts for all, since it finds nothing in the empty directory of a new run; a path comes after it.
    """
    kinds = context.gather_number(KINDS.index(resume) if resume in KINDS else len(KINDS))
    none, auto, path = ([rank for rank, kind in enumerate(kinds) if kind == wanted] for wanted in range(3))
    given = context.share_text(resume, path[0]) if path else ""
    if len(set(kinds)) > 1:
        named = {"none": none, "auto": auto, given: path}
        different = " and ".join(
            f"{name} on rank{'s' if len(ranks) > 1 else ''} {rank_ranges(ranks)}"
            for name, ranks in named.items()
            if ranks
        )
        saved = ["what this run has saved, if anything"] if auto else []
        used = ", or else from ".join([*saved, *([given] if path else [])])
        context.say(f"note: --resume is {different}: all resume from {used}")
    if auto:
        return ["auto", *([resume if context.place.rank in path else "none"] if path else [])], given
    return [resume], given


def set_aside_earlier(context: Context, memory: MemoryBuffers, parts: RankParts) -> None:
    """Set aside what a node has that was away when wrong numbers were found. By all ranks. Raises as `set_aside_together`."""
    folder = parts.folder(context.place.run_dir / files.SNAPSHOTS)
    own = read_suspicion(folder) if parts.on_disk else UNSUSPECTED
    all_found = [Suspicion(*row.tolist()) for row in context.gather(torch.tensor(own))]
    newest = max(all_found, key=lambda found: (found.attempt, -found.step))
    if newest == UNSUSPECTED:
        return
    memory.forget_suspects(newest)
    lacks = parts.on_disk and newest != own  # what this node has set aside, a user may have renamed back
    set_aside_together(context, folder if lacks else None, newest, earlier=True)


def set_aside_together(context: Context, folder: Path | None, found: Suspicion, *, earlier: bool = False) -> None:
    """Set snapshots aside, with a warning for each, on the ranks that have a `folder` of them. By all ranks.

    `earlier`: as for `set_aside`. Raises OSError, or PeerError if another rank could not.
    """
    error = None
    try:
        paths = set_aside(folder, found, earlier=earlier) if folder else []
    except OSError as failed:
        paths, error = [], failed
    for path in paths:
        context.warn(f"set aside, since it may contain wrong numbers: {path}")
    if any(context.total(error is not None)):
        raise error or PeerError("another rank could not set its snapshots aside")


def receive_parts(
    context: Context, own: Search, reports: Sequence[tuple[int, ...]], parts: RankParts
) -> tuple[Snapshot, list[int]]:
    """This rank's part of the snapshot that all found, and for each rank which one its part comes from; by all ranks."""
    sources, received = [0] * len(reports), own.snapshot
    for part in sorted(set(parts.of_ranks)):
        ranks = [rank for rank, each in enumerate(parts.of_ranks) if each == part]
        source = max(ranks, key=lambda rank: reports[rank])
        for rank in ranks:
            sources[rank] = source
        if all(reports[rank][:4] == reports[source][:4] for rank in ranks):
            continue
        layout = json.loads(context.share_text(json.dumps(describe_layout(own)), source))
        mine = parts.own == part
        found = receive_snapshot(
            context, layout, own.snapshot if context.place.rank == source else None, source, lambda *_, mine=mine: mine
        )
        received = found if mine else received
    assert received is not None
    return received, sources


def search_together(resume: str, context: Context, memory: MemoryBuffers, parts: RankParts, until: Version) -> Search:
    """What `search` finds, where this rank keeps snapshots; no rank waits in one long exchange, however long disks take."""
    folder = parts.folder(context.place.run_dir / files.SNAPSHOTS)
    with ThreadPoolExecutor(max_workers=1) as reader:
        own = []
        if parts.on_disk:
            own = [reader.submit(search, resume, folder, context, memory, parts, until)]
        elif resume == "auto" and memory.usable:  # all nodes see one disk, which the part's first rank reads
            own = [reader.submit(search_memory, folder, memory, parts, until)]
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
    received: dict[str, dict[str, torch.Tensor]] = {stem: {} for stem in layout["tensors"]}
    for together in split_tensors(layout["tensors"]):
        tensors = [
            own.tensors[stem][name].contiguous() if own else make_empty(shape, dtype)
            for stem, (name, shape, dtype) in together
        ]
        send_whole(context, tensors, source)
        for (stem, (name, *_)), tensor in zip(together, tensors, strict=True):
            if wants(stem, name):
                received[stem][name] = tensor
        context.beat(Phase.LOAD)
    return Snapshot(layout["step"], layout["state"], received)


def send_whole(context: Context, tensors: Sequence[torch.Tensor], source: int) -> None:
    """Overwrite tensors with those of rank `source`, by all ranks; what arrives with other checksums is sent again.

    Raises UnhealthyError on a rank at which they arrived damaged SENDS times, and PeerError on the others.
    """
    for _ in range(SENDS):
        context.share_together(tensors, source)
        sums = context.gather(torch.stack([sum_of_bits(tensor) for tensor in tensors]))
        damaged = [rank for rank, received in enumerate(sums) if not received.equal(sums[source])]
        if not damaged:
            return
        if context.place.rank in damaged:
            size = sum(tensor.nbytes for tensor in tensors)
            context.warn(f"warning: {size:,} bytes of the snapshot arrived damaged at rank {context.place.rank}")
    if context.place.rank in damaged:
        raise UnhealthyError(
            f"a part of the snapshot arrived damaged {SENDS} times at this node, whose memory or network fails"
        )
    raise PeerError(f"a part of the snapshot arrived damaged {SENDS} times at rank {damaged[0]}")


def split_tensors(tensors: Mapping[str, Sequence[Described]]) -> Iterator[list[tuple[str, Described]]]:
    """Yield described tensors with their files, as many at a time as have TOGETHER bytes; a larger one comes alone."""
    together: list[tuple[str, Described]] = []
    size = 0
    for stem, described in tensors.items():
        for name, shape, dtype in described:
            more = math.prod(shape) * getattr(torch, dtype).itemsize
            if together and size + more > TOGETHER:
                yield together
                together, size = [], 0
            together.append((stem, (name, shape, dtype)))
            size += more
    if together:
        yield together


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


def describe_tensors(tensors: Mapping[str, torch.Tensor]) -> list[Described]:
    """Name, shape and type of each tensor, as JSON can carry them."""
    return [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()]


def make_empty(shape: list[int], dtype: str) -> torch.Tensor:
    """A CPU tensor to be filled by another rank."""
    return torch.empty(shape, dtype=getattr(torch, dtype))
