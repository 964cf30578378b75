"""Every kind of difference between replicas, as a loop of one's own meets it, from a seed into a file.

Into the file goes a list of cases: the name of each, and the words of the error or `equal`.
"""

import json
import random
from pathlib import Path

import torch
import torch.distributed as dist
from faulty_worker import flip
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway.train.observe.replicas import ReplicasDifferError, replicated, verify_replicas


class Net(nn.Module):
    """With a buffer of its own, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("average", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x)))) * self.scale


def train(kind: str, steps: int = 4) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Train, with one thing wrong."""
    rank = dist.get_rank()
    torch.manual_seed(rank if kind == "seed" else 0)
    net = Net()
    if kind == "seed":  # DDP would give all of them rank 0's
        model: nn.Module = net
    elif kind == "left out":
        net._ddp_params_and_buffers_to_ignore = ["last.bias"]
        model = DistributedDataParallel(net)
    else:
        model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01 * (1 + rank if kind == "rate" else 1))
    torch.manual_seed(100 + rank)
    for step in range(steps):
        with model.no_sync() if kind == "not averaged" and step == 2 else torch.enable_grad():
            model(torch.randn(8, 7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if kind == "buffer":
            net.average += torch.rand(5)
        if kind == "one rank" and rank == 0 and step == 2:
            with torch.no_grad():
                net.last.weight.clamp_(-0.1, 0.1)
    if kind == "momentum" and rank == 1:
        optimizer.state[net.first.weight]["exp_avg"].zero_()
    return net, optimizer


def compare(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """What the comparison says."""
    try:
        verify_replicas(model, optimizer)
    except ReplicasDifferError as error:
        return str(error)
    return "equal"


def main(seed: str, file: str) -> None:
    """All of them."""
    dist.init_process_group("gloo")
    kinds = ("", "seed", "left out", "rate", "not averaged", "buffer", "one rank", "momentum")
    told = [(kind or "healthy", compare(*train(kind))) for kind in kinds]
    model, optimizer = train("")
    dice = random.Random(int(seed))
    for _ in range(40):
        rank, number = dice.randrange(dist.get_world_size()), dice.randrange(2**40)
        tensors = replicated(model, optimizer)
        named = [flip(tensors, number) if dist.get_rank() == rank else ""]
        dist.broadcast_object_list(named, rank)
        told.append((f"flip {rank} {named[0]}", compare(model, optimizer)))
        if dist.get_rank() == rank:
            flip(tensors, number)  # and back
    told.append(("healthy", compare(model, optimizer)))
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(told))
    dist.destroy_process_group()
