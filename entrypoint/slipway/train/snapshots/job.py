"""The snapshots of a job, which all of its ranks take together: on the disk, in memory, and resumed from.

`fit` and the loops of users (train/user) are clients of this. A client says what a snapshot contains (`Contents`), and decides
when one is due on the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from slipway.protocol.phases import Phase
from slipway.protocol.snapshots import list_snapshots, snapshot_name, snapshot_step
from slipway.train.snapshots.memory_buffers import MemoryBuffers
from slipway.train.snapshots.parts import RankParts
from slipway.train.snapshots.resume import POLL, SharedSnapshot, set_aside_together, share_snapshot
from slipway.train.snapshots.snapshot import Snapshot, Suspicion
from slipway.train.snapshots.state import random_states
from slipway.train.snapshots.writer import Writer
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import PeerError
from slipway.train.worker.rhythm import MemoryRhythm


class Contents(Protocol):
    """What a snapshot of this step consists of. All ranks call each method at the same place."""

    @property
    def number(self) -> int:
        """By which the snapshot is known, and its order among those of an attempt: how many steps were done."""

    @property
    def mark(self) -> Hashable:
        """What tells this state from others, the same on all ranks: no snapshot is written twice."""

    def align(self) -> None:
        """Make equal on all ranks what the ranks that keep snapshots must agree on."""

    def require_sound(self) -> None:
        """Raise, on all ranks, what forbids a snapshot on the disk."""

    def of_rank(self) -> Mapping[str, torch.Tensor]:
        """What differs from rank to rank, besides random generators: tensors of the same shapes on all ranks."""

    def collect(self) -> tuple[Mapping[str, Mapping[str, torch.Tensor]], dict[str, Any]]:
        """The tensors by file and name, and JSON values: complete on the ranks that keep snapshots."""


@dataclass
class JobSnapshots:
    """The snapshots of a job: one that is being written to the disk, those in memory, and which ones are there already."""

    context: Context
    writer: Writer
    memory: MemoryBuffers
    rhythm: MemoryRhythm  # of those in memory
    sound: Callable[[list[torch.Tensor]], bool]  # whether floating-point tensors may be in one that is in memory
    parts: RankParts  # which ranks hold the same tensors
    saved: Hashable = None  # the mark of the last snapshot, the same on all ranks
    held: Hashable = None  # the mark of a valid snapshot that this rank's run directory held already
    name: str = ""  # of the last snapshot that was begun
    earlier: bool = False  # whether a snapshot was complete on all ranks before the one that is begun next

    def save(self, contents: Contents, live: bool = False) -> None:
        """Start writing a snapshot, on the ranks that write snapshots; nothing if the last one is of the same state.

        `live`: no tensor changes before `wait`, so no copy is needed. Raises what `require_sound` raises, and what `wait`
        raises about the previous snapshot.
        """
        if self.saved == contents.mark:
            return
        self.wait(contents.number)
        self.earlier = self.earlier or bool(self.name)
        contents.align()
        contents.require_sound()
        ranks, _ = self.gather_ranks(contents)
        snapshot = self._describe(contents, ranks)
        if self.parts.on_disk and self.held != contents.mark:
            self.writer.start(snapshot, copy=not live)
        self.saved, self.name = contents.mark, snapshot_name(contents.number)

    def wait(self, step: int) -> None:
        """Return on all ranks when the snapshot in progress is written. Raises OSError, or PeerError if another rank failed.

        `step`: how far training came. The ranks poll, so no rank waits in one long exchange however long the disks take.
        """
        context, writer = self.context, self.writer
        seen = -1
        while True:
            busy, failed, written = context.total(writer.wait(POLL), writer.failed, writer.written)
            if failed:
                writer.check()
                raise PeerError("another rank could not write its snapshot")
            if written > seen:  # a beat means progress
                context.beat(Phase.SAVE)
                seen = written
            if not busy:
                break
        if self.name:
            context.progress(step, self.name)

    def keep_in_memory(self, contents: Contents, spent: float = 0.0) -> None:
        """Take a snapshot into memory if one is due. By all ranks; none waits for a GPU.

        `spent`: the seconds that the caller needed, with an exchange, to decide whether there may be one now.

        The measurements that decide when the next one is due travel with the data that the ranks exchange anyway. The cost of
        a snapshot is the copying time of the slowest rank, plus the exchange time of the rank that the others wait for: the
        others would have waited as long in the next step.
        """
        rhythm, memory = self.rhythm, self.memory
        if contents.number < rhythm.due:
            return
        begun = time.perf_counter() - spent
        memory.wait()
        copying = rhythm.copying + memory.seconds if memory.usable and rhythm.copying else 0.0
        numbers = copying, rhythm.exchanging, rhythm.pace(contents.number), float(memory.usable)
        ranks, [copies, exchanges, paces, usable] = self.gather_ranks(contents, *numbers)
        contents.align()
        exchanged = time.perf_counter()
        rhythm.exchanging, rhythm.copying = exchanged - begun, 0.0
        if memory.usable and memory.start(self._describe(contents, ranks), self.sound):
            rhythm.copying = time.perf_counter() - exchanged
        cost = max(copies) + min(exchanges) if any(copies) else 0.0
        kept = {part for part, can in zip(self.parts.of_ranks, usable, strict=True) if can}
        rhythm.go_on(contents.number, cost, paces[0], kept == {*self.parts.of_ranks})

    def gather_ranks(self, contents: Contents, *numbers: float) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
        """Return what differs from rank to rank, of all ranks, as it is stored; and for each of the `numbers` every rank's."""
        context = self.context
        own = {
            **random_states(context.device),
            "more": torch.tensor(numbers, dtype=torch.float64),
            **contents.of_rank(),
        }
        rows = context.gather_named({name: tensor for name, tensor in own.items() if not tensor.is_cuda})
        for name, tensor in own.items():
            if tensor.is_cuda:  # a separate exchange, so that the host does not wait for the GPU
                for row, part in zip(rows, context.gather_on_device(tensor), strict=True):
                    row[name] = part
        more = torch.stack([row.pop("more") for row in rows])
        return {f"{rank}.{name}": part for rank, row in enumerate(rows) for name, part in row.items()}, more.T.tolist()

    def find(self, wanted: str, wants: Callable[[str, str], bool] = lambda stem, name: True) -> SharedSnapshot | None:
        """Return the snapshot to resume from, which `wanted` means: none, auto or a path. Raises as `share_snapshot` does."""
        return share_snapshot(self.context, wanted, wants, self.memory, self.parts)

    def has(self, until: int) -> bool:
        """Whether any disk has a snapshot of step `until` or before. By all ranks."""
        paths = list_snapshots(self.writer.folder) if self.parts.on_disk else []
        return any(self.context.total(sum(snapshot_step(path) <= until for path in paths)))

    def set_aside(self, after: int) -> None:
        """Rename the snapshots of later steps on the disks: what they hold may be wrong. By all ranks, none of which writes."""
        folder = self.writer.folder if self.parts.on_disk else None
        set_aside_together(self.context, folder, Suspicion(self.context.place.attempt, after))
        self.saved = self.held = None

    def settle(self, found: SharedSnapshot, contents: Contents, due: bool) -> None:
        """Write the snapshot that was resumed from where a node lacks it, or where it was in memory and is `due` on the disk.

        `contents` are those that were restored.
        """
        held = found.held and not (found.in_memory and due)
        self.held = contents.mark if held and not found.in_memory else None
        [without] = self.context.total(self.parts.on_disk and not held)
        self.saved = None if without or found.in_memory else contents.mark
        self.name = "" if self.saved is None else snapshot_name(contents.number)
        self.earlier = True
        if without:  # a run that starts from another run's snapshot gets a copy, too
            self.save(contents)

    def close(self) -> None:
        """Finish the snapshots in progress, whatever happened."""
        self.memory.close()
        if self.writer.wait(0):
            self.context.beat(Phase.SAVE)
        self.writer.wait()

    def _describe(self, contents: Contents, ranks: Mapping[str, torch.Tensor]) -> Snapshot:
        tensors, state = contents.collect()
        state = {**state, "world_size": self.context.place.world_size}
        if self.parts.several:
            state |= {"parts": list(self.parts.of_ranks), "earlier": self.earlier}
            ranks = self.parts.concerned(ranks)
        tensors = {**tensors, "ranks": ranks}
        return Snapshot(contents.number, state, tensors, self.context.place.attempt)
