"""Whether the replicas of a data-parallel training are still equal, bit for bit: a free check of hardware and code.

All ranks start with the same weights and change them by the same averaged gradients, so weights and optimizer must stay
equal. If they do not, memory or a processor produced a wrong bit, or code changed one of them (drift). A fault before the
gradients are averaged makes all replicas wrong in the same way, and is not detected here.

`verify_replicas` compares once; `Verification` compares during a training, as `--verify-every` says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from slipway.options.common import AUTO
from slipway.protocol.mistake import ExplainedError
from slipway.protocol.printable import counted
from slipway.train.snapshots.tensors import raw_bytes, sum_of_bits
from slipway.train.worker.context import Context
from slipway.train.worker.rhythm import CheckInterval

NAMED = 3  # tensors in a message


@dataclass(frozen=True)
class ReplicaMismatch:
    """The tensors in which the replicas differ, and the ranks that are wrong; no ranks if there is no majority.

    `values`: how many of the `size` values of the first tensor differ.
    """

    tensors: tuple[str, ...]
    ranks: tuple[int, ...]
    values: int
    size: int

    def __str__(self) -> str:
        """Return the text for messages."""
        more = f" and {len(self.tensors) - NAMED} more" if len(self.tensors) > NAMED else ""
        where = ", ".join(self.tensors[:NAMED]) + more
        who = f"rank {', '.join(map(str, self.ranks))} differs from the others" if self.ranks else "the ranks differ"
        likely = (
            "one wrong bit or value: memory or a processor"
            if self.values == 1
            else "drift: another seed, a change on some ranks alone, or gradients that were not averaged"
        )
        wrong = f"{self.values:,} of {counted(self.size, 'value')}" + (
            f" of {self.tensors[0]}" if len(self.tensors) > 1 else ""
        )
        return f"{who} in {where}: {wrong} ({likely})"


class ReplicasDifferError(ExplainedError):
    """The replicas of the model are no longer equal; `difference` says in what."""

    def __init__(self, text: str, difference: ReplicaMismatch) -> None:
        super().__init__(text)
        self.difference = difference


def verify_replicas(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Raise ReplicasDifferError on all ranks, naming tensor and rank, if model or optimizer are not equal on all of them.

    For your own loops; call it on every rank between two steps. `model` may be wrapped in DistributedDataParallel. With
    three ranks or more, a majority shows whose replica is wrong. It reads everything once, at memory speed, and exchanges
    16 bytes per tensor.
    """
    model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return
    tensors = replicated(model, optimizer)
    exchange = ReplicaExchange(group)
    sums = fingerprint(list(tensors.values()), torch.device("cpu"))
    largest, work = exchange.begin(sums)
    work.wait()
    if not are_equal(largest) and (difference := exchange.describe(tensors, sums)):
        raise ReplicasDifferError(str(difference), difference)


class Verification:
    """Compares the replicas of one training every few steps.

    Each comparison is spread over three steps so that none of them waits: the sums are computed on the device after the
    first step, exchanged during the second, and checked after the third. A snapshot is compared at once before it is
    saved, so it never contains a wrong bit that only one replica has.
    """

    def __init__(self, context: Context, tensors: Callable[[], Mapping[str, torch.Tensor]], every: int | str) -> None:
        """`tensors`: see `replicated`. `every`: steps between comparisons, 0 for none, `auto`: as often as is cheap.

        A single process has nothing to compare with.
        """
        alone = context.side is None
        self._context, self._tensors, self._interval = context, tensors, CheckInterval(context, 0 if alone else every)
        self._exchange = None if alone else ReplicaExchange(context.side)
        self._sums: torch.Tensor | None = None  # taken, and perhaps still being copied from the device
        self._taken = torch.cuda.Event() if context.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._under_way: tuple[torch.Tensor, torch.Tensor, dist.Work] | None = None

    def check(self, step: int) -> None:
        """Call after each step on every rank. Raises ReplicasDifferError, on all ranks, within three steps of a comparison."""
        self._finish()
        if self._sums is not None:
            self._begin()
        if not self._interval.is_due(step):
            return
        begun = time.monotonic()
        self._take()
        if self._interval.every == AUTO:
            if self._taken is not None:
                self._taken.synchronize()
            self._interval.choose(time.monotonic() - begun)

    def verify(self) -> None:
        """Compare now, on every rank, unless comparisons are off. Raises ReplicasDifferError, on all ranks."""
        if self._exchange is None or self._interval.every == 0:
            return
        self.forget()
        self._take()
        self._begin()
        self._finish()

    def forget(self) -> None:
        """Drop the comparison in progress: training resumes from another state."""
        if self._under_way is not None:
            self._under_way[2].wait()
        self._sums = self._under_way = None

    def _take(self) -> None:
        device = self._context.device
        sums = fingerprint(list(self._tensors().values()), device)
        self._sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=self._taken is not None)
        self._sums.copy_(sums, non_blocking=True)
        if self._taken is not None:
            self._taken.record()  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        assert self._exchange is not None
        assert self._sums is not None
        if self._taken is not None:
            self._taken.synchronize()
        self._under_way = (self._sums, *self._exchange.begin(self._sums))
        self._sums = None

    def _finish(self) -> None:
        if self._under_way is None:
            return
        assert self._exchange is not None
        sums, largest, work = self._under_way
        work.wait()
        self._under_way = None
        if not are_equal(largest) and (difference := self._exchange.describe(self._tensors(), sums)):
            raise ReplicasDifferError(str(difference), difference)


def replicated(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, torch.Tensor]:
    """Return what must be equal on all ranks, by name: parameters, buffers, and the optimizer's state of each parameter.

    Running statistics of normalisation are excluded: each rank's follow its own data until they are exchanged.
    """
    tensors: dict[str, torch.Tensor] = {name: parameter.detach() for name, parameter in model.named_parameters()}
    own = {
        f"{name}.{kind}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, _NormBase)
        for kind in ("running_mean", "running_var")
    }
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name not in own}
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, entries in optimizer.state.items() if optimizer else ():
        tensors |= {
            f"{entry} of {names[parameter]}": value
            for entry, value in entries.items()
            if parameter in names and isinstance(value, torch.Tensor)
        }
    return tensors


def fingerprint(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return a number for each tensor, int64 of shape (tensors,) on `device` (`sum_of_bits`). Does not wait for a GPU."""
    if not tensors:
        return torch.zeros(0, dtype=torch.int64, device=device)
    return torch.stack([sum_of_bits(tensor).to(device, non_blocking=True) for tensor in tensors])


PIECE = 2**24  # bytes of a tensor that are compared at once; a multiple of every type's size


class ReplicaExchange:
    """Comparisons over a process group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """None means the group of all ranks."""
        self._group = group
        nccl = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def begin(self, sums: torch.Tensor) -> tuple[torch.Tensor, dist.Work]:
        """Start a comparison. Returns the result tensor and the work to wait for."""
        largest = with_complement(sums).to(self._device)
        return largest, dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def describe(self, tensors: Mapping[str, torch.Tensor], sums: torch.Tensor) -> ReplicaMismatch | None:
        """Return where the replicas differ, None if they do not; by all ranks, with the `tensors` that were summed."""
        names = list(tensors)
        own = sums.to(self._device)
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(gathered, own, group=self._group)
        places, ranks = find_odd([part.tolist() for part in gathered])
        if not places:
            return None
        right = next(rank for rank in range(len(gathered)) if rank not in ranks)
        first = tensors[names[places[0]]]
        return ReplicaMismatch(
            tuple(names[place] for place in places), tuple(ranks), self._count(first, right), first.numel()
        )

    def _count(self, tensor: torch.Tensor, right: int) -> int:
        """Return how many values differ from those of rank `right`, on the rank where most do."""
        size, differing = tensor.element_size(), torch.zeros((), dtype=torch.int64, device=self._device)
        source = right if self._group is None else dist.get_global_rank(self._group, right)
        for piece in torch.split(raw_bytes(tensor), PIECE):
            theirs = piece.to(self._device, copy=True)
            dist.broadcast(theirs, source, group=self._group)
            differing += (theirs.view(-1, size) != piece.to(self._device).view(-1, size)).any(1).sum()
        dist.all_reduce(differing, dist.ReduceOp.MAX, group=self._group)
        return int(differing)


def with_complement(sums: torch.Tensor) -> torch.Tensor:
    """Return the sums and their complements, int64 of shape (2 × tensors,).

    Their maximum over all ranks shows whether all are equal: ~x reverses the order without an overflow, so the largest
    complement is that of the smallest sum.
    """
    return torch.cat([sums, ~sums])


def are_equal(largest: torch.Tensor) -> bool:
    """Whether all ranks had the same sums, given the maximum of `with_complement` over the ranks."""
    sums, complements = largest.chunk(2)
    return bool(torch.equal(sums, ~complements))


def find_odd(sums: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Which tensors differ, and the ranks whose sum is not the majority's, if there is one. `sums`: by rank, by tensor."""
    places = [place for place, column in enumerate(zip(*sums, strict=True)) if len(set(column)) > 1]
    odd: set[int] = set()
    for place in places:
        column = [own[place] for own in sums]
        value, count = Counter(column).most_common(1)[0]
        if 2 * count <= len(column):
            return places, []
        odd |= {rank for rank, own in enumerate(column) if own != value}
    return places, sorted(odd)
