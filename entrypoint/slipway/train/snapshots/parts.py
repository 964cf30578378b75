"""Which ranks of a job hold the same tensors.

In data parallelism all do. FSDP spreads tensors over ranks: those that hold the same share of them hold one *part*, which is
numbered by the first of them. Each part is saved by one of its ranks (of each node, where nodes do not share a disk), like the
state of a job that has only one: part 0 in `snapshots/`, any other in a folder of its own below. Snapshots of all parts that
belong together have the same attempt, step and `set` in their state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from slipway.protocol.snapshots import part_name
from slipway.train.worker.place import Place

KEPT = 2  # snapshots of a part on the disk at least: while the newest is written, the others may have finished theirs


@dataclass(frozen=True)
class RankParts:
    """The parts of a job as one of its ranks sees them.

    `on_disk`, `in_memory`: whether this rank keeps the snapshots of its part there. `sharing`: how many ranks of its node keep
    some in memory. `scattered`: whether a part lies on one node alone, whose disk the other nodes do not see.
    """

    of_ranks: tuple[int, ...]
    rank: int
    on_disk: bool
    in_memory: bool
    sharing: int = 1
    scattered: bool = False

    @property
    def own(self) -> int:
        """The part that this rank holds."""
        return self.of_ranks[self.rank]

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return any(self.of_ranks)

    def folder(self, snapshots: Path) -> Path:
        """Return the folder of this rank's part, where `snapshots` is that of the run."""
        return snapshots / part_name(self.own) if self.own else snapshots

    def concerned(self, ranks: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return, of tensors named `<rank>.<name>`, those of this part's ranks, and rank 0's, which stand for the job."""
        return {
            name: tensor
            for name, tensor in ranks.items()
            if (rank := int(name.partition(".")[0])) == 0 or self.of_ranks[rank] == self.own
        }


def single_part(place: Place) -> RankParts:
    """Return the only part of a job in which all ranks hold the same."""
    return RankParts((0,) * place.world_size, place.rank, place.is_writer, place.local_rank == 0)


def divide(place: Place, of_ranks: Sequence[int], nodes: Sequence[int]) -> RankParts:
    """Return the parts of a job, of whose ranks the part and the node are known."""
    firsts = {(part, node): rank for rank, (part, node) in reversed([*enumerate(zip(of_ranks, nodes, strict=True))])}
    part, node = of_ranks[place.rank], nodes[place.rank]
    first_here = firsts[part, node] == place.rank
    alone = {each for each in of_ranks if len({where for which, where in firsts if which == each}) == 1}
    return RankParts(
        tuple(of_ranks),
        place.rank,
        part == place.rank if place.shared else first_here,
        first_here,
        sum(where == node for _, where in firsts),
        bool(alone) and len(set(nodes)) > 1 and not place.shared,
    )
