"""How the processes share the work of a step: by default each has the whole model and a part of the batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from slipway.options import Common
from slipway.train.snapshots.state import optimizer_state, random_states, set_random_states
from slipway.train.snapshots.tensors import plain
from slipway.train.worker.context import Context

if TYPE_CHECKING:
    from slipway.train.loop.arithmetic import Precision
    from slipway.train.task import Batch, Summed, Task

Shards = dict[str, Mapping[str, torch.Tensor]]  # tensors by name, by stem of the snapshot's file


class Parallel(Protocol):
    """How gradients come about, and which tensors are whose."""

    share: tuple[int, int]  # (number, shares): which part of each batch this process reads
    parameters: int  # of the whole model
    described: str  # how many processes do what, for people
    judged: nn.Module  # the whole model, for evaluation; in a pipeline only the last stage gets its output

    def backward(self, parts: Iterable[Batch], weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Add the gradients of the parts of a step, averaged over the processes.

        `weigh` turns a part's loss into its share of the mean; the sum of these is returned.
        """

    def agree(self, loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, and norm of the whole model's gradient: the same on all stages of a pipeline, scalars on the device."""

    def warm_up_ddp(self, example: Callable[[], Batch]) -> None:
        """Do now what would otherwise be done in the first step alone, with a batch if need be."""

    def align(self) -> None:
        """Give the model's buffers the same values on all processes: running statistics follow each one's own data."""

    def collect(self) -> tuple[Shards, dict[str, Any]]:
        """Model and optimizer as they are stored, complete on the ranks that keep snapshots; by all ranks."""

    def wants(self, stem: str, name: str) -> bool:
        """Whether this process needs a tensor of a snapshot's."""


class DataParallel:
    """Every process has the whole model; DistributedDataParallel averages the gradients over all of them."""

    def __init__(
        self, task: Task, model: nn.Module, options: Common, context: Context, precision: Precision, scaler: Any
    ) -> None:
        """`model` is the task's, compiled if asked for."""
        self.share = context.place.rank, context.place.world_size
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.described = ""
        self.judged = model
        self.model = average_gradients(model, options, context) if context.place.world_size > 1 else model
        self._task, self._context, self._parts = task, context, options.accumulate
        self._precision, self._scaler = precision, scaler

    def backward(self, parts: Iterable[Batch], weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """See Parallel."""
        mean = torch.zeros((), device=self._context.device)
        counts: list[torch.Tensor] = []
        for number, batch in enumerate(parts, start=1):
            with nullcontext() if number == self._parts else no_sync(self.model):
                with self._precision.autocast():
                    loss, count = divided(self._task.loss(self.model, batch), len(batch[0]))
                    loss = weigh(loss)
                self._scaler.scale(loss).backward()
            mean += loss.detach()
            counts += [] if count is None else [count]
        return self._divide_by_counts(mean, counts) if counts else mean

    def _divide_by_counts(self, mean: torch.Tensor, counts: list[torch.Tensor]) -> torch.Tensor:
        """Turn sums that were divided by the numbers of samples into the mean over what was counted, by all processes."""
        own = torch.stack(counts).to(self._context.device, torch.float64).mean()  # counted per sample
        everywhere = self._context.sum(own) / self.share[1]
        factor = (1 / everywhere.clamp(min=torch.finfo(torch.float32).tiny)).float()
        for parameter in self._task.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return mean * factor

    def agree(self, loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """See Parallel."""
        return loss, nn.utils.get_total_norm(list(gradients.values()))

    def warm_up_ddp(self, example: Callable[[], Batch]) -> None:
        """Let DistributedDataParallel find its order of gradients, by a forward and backward that change nothing else.

        It sorts them into buckets anew after the first backward, and sums in another order from then on. A run that
        goes on from a snapshot would do so one step later than one that was never interrupted.
        """
        if self.model is self.judged:
            return
        device, buffers = self._context.device, list(self._task.model.buffers())
        random, kept = random_states(device), [buffer.clone() for buffer in buffers]
        with self._precision.autocast():
            loss, _ = divided(self._task.loss(self.model, example()), 1)
        loss.backward()  # type: ignore[no-untyped-call]
        self._task.optimizer.zero_grad()
        set_random_states(device, random)
        for buffer, before in zip(buffers, kept, strict=True):
            buffer.copy_(before)

    def align(self) -> None:
        """See Parallel."""
        for buffer in self._task.model.buffers():
            if not (buffer.is_complex() or plain(buffer).dtype != buffer.dtype):
                self._context.align(buffer)
                continue
            raw = buffer.contiguous().view(-1).view(torch.uint8)  # of these types the backends know only the bytes
            self._context.align(raw)
            buffer.copy_(raw.view(buffer.dtype).view(buffer.shape))

    def collect(self) -> tuple[Shards, dict[str, Any]]:
        """See Parallel; every rank has all of it."""
        tensors, values = optimizer_state(self._task.optimizer, self._task.model)
        return {"model": self._task.model.state_dict(), "optimizer": tensors}, values

    def wants(self, stem: str, name: str) -> bool:
        """See Parallel."""
        return True


def divided(loss: torch.Tensor | Summed, samples: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A mean loss as it is; of a sum and a count both per sample, which keeps the sum within the range of half precision."""
    if isinstance(loss, torch.Tensor):
        return loss, None
    total, count = loss
    return total / samples, torch.as_tensor(count) / samples


def compute_alone(
    task: Task, precision: Precision, scaler: Any, batch: Batch
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """A part's loss and its gradient for each parameter, by this process alone, without DDP or the training's gradients."""
    parameters = [*task.model.parameters()]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    with precision.autocast():
        loss, _ = divided(task.loss(task.model, batch), len(batch[0]))
    found = iter(torch.autograd.grad(scaler.scale(loss), trained, allow_unused=True))
    return loss.detach(), [next(found) if parameter.requires_grad else None for parameter in parameters]


def average_gradients(model: nn.Module, options: Common, context: Context) -> DistributedDataParallel:
    """The model with its gradients averaged over all processes, in buckets and in the form that `options` ask for."""
    with warnings.catch_warnings():
        # Since 2.13 torch offers forward_sync_buffers instead, which synchronizes buffers at the start all the same.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        parallel = DistributedDataParallel(
            model,
            device_ids=[context.device.index] if context.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_mb,  # torch's own 25 unless typed: on CPUs buckets of 1 MB cost 2 to 6 % of a step
            gradient_as_bucket_view=True,
            # Running statistics play no part in training: `align` exchanges them when they are judged or saved, and not, as by
            # default, before every step (0.5 ms of CPU time and one more wait for each other in a step of 19 ms).
            broadcast_buffers=False,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
        )
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
    if options.comm in hooks:
        parallel.register_comm_hook(None, hooks[options.comm])
    return parallel


def no_sync(model: nn.Module) -> Any:
    """A context in which gradients stay on this process, to be averaged with the last part."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
