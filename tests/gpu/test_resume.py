"""A training on the GPU goes on from a snapshot bit for bit as if it had not ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from loops import Loop

from slipway.train.loop.saving import resume, save, wait_for_writers
from slipway.train.loop.training import Training

Train = Callable[..., Loop]

GPT = (
    "gpt", "--layers", 2, "--heads", 2, "--embed", 64, "--context", 64, "--batch-size", 8, "--accumulate", 2,
    "--dropout", 0.1, "--steps", 20, "--log-every", 100,
)  # fmt: skip
LINEAR = ("linear", "--batch-size", 16, "--dataset-size", 150, "--steps", 20, "--log-every", 100)


@pytest.fixture(autouse=True)
def _one_order() -> None:
    """Let no kernel add in an order of chance, as attention's backward does by default; a mere warning would leave it so."""
    torch.use_deterministic_algorithms(True)


def state(training: Training) -> dict[str, torch.Tensor]:
    """All tensors that a training consists of."""
    shards, _ = training.parallel.collect()
    tensors = {f"{stem}/{name}": part for stem, parts in shards.items() for name, part in parts.items()}
    return tensors | {"numbers": training.numbers.state()}


@pytest.mark.parametrize("words", [GPT, (*GPT, "--precision", "fp32"), (*GPT, "--workers", 2), LINEAR])
def test_it_goes_on_bit_for_bit(train: Train, words: tuple[object, ...]) -> None:
    whole = train(*words, folder="whole")
    whole.take(12)
    first = train(*words, folder="broken")
    first.take(7)
    save(first.training)
    first.take(3)  # which are lost
    wait_for_writers(first.training)
    second = train(*words, folder="broken")
    assert resume(second.training, "auto")
    assert second.training.step == 7
    second.training.loader.start(second.training.position)
    second.take(5)
    for name, tensor in state(whole.training).items():
        assert torch.equal(tensor, state(second.training)[name]), name
    for loop in (whole, first, second):
        loop.training.loader.close()


def test_steps_that_follow_do_not_reach_into_a_snapshot_that_is_still_written(train: Train) -> None:
    loop = train(*GPT)
    loop.take(5)
    before = {name: tensor.clone() for name, tensor in state(loop.training).items()}
    save(loop.training)
    loop.take(3)
    wait_for_writers(loop.training)
    other = train(*GPT)
    assert resume(other.training, "auto")
    for name, tensor in state(other.training).items():
        assert torch.equal(tensor, before[name]), name
