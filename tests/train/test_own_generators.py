"""Random generators of a user's loop: which are found, how their states are kept, and what is seeded sample by sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from own_runs import assert_equal
from test_own_rhythm import BrokenOffError, break_off
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, Subset

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


class OfItself(Sampler[int]):
    """A sampler that counts its epochs, or shuffles further what it had."""

    def __init__(self, length: int = 12) -> None:
        self.epoch, self.order, self.indices, self.seen = 0, torch.zeros(length), [*range(length)], [0] * length
        self.others = np.array(2.0), torch.eye(2).to_sparse()  # which have no length, or no bytes
        self.scale, self.sparse = self.others

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        self.epoch += 1
        self.order = torch.randperm(len(self.indices), generator=generator)
        return iter(self.order.tolist())

    def __len__(self) -> int:
        return len(self.indices)


class Shuffled(OfItself):
    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.indices)
        return iter(self.indices)


class Weighted(OfItself):
    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.order + 1, len(self), replacement=True).tolist())


class Stream(IterableDataset[int]):
    """Data that count their epochs."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        dice = random.Random(self.epoch)
        self.epoch += 1
        return iter(dice.sample(range(12), 12))


class Passes:
    """A loader of the user's own."""

    def __init__(self) -> None:
        self._done = 0

    def __iter__(self) -> Iterator[int]:
        self._done += 1
        yield from range(self._done, self._done + 6)


class Levels(list[int]):
    """Data whose level the script raises with each epoch."""

    level = 0

    def __getitem__(self, index: Any) -> Any:
        return index + 100 * self.level


class Drawn(Levels):
    """Data in an order of the class, which the script shuffles further where it is."""

    order: ClassVar[list[int]] = []

    def __getitem__(self, index: Any) -> Any:
        return self.order[index]


class Average:
    """An average of the weights, which keeps the tensor that it is given."""

    def __init__(self, model: nn.Linear) -> None:
        self.shadow = model.weight.detach().clone()

    def update(self, model: nn.Linear) -> None:
        self.shadow.mul_(0.5).add_(model.weight.detach())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.shadow = state["shadow"]


DATA: dict[str, Callable[[], Any]] = {
    "an epoch's number": lambda: DataLoader(range(12), 2, sampler=OfItself()),  # type: ignore[arg-type]
    "with workers": lambda: DataLoader(range(12), 2, sampler=OfItself(), num_workers=1),  # type: ignore[arg-type]
    "in a batch sampler": lambda: DataLoader(range(12), batch_sampler=BatchSampler(OfItself(), 2, False)),  # type: ignore[arg-type]
    "shuffled further": lambda: DataLoader(range(12), 2, sampler=Shuffled()),  # type: ignore[arg-type]
    "weights": lambda: DataLoader(range(12), 2, sampler=Weighted()),  # type: ignore[arg-type]
    "a stream": lambda: DataLoader(Stream(), 2),
    "a loader": Passes,
    "a level": lambda: DataLoader(Levels(range(12)), 2),
    "a list of the class": lambda: DataLoader(Drawn(range(12)), 2),
    "a subset": lambda: DataLoader(Subset(range(40), range(12)), 2),  # type: ignore[arg-type]
}


AGAIN = ("an epoch's number", "shuffled further", "a level")
BROKEN_OFF = [
    *(("within an epoch", data) for data in DATA),
    *((where, data) for where in ("between two epochs", "before its data", "in the second epoch") for data in AGAIN),
]


@pytest.mark.parametrize(("where", "data"), BROKEN_OFF)
def test_what_data_keep_of_the_epochs_before_comes_back(
    where: str, data: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_run: None
) -> None:
    """Samplers that count their epochs are usual, and have no state_dict."""

    def train(folder: str, broken: bool) -> None:
        monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / folder))
        random.seed(1)
        torch.manual_seed(1)
        Drawn.order = [*range(12)]
        loader, model, beside = DATA[data](), nn.Linear(1, 1), Levels()
        optimizer, average = torch.optim.SGD(model.parameters(), lr=0.1), Average(model)
        run = slipway.resume(model=model, optimizer=optimizer, average=average, save_every=1)
        for epoch in run.epochs(4):
            if broken and (epoch, where) in ((1, "in the second epoch"), (2, "before its data")):
                break_off(run)
            average.update(model)
            if data == "a level":
                loader.dataset.level += 1
            if data == "a list of the class":
                random.shuffle(Drawn.order)
            if data == "a subset":  # which the model chooses
                chance = random.Random(model.weight.item())
                loader.dataset.indices = chance.sample(range(40), 12)
            for batch in run.batches(loader):
                if broken and (epoch, run.batch, where) == (2, 3, "within an epoch"):
                    break_off(run)
                found[folder][epoch, run.batch] = batch
                optimizer.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                if data == "weights":
                    loader.sampler.order[int(batch[0])] += 1.0
            if broken and (epoch, where) == (1, "between two epochs"):
                break_off(run)
        found[folder][4, 0] = (average.shadow, model.state_dict(), len(beside))

    found: dict[str, dict[tuple[int, int], Any]] = {"whole": {}, "run": {}}
    train("whole", False)
    with suppress(BrokenOffError):
        train("run", True)
    train("run", False)
    assert_equal(found["run"], found["whole"])


@pytest.mark.parametrize(
    ("sampler", "named"),
    [(Shuffled(6000), "Shuffled.indices"), (OfItself(6000), ""), (Shuffled(4000), "")],
    ids=["too long to be saved", "another one in each epoch", "saved"],
)
def test_an_order_that_is_shuffled_further_and_too_long_to_be_saved_is_named(
    sampler: OfItself, named: str, own_run: None, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(1, 1)
    run = slipway.resume(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in run.epochs(3):
        for _ in run.batches(DataLoader(range(len(sampler)), 1000, sampler=sampler)):  # type: ignore[arg-type]
            pass
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert [line.split()[1] for line in said if "too long to be saved" in line] == [named] * bool(named)


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
