"""What several processes do, with one: it exchanges with nobody, and has NCCL, DDP, its buckets and its hooks all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpu_steps import Step, first_step, optimized
from loops import Loop, group_of_one, open_context

from slipway.options.allreduce import ALL_GATHER, ALL_REDUCE, BROADCAST
from slipway.train.measure.collectives import make_buffers
from slipway.train.measure.kernels import REORDERED, distance

Train = Callable[..., Loop]

GPT = (
    "gpt", "--layers", 2, "--heads", 2, "--embed", 64, "--context", 64, "--batch-size", 8, "--warmup", 5, "--log-every", 1,
)  # fmt: skip
WAYS: dict[str, tuple[object, ...]] = {
    "as it is by default": (),
    "in parts": ("--accumulate", 2),
    "many buckets": ("--bucket-mb", 0.1),
    "static graph": ("--static-graph",),
    "unused parameters": ("--find-unused-parameters",),
}
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Not clipped, nor in fp16 with its gradient scaler: both would multiply the gradients once they are rounded, or before it.
COMPRESSED = (*GPT, "--clip", 0, "--precision", "fp32", "--comm")


@pytest.mark.parametrize("collective", [ALL_REDUCE, BROADCAST, ALL_GATHER])
def test_collectives_are_right(device: torch.device, tmp_path: Path, collective: str) -> None:
    with group_of_one(device, tmp_path):
        buffers = make_buffers(collective, 1000, torch.float32, open_context(device, tmp_path))
        buffers.fill()
        buffers.run()
        assert buffers.check() == ""


@pytest.mark.parametrize("way", WAYS)
def test_with_ddp_a_step_is_the_same_as_without(train: Train, device: torch.device, tmp_path: Path, way: str) -> None:
    plain, averaged = both(train, device, tmp_path, *GPT, *WAYS[way])
    # A sum of one, divided by one, is rounded nowhere.
    assert averaged.loss == plain.loss
    for name, gradient in plain.gradients.items():
        assert gradient.any(), name
        assert torch.equal(averaged.gradients[name], gradient), name
    assert_weights(train, averaged, *GPT)


@pytest.mark.parametrize("name", FORMATS)
def test_compressed_gradients_are_rounded_to_the_format_once(
    train: Train, device: torch.device, tmp_path: Path, name: str
) -> None:
    plain, averaged = both(train, device, tmp_path, *COMPRESSED, name)
    assert averaged.loss == plain.loss
    limits = torch.finfo(FORMATS[name])
    for key, exact in plain.gradients.items():
        found = averaged.gradients[key]
        # The nearest number of a format lies within eps / 2 of the number itself, as a share, and below its smallest normal
        # number within half of the step there, eps × smallest_normal: Goldberg, What every computer scientist should know
        # about floating-point arithmetic (1991), "Relative Error and Ulps" and "Denormalized Numbers"; of torch's eps:
        # https://docs.pytorch.org/docs/stable/type_info.html. The division by the group's size, one, rounds no more.
        bound = limits.eps / 2 * (exact.double().abs() + limits.smallest_normal)
        assert ((found.double() - exact.double()).abs() <= bound).all(), key
        assert torch.equal(found, found.to(FORMATS[name]).float()), f"{key} was exchanged in another format"
    assert any(not torch.equal(averaged.gradients[key], exact) for key, exact in plain.gradients.items())
    assert_weights(train, averaged, *COMPRESSED, name)


def test_compiled_with_ddp_the_gradient_is_the_same_but_for_the_order_of_sums(
    train: Train, gpu: torch.device, tmp_path: Path
) -> None:
    # In fp32, where a bound follows from the length of sums. These buckets cut the compiled graph in two; 1 MB is the smallest
    # that torch 2.10 compiles for.
    words = (*GPT, "--embed", 128, "--precision", "fp32", "--compile", "--bucket-mb", 1)
    plain, averaged = both(train, gpu, tmp_path, *words, ordered=False)
    assert averaged.loss == pytest.approx(plain.loss, rel=REORDERED)
    for name, gradient in plain.gradients.items():
        assert distance(averaged.gradients[name], gradient) < REORDERED, name


def both(train: Train, device: torch.device, folder: Path, *words: object, ordered: bool = True) -> tuple[Step, Step]:
    """The first step without DDP and with it; `ordered` lets no kernel add in an order of chance, as attention's backward."""
    torch.use_deterministic_algorithms(ordered)
    with group_of_one(device, folder):
        plain = first_step(train(*words, folder="plain"))
        return plain, first_step(with_ddp(train(*words, folder="ddp")))


def with_ddp(loop: Loop) -> Loop:
    """The same, over the process group."""
    loop.average()
    return loop


def assert_weights(train: Train, step: Step, *words: object) -> None:
    """The weights are what the optimizer makes of the step's gradients.

    They cannot be held against those of a step with other gradients: Adam's first step is the learning rate times the sign of
    the gradient (Kingma and Ba, Adam, 2015, algorithm 1 with t = 1), and a rounding may change the sign of a number near 0.
    """
    loop = train(*words, folder="again")
    eps = torch.finfo(torch.float32).eps
    for name, weight in optimized(loop, step.gradients).items():
        # On a GPU the kernel has two forms, by how memory is aligned. Some ten operations on each weight may be rounded
        # differently there: those on the step, which is no longer than the rate, and the last one, on the weight.
        torch.testing.assert_close(step.weights[name], weight, rtol=eps, atol=10 * eps * loop.rate(0), msg=name)
