"""Pipelines of processes: each process has a stage of the model, and batches go through the stages in parts.

Rank = pipeline × stages + stage, so a pipeline's stages are neighbours, on one node if they fit. For a snapshot the stages'
tensors are collected on the ranks that write snapshots.

https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from slipway.options import Common
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase
from slipway.protocol.printable import counted
from slipway.train.parallel.data_parallel import Shards
from slipway.train.snapshots.resume import describe_tensors, make_empty
from slipway.train.snapshots.state import optimizer_state
from slipway.train.task import Split
from slipway.train.worker.collectives import pieces_of
from slipway.train.worker.context import Context
from slipway.train.worker.place import COLLECTIVE_TIMEOUT, silent_stdout

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    from slipway.train.loop.arithmetic import Precision
    from slipway.train.task import Batch, Task


def join_pipelines(context: Context, stages: int, schedule: str, width: int, tied: Sequence[str]) -> Split:
    """Return the split of this process; by all ranks. Raises ConfigurationError if `stages` does not divide their number."""
    world_size = context.place.world_size
    if stages < 2 or world_size % stages:
        raise ConfigurationError(f"--stages {stages} does not divide {counted(world_size, 'process')} into pipelines.")
    if context.device.type == "cuda" and context.place.backend == "gloo":
        raise ConfigurationError("Stages exchange what they compute over nccl, which needs a GPU for each process.")
    pipeline, stage = divmod(context.place.rank, stages)
    pipelines = world_size // stages
    groups = [[first + number for number in range(stages)] for first in range(0, world_size, stages)]
    rows = [open_one_of(groups, context), open_one_of([list(row) for row in zip(*groups, strict=True)], context)]
    ends = open_one_of([[group[0], group[-1]] for group in groups], context)
    assert rows[0] is not None
    return Split(stages, stage, pipelines, pipeline, schedule, width, frozenset(tied), rows[0], rows[1], ends)


def open_one_of(groups: Sequence[Sequence[int]], context: Context) -> dist.ProcessGroup | None:
    """Create a process group for each of `groups`; by all ranks. Returns this rank's, None if it is alone in its group."""
    mine = None
    for ranks in groups:
        if len(ranks) > 1:
            with silent_stdout():
                group = dist.new_group(list(ranks), timeout=COLLECTIVE_TIMEOUT)
            mine = group if context.place.rank in ranks else mine
    return mine


class StageLink(nn.Module):
    """All stages of a pipeline as one model, forward only."""

    def __init__(self, stage: nn.Module, split: Split) -> None:
        """`stage` is this process's own."""
        super().__init__()
        self.stage = stage
        self.split = split

    def forward(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the model's output on the last stage, None on the others; by all stages, with the same inputs."""
        split, given = self.split, inputs
        if not split.first:
            given = torch.empty(*inputs.shape, split.width, device=inputs.device)
            if len(inputs):
                dist.recv(given, split.rank(split.stage - 1), group=split.own)
        output: torch.Tensor = self.stage(given)
        if split.last:
            return output
        if len(inputs):
            dist.send(output.contiguous(), split.rank(split.stage + 1), group=split.own)
        return None


WIRE = {"full": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class PipelineParallel:
    """Each process has one stage; gradients are averaged over the processes that have the same one.

    A batch is (inputs, targets). Stages take the previous stage's output; the last one also takes `targets` and returns
    their mean loss.
    """

    def __init__(
        self, task: Task, model: nn.Module, options: Common, context: Context, precision: Precision, scaler: Any
    ) -> None:
        """`model` is the task's stage, compiled if asked for."""
        assert task.split is not None
        self._split = split = task.split
        self._task, self._model, self._options, self._context = task, model, options, context
        self._precision, self._scaler = precision, scaler
        self._schedule: PipelineScheduleSingle | None = None
        self._weigh: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss
        self._mean = torch.zeros((), device=context.device)
        self._names = frozenset(task.model.state_dict())
        own = [part.numel() for name, part in task.model.named_parameters() if not split.duplicates(name)]
        self.parameters = context.total(sum(own))[0] // split.pipelines
        repeated = f" × {split.pipelines} pipelines" if split.pipelines > 1 else ""
        self.described = f" in {split.stages} stages ({split.schedule}){repeated}"
        self.share = split.pipeline, split.pipelines
        self.judged: nn.Module = StageLink(model, split)
        self._begin_alike()

    def backward(self, parts: Iterable[Batch], weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """See Parallel. Only the last stage knows the loss until `agree`."""
        batches = list(parts)
        inputs, targets = (torch.cat([batch[number] for batch in batches]) for number in (0, 1))
        if self._schedule is None:
            self._schedule = self._make_schedule(batches[0][0])
        self._weigh = weigh
        self._mean = torch.zeros((), device=self._context.device)
        with self._precision.autocast():
            if self._split.last:
                self._schedule.step(target=targets, targets=targets, return_outputs=False)
            else:
                self._schedule.step(*((inputs,) if self._split.first else ()), return_outputs=False)
        self._average()
        return self._mean

    def agree(self, loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """See Parallel. Added in the order of the stages, so that all pipelines get the same bits."""
        own = [gradient for name, gradient in gradients.items() if not self._split.duplicates(name)]
        mine = torch.stack([loss.double(), nn.utils.get_total_norm(own).double() ** 2])
        all_stages = [torch.empty_like(mine) for _ in range(self._split.stages)]
        dist.all_gather(all_stages, mine, group=self._split.own)
        loss, squared = torch.stack(all_stages).sum(0)
        return loss.float(), squared.sqrt().float()

    def warm_up_ddp(self, example: Callable[[], Batch]) -> None:
        """See Parallel; a pipeline needs none."""

    def align(self) -> None:
        """See Parallel; each stage by itself."""
        if self._split.peers is not None:
            for buffer in self._task.model.buffers():
                dist.broadcast(buffer, self._split.stage, group=self._split.peers)

    def collect(self) -> tuple[Shards, dict[str, Any]]:
        """See Parallel; tensors that two stages have are stored once."""
        twice, model = self._split.duplicates, self._task.model
        states, values = optimizer_state(self._task.optimizer, model)
        weights = {name: tensor for name, tensor in model.state_dict().items() if not twice(name)}
        states = {name: tensor for name, tensor in states.items() if not twice(name.rpartition(".")[0])}
        return collect_shards({"model": weights, "optimizer": states}, values, self._split, self._context)

    def wants(self, stem: str, name: str) -> bool:
        """See Parallel."""
        return stem == "ranks" or name in self._names or name.rpartition(".")[0] in self._names

    def _begin_alike(self) -> None:
        """Give all pipelines the first one's weights, and the first and last stage the same tied weights."""
        split = self._split
        with torch.no_grad():
            for name, parameter in self._task.model.named_parameters():
                if split.peers is not None:
                    dist.broadcast(parameter, split.stage, group=split.peers)
                if split.ends is not None and name in split.tied:
                    dist.broadcast(parameter, split.rank(0), group=split.ends)
        self.align()

    def _make_schedule(self, inputs: torch.Tensor) -> PipelineScheduleSingle:
        """Return the schedule for parts like `inputs`. Shapes are given, or the stages would pickle them to each other."""
        # Imported here because it loads torch._dynamo. Every optimizer loads that as well, so a training gains nothing; but
        # `slipway sample` and `slipway export` import this module and have no optimizer.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        split = self._split
        schedules: Mapping[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
        between = torch.empty(*inputs.shape, split.width, device="meta")
        stage = PipelineStage(
            self._model, split.stage, split.stages, self._context.device,
            input_args=torch.empty(inputs.shape, dtype=inputs.dtype, device="meta") if split.first else between,
            output_args=torch.empty((), device="meta") if split.last else between,
            group=split.own,
        )  # fmt: skip
        return schedules[split.schedule](stage, self._options.accumulate, loss_fn=self._weighed, scale_grads=False)

    def _weighed(self, loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """Return what the last stage's backward starts from: the stage has computed the loss already."""
        loss = self._weigh(loss)
        self._mean += loss.detach()
        scaled: torch.Tensor = self._scaler.scale(loss)
        return scaled

    def _average(self) -> None:
        """Average the gradients over the pipelines, in one exchange, then add up those of tied parameters.

        In this order the first and the last stage add the same two numbers, so that they stay equal.
        """
        split, parameters = self._split, dict(self._task.model.named_parameters())
        if split.peers is not None:
            gradients = [parameter.grad for parameter in parameters.values() if parameter.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients]).to(WIRE[self._options.comm])
            dist.all_reduce(flat.div_(split.pipelines), group=split.peers)
            pieces = torch.split(flat.float(), [gradient.numel() for gradient in gradients])
            for gradient, piece in zip(gradients, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))
        if split.ends is not None:
            for name in sorted(split.tied):
                dist.all_reduce(parameters[name].grad, group=split.ends)


Tensors = Mapping[str, Mapping[str, torch.Tensor]]


def collect_shards(
    own: Tensors, values: Mapping[str, Any], split: Split, context: Context
) -> tuple[dict[str, Mapping[str, torch.Tensor]], dict[str, Any]]:
    """Return all stages' tensors as `model-1-of-2`, … and their values merged, on the ranks that write snapshots; by all ranks.

    Each stage sends to those in its own pipeline, which are on the same node if the pipeline fits there. On other ranks
    only this rank's own are returned.
    """
    keepers = context.gather_number(context.place.is_writer)
    shards = {shard_name(stem, split.stage, split): dict(tensors) for stem, tensors in own.items()}
    merged = dict(values)
    for keeper in (split.rank(stage) for stage in range(split.stages)):
        if not keepers[keeper]:
            continue
        if keeper != context.place.rank:
            send_shard(own, values, keeper, context)
            continue
        for stage in range(split.stages):
            if stage != split.stage:
                received, more = receive_shard(split.rank(stage), context)
                shards |= {shard_name(stem, stage, split): tensors for stem, tensors in received.items()}
                merged |= more
    return dict(sorted(shards.items())), merged


def shard_name(stem: str, stage: int, split: Split) -> str:
    """Return a shard's name, counted from 1; reading a snapshot merges the shards under `stem`."""
    return f"{stem}-{stage + 1}-of-{split.stages}"


def send_shard(own: Tensors, values: Mapping[str, Any], target: int, context: Context) -> None:
    """Send what `receive_shard` expects."""
    header = {"values": values, "tensors": {stem: describe_tensors(tensors) for stem, tensors in own.items()}}
    data = torch.tensor(list(json.dumps(header).encode()), dtype=torch.uint8)
    send_tensor(torch.tensor([data.numel()]), target, context)
    send_tensor(data, target, context)
    for tensors in own.values():
        for tensor in tensors.values():
            send_tensor(tensor, target, context)


def receive_shard(source: int, context: Context) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """Return the tensors and values of another rank, on the CPU."""
    size = receive_tensor(torch.empty(1, dtype=torch.int64), source, context)
    data = receive_tensor(torch.empty(int(size), dtype=torch.uint8), source, context)
    header = json.loads(bytes(data.numpy()))
    tensors = {
        stem: {name: receive_tensor(make_empty(shape, dtype), source, context) for name, shape, dtype in described}
        for stem, described in header["tensors"].items()
    }
    return tensors, header["values"]


def send_tensor(tensor: torch.Tensor, target: int, context: Context) -> None:
    """Send a tensor over the side group."""
    for piece in pieces_of(tensor.detach().cpu().contiguous()):
        dist.send(piece, target, group=context.side)
        context.beat(Phase.SAVE)


def receive_tensor(tensor: torch.Tensor, source: int, context: Context) -> torch.Tensor:
    """Overwrite a contiguous CPU tensor with what `send_tensor` sends."""
    for piece in pieces_of(tensor):
        dist.recv(piece, source, group=context.side)
        context.beat(Phase.SAVE)
    return tensor
