"""Hashes of tensors and values, by which `slipway prove` compares runs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from slipway.train.observe.fingerprints import LIMIT, fingerprint, hashes_of, named_hashes

pytestmark = pytest.mark.pull
LONG = torch.arange(2 * LIMIT + 3, dtype=torch.float64)
SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0], [1.0, 2.0]])),  # another order of the batch
        (SIGNS, SIGNS.flip(0) * -1),
        (torch.tensor([0.0, -0.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 0.0, -0.0, 0.0], dtype=torch.float64)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.tensor(1.0), torch.tensor(1.0).nextafter(torch.tensor(2.0))),
        (LONG, torch.cat([LONG[1:2], LONG[:1], LONG[2:]])),
        (LONG, torch.cat([LONG[LIMIT:], LONG[:LIMIT]])),
        (torch.tensor([True, False, True]), torch.tensor([True, True, False])),
        (torch.eye(3).to_sparse(), torch.eye(3).flip(0).to_sparse()),
        (torch.tensor([1 + 2j]), torch.tensor([2 + 1j])),
    ],
)  # fmt: skip
def test_other_values_have_another_hash(one: torch.Tensor, other: torch.Tensor) -> None:
    [first, second] = hashes_of([one, other])
    assert first != second


def test_equal_values_have_the_same_hash_wherever_they_are_in_memory() -> None:
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    places = [values, values.t().contiguous().t(), torch.cat([torch.zeros(1), values.flatten()])[1:].view(3, 5)]
    assert len(set(hashes_of(places))) == 1
    assert hashes_of([torch.zeros(3, device="meta")]), "one that has no values"


def test_values_are_named_by_their_paths_and_nothing_is_drawn() -> None:
    generators: dict[str, Any] = {
        "a": random.Random(1),
        "b": np.random.default_rng(1),
        "c": torch.Generator().manual_seed(1),
    }
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = named_hashes({"x": {"y": [torch.ones(2), 0.5, "text", None]}, "g": generators})
    assert {"x.y.0", "x.y.1", "x.y.2", "x.y.3", "g.a", "g.b", "g.c"} == first.keys()
    generators["a"].random(), generators["b"].random(), torch.rand(1, generator=generators["c"])
    second = named_hashes({"x": {"y": [torch.ones(2), 0.5, "text", None]}, "g": generators})
    assert {name for name in first if first[name] != second[name]} == {"g.a", "g.b", "g.c"}
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert fingerprint((torch.ones(2), {"mask": None})) != fingerprint((torch.ones(2), {"mask": 1}))
    assert fingerprint(np.arange(3)) != fingerprint(np.arange(3)[::-1])
