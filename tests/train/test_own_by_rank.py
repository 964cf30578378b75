"""What differs by rank is stored for each rank, and comes back to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from waiting import PATIENCE

from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.user.by_rank import COMPARED, Collected, names_of, own_pieces, with_own
from slipway.train.user.objects import Objects
from slipway.train.user.values import from_bytes, pack, to_bytes

pytestmark = pytest.mark.pull


class Meeting:
    """What two ranks exchange, each in a thread of its own."""

    def __init__(self) -> None:
        self.side, self.barrier = object(), threading.Barrier(2, timeout=PATIENCE)
        self.rows: dict[int, torch.Tensor] = {}

    def of(self, rank: int) -> Any:
        def gather(tensor: torch.Tensor) -> list[torch.Tensor]:
            self.barrier.wait()
            self.rows[rank] = tensor
            self.barrier.wait()
            return [self.rows[0], self.rows[1]]

        return SimpleNamespace(side=self.side, gather=gather)


class Simulator:
    """An object with a state of its own, with a large and a small tensor."""

    def __init__(self, rank: int, size: int = 4) -> None:
        self.rank, self.large = rank, torch.zeros(size)

    def state_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "large": self.large + self.rank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rank, self.large = state["rank"], state["large"] - state["rank"]


def normed(rank: int) -> nn.Module:
    """A model that has seen other values than that of another rank."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    nn.init.ones_(model.get_parameter("0.weight"))
    model(torch.arange(4.0).view(2, 2) * (rank + 1))
    return model


BY_RANK: dict[str, tuple[Callable[[int], tuple[dict[str, Any], dict[str, Any]]], list[str]]] = {
    "nothing": (lambda rank: ({"model": nn.BatchNorm1d(2), "it": Simulator(0)}, {"a": 1}), []),
    "run.state": (lambda rank: ({}, {"sum": rank, "t": torch.ones(2), "u": torch.ones(2) * rank}), ["run.state"]),
    "more in one": (lambda rank: ({}, {"seen": [torch.ones(2)] * (rank + 1)}), ["run.state"]),
    "buffers": (lambda rank: ({"model": normed(rank)}, {}), ["model.1.running_mean", "model.1.running_var"]),
    "an average's": (lambda rank: ({"ema": torch.optim.swa_utils.AveragedModel(normed(rank), use_buffers=True)}, {}),
        ["ema.module.1.running_mean", "ema.module.1.running_var"]),
    "an object": (lambda rank: ({"it": [Simulator(0), Simulator(rank)]}, {}), ["it", "it.1.large"]),
    "not the large": (lambda rank: ({"it": Simulator(rank, COMPARED)}, {}), ["it"]),
    "not parameters": (lambda rank: ({"model": nn.Linear(2, 2)}, {}), []),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_RANK)
def test_each_rank_gets_back_what_it_had_otherwise(case: str) -> None:
    make, names = BY_RANK[case]
    meeting = Meeting()

    def collect(rank: int) -> tuple[Collected, dict[str, Any]]:
        objects, values = make(rank)
        named = Objects(objects)
        tensors, packed, sharded = named.collect()
        tensors["run"] = {}
        collected = Collected(tensors, packed, sharded, pack(values, "run.state", tensors["run"]))
        return collected, from_bytes(to_bytes(own_pieces(meeting.of(rank), named, collected, rank)[0], "it"))

    with ThreadPoolExecutor(2) as ranks:
        (first, of_first), (second, own) = ranks.map(collect, [0, 1])
    assert names_of(own).split(", ") == (names or [""])
    assert of_first.keys() == own.keys()
    stored = Snapshot(1, {"objects": first.packed, "values": first.values}, first.tensors)
    found = with_own(stored, own)
    assert (found.state["values"], found.state["objects"]) == (second.values, second.packed)
    compared = [(file, name) for file in own for name in own[file] if name]
    assert all(torch.equal(found.tensors[file][name], second.tensors[file][name]) for file, name in compared)


def test_tensors_of_the_script_have_its_own_names_in_a_message() -> None:
    value = torch.zeros(1)
    assert names_of({"run-tensors": {"values.queue": value, "": value}}) == "queue, tensors in the script's variables"
