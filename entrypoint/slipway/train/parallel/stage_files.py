"""The stages' parts of a snapshot, brought together on the ranks that keep snapshots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from slipway.protocol.phases import Phase
from slipway.train.parallel.split import Split
from slipway.train.snapshots.resume import describe_tensors, make_empty
from slipway.train.worker.context import Context, pieces_of

Tensors = Mapping[str, Mapping[str, torch.Tensor]]


def collect_shards(
    own: Tensors, values: Mapping[str, Any], split: Split, context: Context
) -> tuple[dict[str, Mapping[str, torch.Tensor]], dict[str, Any]]:
    """All stages' tensors as `model-1-of-2`, … and their values merged, on the ranks that keep snapshots; by all ranks.

    Each stage sends to those in its own pipeline, which are on the same node where it fits there. Elsewhere nothing is
    returned but this rank's own.
    """
    keepers = context.gather_number(context.place.keeps_snapshots)
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
    """A file's name, counted from 1; a snapshot that is read has the parts under `stem` together."""
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
    """The tensors and values of another rank, on the CPU."""
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
    """Overwrite a contiguous CPU tensor by what `send_tensor` sends."""
    for piece in pieces_of(tensor):
        dist.recv(piece, source, group=context.side)
        context.beat(Phase.SAVE)
    return tensor
