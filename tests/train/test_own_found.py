"""What trains is found wherever it is, with the name that the script gives it, and is not kept alive by that."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler

from slipway.train.own.found import FoundObject, found_objects, variables_of


class Pictures:
    """A data set that draws."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 4


class Average:
    """An average that is no module."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Trainer:
    """Objects as attributes, in containers, behind wrappers."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.ema = AveragedModel(self.model)
        self.mine = [Average()]
        self.parallel = {"model": nn.DataParallel(self.model)}
        self.tail = nn.Sequential(self.model[1])  # has nothing of its own
        self.both = nn.ModuleDict({"model": self.model, "head": nn.Linear(3, 3)})
        self.loader = DataLoader(Pictures(), sampler=RandomSampler(range(4), generator=torch.Generator()))  # type: ignore[arg-type]
        self.draw = partial(random.Random.random, random.Random(1))

    def fit(self) -> tuple[FoundObject, ...]:
        """Call it where `resume` would be called."""
        optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        plateau = ReduceLROnPlateau(optimizer)
        scaler = torch.amp.GradScaler("cpu")
        rng = np.random.RandomState(1)

        def sample() -> tuple[Any, ...]:
            return plateau, scaler, rng

        return found_objects([self.model, optimizer]) if sample else ()


def test_what_is_found() -> None:
    """By type and name; what shares its parameters with a model that was passed is not found."""
    found = {each.name: each for each in Trainer().fit() if each.name}
    kinds = {name: each.kind for name, each in found.items()}
    assert kinds == {
        "plateau": "ReduceLROnPlateau", "scaler": "GradScaler", "rng": "RandomState", "self.ema": "AveragedModel",
        "self.mine[0]": "Average", "self.both.head": "Linear", "self.loader.dataset.rng": "Generator",
        "self.loader.sampler.generator": "Generator", "self.draw[1][0]": "Random",
    }  # fmt: skip
    code = Trainer.fit.__code__.co_firstlineno, Trainer.__init__.__code__.co_firstlineno
    assert [str(found[name]) for name in ("plateau", "self.ema")] == [
        f'ReduceLROnPlateau "plateau" (test_own_found.py:{code[0] + 3})',
        f'AveragedModel "self.ema" (test_own_found.py:{code[1] + 2})',
    ]


def test_memory_is_freed() -> None:
    """A model that a function deletes is gone, although its variables were read; a dictionary from locals() stays whole."""
    model, average = nn.Linear(2, 2), nn.Linear(2, 2)
    before = locals()
    found = found_objects()
    assert {"model", "average"} <= {each.name for each in found}
    assert before["model"] is model
    del before
    found = found_objects()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert {each.name for each in found if each.ref() is average} == {"average"}


def test_variables_are_not_kept() -> None:
    """Also where the collector never runs."""
    model = nn.Linear(2, 2)
    gone = weakref.ref(model)
    assert variables_of(sys._getframe())["model"] is model
    del model
    assert gone() is None
