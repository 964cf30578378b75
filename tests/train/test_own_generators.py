"""Random generators of a user's loop: which are found, how their states are kept, and what is seeded sample by sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler

import slipway
from slipway.train.user.generators import generators_of, set_generator, state_of_generator
from slipway.train.user.sources import Draw, open_source
from slipway.train.user.values import from_bytes, to_bytes

pytestmark = pytest.mark.pull


GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch": (lambda: torch.Generator().manual_seed(3), lambda each: torch.rand(1, generator=each).item()),
    "python": (lambda: random.Random(3), lambda each: each.gauss(0, 1)),
    "numpy": (lambda: np.random.default_rng(3), lambda each: each.normal()),
    "another of numpy's": (lambda: np.random.Generator(np.random.MT19937(3)), lambda each: each.integers(9, dtype=np.uint32)),
    "numpy's older kind": (lambda: np.random.RandomState(3), lambda each: each.normal()),
}  # fmt: skip


class Own(Sampler[int]):
    """A sampler of a user's, with whatever it is given under names of its own."""

    def __init__(self, **more: Any) -> None:
        self.__dict__.update(more)

    def __iter__(self) -> Iterator[int]:
        yield from range(8)

    def __len__(self) -> int:
        return 8


PLACES: dict[str, Callable[[Any], Any]] = {
    "loader": lambda each: DataLoader(list(range(8)), 2, generator=each),
    "sampler": lambda each: DataLoader(list(range(8)), 2, sampler=Own(dice=each)),
    "sampler in one": lambda each: DataLoader(list(range(8)), 2, sampler=Own(base=Own(_rng=each))),
    "list": lambda each: DataLoader(list(range(8)), sampler=Own(many=[0, each])),
    "dictionary": lambda each: DataLoader(list(range(8)), sampler=Own(by={"name": Own(one=each)})),
    "batch sampler": lambda each: DataLoader(list(range(8)), batch_sampler=BatchSampler(Own(rng=each), 2, False)),
    "wrapped loader": lambda each: Own(sampler=Own(rng=each)),
}


# A loader's own is torch's.
PAIRS = [(kind, place) for kind in GENERATORS for place in PLACES if kind == "torch" or place != "loader"]


@pytest.mark.parametrize(("kind", "place"), PAIRS)
def test_a_generator_is_found_wherever_it_is_and_goes_on_from_its_state(kind: str, place: str) -> None:
    make, draw = GENERATORS[kind]
    generator = make()
    loader = PLACES[place](generator)
    if isinstance(loader, DataLoader):
        open_source(loader, print, None)  # puts its sampler into another one
    assert generators_of(loader) == [generator]
    draw(generator)
    state = from_bytes(to_bytes({"it": state_of_generator(generator)}, "it"))["it"]
    wanted = [draw(generator) for _ in range(5)]
    other = make()
    set_generator(other, state)
    assert [draw(other) for _ in range(5)] == wanted


class Noisy(list[int]):
    """Samples that draw, one by one or several at once."""

    def __getitem__(self, index: Any) -> Any:
        return [index, torch.rand(1).item()]


def noisy_batch(samples: list[Any]) -> tuple[list[Any], float, float]:
    return samples, random.random(), np.random.rand()


LOADERS: dict[str, dict[str, Any]] = {
    "batches": {"batch_size": 2},
    "batches by a sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(8)), 2, False)},
    "samples": {"batch_size": None},
    "batches in the data set": {"sampler": BatchSampler(SequentialSampler(range(8)), 2, False), "batch_size": None},
}


@pytest.mark.parametrize("kind", LOADERS)
def test_samples_and_batches_draw_by_their_position_alone(kind: str) -> None:
    def read(skipped: int) -> list[Any]:
        loader = DataLoader(Noisy(range(8)), collate_fn=noisy_batch, **LOADERS[kind])
        none: Draw = None
        before = torch.get_rng_state(), random.getstate()
        source = open_source(loader, print, 5)
        found = [*source.begin(0, 0, skipped, none, none)]
        assert loader.dataset[3][0] == 3, "an index without a seed"
        assert random.getstate() == before[1]
        return found

    whole = read(0)
    torch.manual_seed(9)
    assert read(2) == whole[2:]
    assert len({str(each) for each in whole}) == len(whole)


@pytest.mark.parametrize("static", [False, True])
def test_a_warm_up_with_a_static_graph_calls_its_work_twice(static: bool, own_run: None) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(2, 1), static_graph=static)
        run, calls = slipway.resume(model=model), list[int]()

        def work() -> torch.Tensor:
            calls.append(1)
            found: torch.Tensor = model(torch.ones(1, 2)).sum()
            return found

        run.warm_up(work)
        assert len(calls) == 1 + static
        assert all(parameter.grad is None for parameter in model.parameters())
    finally:
        dist.destroy_process_group()
