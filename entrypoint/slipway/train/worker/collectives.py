"""What ranks exchange besides gradients: collectives of numbers, texts and tensors, which do nothing with a single process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from slipway.protocol.mistake import ConfigurationError
from slipway.train.worker.place import Place

PIECE = 2**26  # bytes that are sent at once
NAMED = 3  # differences between two ranks that a message names


class RankCollectives:
    """Every method is called by all ranks, in the same order. `side` is a gloo group of all ranks, None with a single process."""

    def __init__(self, place: Place, side: dist.ProcessGroup | None) -> None:
        self.place, self.side = place, side

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The CPU tensors of all ranks, which must have the same shape and type, on every rank."""
        if self.side is None:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.place.world_size)]
        dist.all_gather(parts, tensor, group=self.side)
        return parts

    def gather_named(self, tensors: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """The same for several tensors in one exchange: those of each rank by name."""
        # So each begins at a multiple of its size.
        ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
        sizes = [tensor.nbytes for tensor in ordered.values()]
        rows = self.gather(torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in ordered.values()]))
        return [
            {
                name: piece.view(tensor.dtype).view(tensor.shape)
                for (name, tensor), piece in zip(ordered.items(), torch.split(row, sizes), strict=True)
            }
            for row in rows
        ]

    def gather_on_device(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """`gather` for a tensor on the device, whose results are there as well: no host waits for its GPU."""
        if self.side is None:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.place.world_size)]
        dist.all_gather(parts, tensor)
        return parts

    def gather_number(self, number: float) -> list[float]:
        """A number of each rank, on every rank."""
        return [part.item() for part in self.gather(torch.tensor(number, dtype=torch.float64))]

    def total(self, *numbers: int) -> list[int]:
        """The sum over all ranks of each number."""
        totals = torch.tensor(numbers, dtype=torch.int64)
        if self.side is not None:
            dist.all_reduce(totals, group=self.side)
        return totals.tolist()

    def share(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Overwrite a contiguous CPU tensor with rank `source`'s."""
        if self.side is not None:
            for piece in pieces_of(tensor):
                dist.broadcast(piece, source, group=self.side)
        return tensor

    def share_together(self, tensors: Sequence[torch.Tensor], source: int = 0) -> None:
        """`share` for several tensors in one exchange, since each exchange takes about a millisecond."""
        if len(tensors) == 1 or self.side is None:
            for tensor in tensors:
                self.share(tensor, source)
            return
        parts = [tensor.view(-1).view(torch.uint8) for tensor in tensors]
        data = self.share(torch.cat(parts), source)
        if self.place.rank != source:
            for part, sent in zip(parts, torch.split(data, [part.numel() for part in parts]), strict=True):
                part.copy_(sent)

    def share_text(self, text: str, source: int = 0) -> str:
        """Rank `source`'s text, on every rank."""
        data = torch.tensor(list(text.encode()), dtype=torch.uint8)
        size = self.share(torch.tensor([data.numel()]), source)
        if self.place.rank != source:
            data = torch.empty(int(size), dtype=torch.uint8)
        return bytes(self.share(data, source).numpy()).decode()

    def require_same(self, values: Mapping[str, object], advice: str) -> None:
        """Raise ConfigurationError, on all ranks, where a value is not rank 0's: ranks that disagree about what to exchange, and
        when, would wait for each other for ever. `values` by what a message calls them; `advice` says what to do.
        """
        own = json.dumps({name: str(value) for name, value in values.items()})
        first = self.share_text(own)
        others = [rank for rank, other in enumerate(self.gather_number(own != first)) if other]
        if not others:
            return
        here, there = json.loads(self.share_text(own, others[0])), json.loads(first)
        pairs = [(name, here.get(name), there.get(name)) for name in {**there, **here}]
        odd = [f"{name} ({value} instead of {wanted})" for name, value, wanted in pairs if value != wanted]
        more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
        raise ConfigurationError(f"Rank {others[0]} differs from rank 0 in {', '.join(odd[:NAMED])}{more}. {advice}")

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add up a tensor on the device over all ranks, in place, and return it."""
        if self.side is not None:
            dist.all_reduce(values)
        return values

    def align(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor on the device with rank 0's."""
        if self.side is not None:
            dist.broadcast(tensor, 0)

    def wait_for_all(self) -> None:
        """Return when every rank is here."""
        if self.side is not None:
            dist.barrier(group=self.side)


def pieces_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The memory of a contiguous CPU tensor as uint8 tensors, none so large that a message with it would be."""
    return torch.split(tensor.view(-1).view(torch.uint8), PIECE)
