"""Collectives of torch.distributed on buffers of known numbers, and the ranks' own times between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from slipway.options.allreduce import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER
from slipway.protocol.outcomes import Word
from slipway.train.measure.bandwidth import rounds
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import outcome_word

# What only travels is (place + rank) modulo a prime, which tells 251 ranks apart and is exact in every type.
MOVED = 251
# What is added up is a one from each rank at every so many places, zeros between; so many that no sum is larger than 65
# and all are exact in every type, in whatever order they are added.
SUMMED, ONES = 4, 64
LINK_BYTES, LINK_CALLS = 2**20, 5


@dataclass(frozen=True)
class CollectiveBuffers:
    """What a rank gives to a collective and where the result arrives; one tensor where that is the same place."""

    collective: str
    given: torch.Tensor
    result: torch.Tensor
    rank: int
    ranks: int

    def run(self) -> None:
        """Take part in the collective."""
        if self.collective == ALL_REDUCE:
            dist.all_reduce(self.result)
        elif self.collective == ALL_GATHER:
            dist.all_gather_into_tensor(self.result, self.given)
        elif self.collective == REDUCE_SCATTER:
            dist.reduce_scatter_tensor(self.result, self.given)
        elif self.collective == BROADCAST:
            dist.broadcast(self.result, 0)

    def fill(self) -> None:
        """Write this rank's known numbers."""
        self.given.copy_(self._repeat(self._numbers(), self.rank, self.given.numel()))
        if self.result is not self.given:
            self.result.fill_(-1)

    @property
    def sums(self) -> bool:
        """Whether it adds numbers up, or only moves them."""
        return self.collective in (ALL_REDUCE, REDUCE_SCATTER)

    def check(self) -> str:
        """What is wrong with the result: its first wrong element, or nothing."""
        right = self.expected()
        result = self.result.view_as(right)
        if torch.equal(result, right):
            return ""
        at = int((result != right).flatten().nonzero()[0])
        found, meant = (float(tensor.flatten()[at]) for tensor in (result, right))
        return f"element {at} is {found:g} and not {meant:g}"

    def expected(self) -> torch.Tensor:
        """What belongs in the result; for an all-gather of shape (ranks, elements of each)."""
        count, numbers = self.result.numel(), self._numbers()
        if self.sums:
            sums = torch.stack([numbers.roll(-rank) for rank in range(self.ranks)]).sum(0)
            return self._repeat(sums, self.rank * count if self.collective == REDUCE_SCATTER else 0, count)
        if self.collective == ALL_GATHER:
            each = self.given.numel()  # a row for each rank, one place further on than the row before
            return self._repeat(numbers, 0, each + self.ranks).unfold(0, each, 1)[: self.ranks]
        return self._repeat(numbers, 0, count)

    def _numbers(self) -> torch.Tensor:
        """What rank 0 gives, again and again; every rank begins one place further on than the one before."""
        if not self.sums:
            return torch.arange(MOVED)
        return (torch.arange(max(SUMMED, math.ceil(self.ranks / ONES))) == 0).long()

    def _repeat(self, numbers: torch.Tensor, first: int, count: int) -> torch.Tensor:
        """`count` numbers, again and again those given, from the one at `first` on."""
        turned = numbers.roll(-(first % len(numbers))).to(self.given)
        return turned.repeat(math.ceil(count / len(numbers)))[:count]


def make_buffers(collective: str, elements: int, dtype: torch.dtype, context: Context) -> CollectiveBuffers:
    """Buffers for a message of `elements` in all, on the context's device."""
    rank, ranks = context.place.rank, context.place.world_size
    whole = torch.empty(elements, dtype=dtype, device=context.device)
    part = whole.new_empty(elements // ranks) if collective in (ALL_GATHER, REDUCE_SCATTER) else whole
    given, result = (part, whole) if collective == ALL_GATHER else (whole, part)
    return CollectiveBuffers(collective, given, result, rank, ranks)


def why_lacking(collective: str, dtype: torch.dtype, context: Context) -> str:
    """What the back end says if it lacks this collective for such numbers, else empty. By every rank. Raises other errors."""
    reason = ""
    try:
        buffers = make_buffers(collective, context.place.world_size, dtype, context)
        buffers.fill()
        buffers.run()
        buffers.check()  # not for what it says: what a device is slow at the first time shall not be measured
    except (RuntimeError, ValueError) as error:
        if outcome_word(error) != Word.FAILED or isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).strip().splitlines()[0]
    [lacking] = context.total(bool(reason))
    if reason and lacking < context.place.world_size:
        raise RuntimeError(f"{collective} fails here, but not on every rank: {reason}")
    return reason


def synchronize(device: torch.device) -> None:
    """Return when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_calls(call: Callable[[], None], calls: int, device: torch.device) -> float:
    """Seconds per call, with all given to the device at once; by its own clock where it has one."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()  # type: ignore[no-untyped-call]
        for _ in range(calls):
            call()
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls  # type: ignore[no-untyped-call]
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def first_of_nodes(context: Context) -> list[int]:
    """The first rank of each node; by every rank."""
    return [rank for rank, local_rank in enumerate(context.gather_number(context.place.local_rank)) if local_rank == 0]


def time_links(context: Context) -> dict[tuple[int, int], float]:
    """Seconds that each link of the ring takes for LINK_BYTES both ways at once, the best of some calls. By every rank."""
    place = context.place
    members = first_of_nodes(context)
    if len(members) == 1:  # one node
        members = list(range(place.world_size))
    ring = rounds(members)
    own = torch.zeros(sum(map(len, ring)), dtype=torch.float64)
    links = [link for part in ring for link in part]
    for part in ring:
        context.wait_for_all()
        for link in part:
            if place.rank in link:
                own[links.index(link)] = time_link(link[place.rank == link[0]], context.device)
    seconds = torch.stack(context.gather(own)).amax(0).tolist()
    return dict(zip(links, seconds, strict=True))


def time_link(peer: int, device: torch.device) -> float:
    """Seconds for LINK_BYTES to `peer` and as many back at the same time."""
    there, back = (torch.zeros(LINK_BYTES, dtype=torch.uint8, device=device) for _ in range(2))

    def exchange() -> None:
        sends = [dist.P2POp(dist.isend, there, peer), dist.P2POp(dist.irecv, back, peer)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()

    return min(time_calls(exchange, 1, device) for _ in range(LINK_CALLS))
