"""A worker's life in its job: it joins, exchanges what is not a gradient, and leaves an outcome file.

with open_context() as context:
    train(context)   # holds model and optimizer in its own frame, so that they are gone when the block ends
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import click
import torch
import torch.distributed as dist

from slipway.train.group import leave_group, open_device, open_group
from slipway.train.outcome import Outcome, describe_failure, write_outcome
from slipway.train.place import Place, read_place
from slipway.train.stop import StopFlag


class Context:
    """A worker's place, its device, and what it exchanges with the other ranks besides gradients."""

    def __init__(self, place: Place, device: torch.device, side: dist.ProcessGroup | None) -> None:
        """Use `side`, a gloo group of all ranks, for flags and snapshots; None with a single process."""
        self.place = place
        self.device = device
        self.side = side
        self.outcome = Outcome("finished", "finished")
        self._flag = StopFlag(place.node_dir / "stop" if self.speaks else None, side)

    @property
    def speaks(self) -> bool:
        """Whether this worker prints: the first of each node does."""
        return self.place.local_rank == 0

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.place.rank == 0:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Print a line on stderr, on whichever rank asks for it."""
        print(text, file=sys.stderr, flush=True)

    def progress(self, step: int, snapshot: str | None = None) -> None:
        """Note how far this worker came, for its outcome file."""
        self.outcome = replace(self.outcome, step=step, snapshot=snapshot or self.outcome.snapshot)

    def conclude(self, word: str, message: str) -> None:
        """Note how the work ended, for the outcome file."""
        self.outcome = replace(self.outcome, outcome=word, message=message)

    def stop_requested(self) -> str | None:
        """`stopped`, `cancelled` or None, the same on all ranks. To be called once per step by every rank."""
        return self._flag.agreed()

    def gather_bytes(self, data: torch.Tensor) -> list[torch.Tensor]:
        """The uint8 tensors of all ranks, which must have the same shape, on every rank."""
        if self.side is None:
            return [data]
        parts = [torch.empty_like(data) for _ in range(self.place.world_size)]
        dist.all_gather(parts, data, group=self.side)
        return parts

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite a CPU tensor with rank 0's."""
        if self.side is not None:
            dist.broadcast(tensor, 0, group=self.side)
        return tensor

    def share_text(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        data = torch.tensor(list(text.encode()), dtype=torch.uint8)
        size = self.share(torch.tensor([data.numel()]))
        if self.place.rank:
            data = torch.empty(int(size), dtype=torch.uint8)
        return bytes(self.share(data).numpy()).decode()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of a tensor on the device."""
        if self.side is not None:
            dist.all_reduce(values)
        return values

    def close(self) -> None:
        """Finish what is still under way between the ranks, and let go of them."""
        self._flag.close()
        self._flag = StopFlag(None, None)
        self.side = None

    def wait_for_all(self) -> None:
        """Return when every rank is here."""
        if self.side is not None:
            dist.barrier(group=self.side)


@contextmanager
def open_context(environ: Mapping[str, str] = os.environ) -> Iterator[Context]:
    """Join the job, and leave it cleanly with an outcome file, whatever happens in the block.

    An exception in the block is written down and printed (in full where nothing is known about it, else as one line)
    and becomes SystemExit(1).
    """
    place = read_place(environ)
    outcomes = place.node_dir / "outcome"
    (place.node_dir / "honours-stop").touch()
    context = None
    try:
        device = open_device(place)
        context = Context(place, device, open_group(place, device))
        yield context
        context.close()
        write_outcome(outcomes, place.rank, context.outcome)
        leave_group()
    except click.exceptions.Exit:  # after --help
        leave_group()
        write_outcome(outcomes, place.rank, Outcome("finished", "printed its help"))
    except BaseException as error:
        so_far = context.outcome if context else Outcome("failed", "")
        outcome = describe_failure(error, so_far.step, so_far.snapshot)
        if outcome.outcome == "failed":
            traceback.print_exception(error)
        elif outcome.outcome != "configuration" or place.local_rank == 0:  # all ranks find the same mistake
            print(outcome.message, file=sys.stderr, flush=True)
        try:
            write_outcome(outcomes, place.rank, outcome)
        except OSError as full:
            print(f"and this could not be written down: {full}", file=sys.stderr, flush=True)
        traceback.clear_frames(error.__traceback__)  # they hold the model
        leave_group()
        raise SystemExit(1) from None
