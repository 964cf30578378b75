"""What trains is found wherever it is, with the name that the script gives it, and is not kept alive by that."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections import deque
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler

from slipway.train.user.found import FoundObject, Variable, found_objects, is_users, variables_of, walk
from slipway.train.user.script_values import values_of_script


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
        metric = {"compute": lambda own: own, "reset": lambda own: own}
        self.metric = type("Accuracy", (nn.BatchNorm1d,), metric)(3)  # begins again with each evaluation

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


@pytest.mark.core
def test_what_is_installed_is_not_the_users_wherever_that_is() -> None:
    for file in (
        torch.__file__, random.__file__, "/home/a/.local/lib/python3.12/site-packages/timm/models.py",
        "/usr/lib/python3/dist-packages/numpy/__init__.py", "/opt/conda/lib/python3.11/site-packages/hydra/main.py",
    ):  # fmt: skip
        assert not is_users({"__file__": file, "__name__": "anything"}), file
    assert not is_users({"__file__": "/opt/pytorch/torch/optim/adam.py", "__name__": "torch.optim.adam"})
    assert is_users({"__file__": "/home/a/project/train.py", "__name__": "__main__"})
    assert is_users({"__name__": "__main__"})  # a notebook


@pytest.mark.core
def test_no_code_of_an_objects_class_runs_when_it_is_looked_at() -> None:
    class Lazy:
        """As a proxy that connects to something when it is first used."""

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(f"not connected: {name}")

    places = walk([Variable([Lazy(), torch.Generator()], "both", str)])
    assert [place.name for place in places.values()] == ["both", "both[0]", "both[1]"]
    held = Lazy()
    assert not [each for each in found_objects() if each.name == "held"]
    del held


class Level:
    """An object of a script's, and what its class has."""

    scale = 2.0

    def __init__(self) -> None:
        self.number, self.mean, self._pool = 1, torch.zeros(2), deque([(1, "a")])


def test_plain_values_are_found_in_variables_objects_modules_closures_and_caches() -> None:
    level, model, rows = Level(), nn.Sequential(nn.Dropout(0.3), nn.Linear(1, 1)), [1, {"a": 2}]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[1].bias.requires_grad = False
    factor, table = 4, np.ones(3)

    @lru_cache
    def learn(number: int) -> int:
        return factor * number

    learn(3)
    found = {each.name: each.value for each in values_of_script([model, optimizer])}
    assert found["level.number"] == 1
    assert found["level._pool"] == [1, [2, 1, "a"]]
    assert found["rows"] == [len(rows), 1, [1, [2, "a", 2]]]
    assert (found["model.0.p"], found["model.1.bias.requires_grad"], found["model.1.weight.requires_grad"]) == (
        0.3,
        False,
        True,
    )
    assert (found["factor"], found["learn"]) == (4, 1)
    assert found["level.mean"] is level.mean
    assert found["table"] is table
    assert next(value for name, value in found.items() if name.endswith("Level.scale")) == 2.0
    assert not [name for name in found if name.startswith("optimizer")]
    level.number += 1
    assert {each.name: each.value for each in values_of_script()}["level.number"] == 2
