"""No step waits for the GPU: the host hands it all over, and goes on.

CUDA's debug mode knows most of what waits. It leaves events alone, and with them `StepCounts.late`, which waits for the end of the
step *before* by design. What it does not know shows in the other test: a step is handed over while the GPU is busy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from gpu_tokens import from_disk
from loops import Loop, group_of_one
from needs import reason
from noise_pictures import in_place

from slipway.train.loop import step
from slipway.train.loop.arithmetic import poison
from slipway.train.loop.step import take_step

Train = Callable[..., Loop]

SMALL = ("--layers", 2, "--heads", 2, "--embed", 64, "--context", 64, "--batch-size", 8)
CASES: dict[str, tuple[object, ...]] = {
    "gpt": ("gpt", *SMALL),
    "gpt, many tokens": ("gpt", *SMALL, "--batch-size", 64),  # above 3072 the embedding's gradient has another kernel
    "gpt in parts": ("gpt", *SMALL, "--accumulate", 2, "--dropout", 0.1),
    "gpt, checkpointed": ("gpt", *SMALL, "--checkpoint-activations"),
    "gpt in fp16": ("gpt", *SMALL, "--precision", "fp16"),
    "gpt in fp32": ("gpt", *SMALL, "--precision", "fp32"),
    "gpt, prepared by threads": ("gpt", *SMALL, "--workers", 2),
    "gpt, compiled": ("gpt", *SMALL, "--compile"),
    "finetune": ("finetune", "--batch-size", 4),
    "linear": ("linear", "--batch-size", 32),
    "vision": ("vision", "--batch-size", 32, "--flip"),
    "vision, all that varies": (
        "vision", "--model", "resnet9", "--batch-size", 32, "--shift", 4, "--flip", "--cutout", 8, "--clip", 1.0,
    ),
    "vision, resnet18": ("vision", "--model", "resnet18", "--batch-size", 32),
}  # fmt: skip


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise RuntimeError where the host waits for the GPU."""
    watch("error")
    try:
        yield
    finally:
        watch("default")


def watch(mode: str) -> None:
    """Choose CUDA's debug mode, which warns that it is a prototype."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode(mode)


@pytest.fixture(params=CASES)
def loop(request: pytest.FixtureRequest, train: Train, device: torch.device) -> Iterator[Loop]:
    """A training after a few steps: compiled, with its memory in place, and with no line of progress due for a while."""
    words = CASES[request.param]
    if device.type == "cpu" and ("fp16" in words or "--compile" in words):
        pytest.skip(reason("gpu"))
    with in_place(512, 32, 10):
        loop = train(*words, "--steps", 100, "--log-every", 100)
    loop.take(4)
    yield loop
    loop.training.loader.close()


def test_steps_never_wait(gpu: torch.device, loop: Loop) -> None:
    with no_waiting():
        loop.take(4)


def test_steps_on_tokens_from_the_disk_never_wait(train: Train, gpu: torch.device, tmp_path: Path) -> None:
    loop = train("gpt", *SMALL, "--log-every", 100, alter=partial(from_disk, folder=tmp_path, length=64, device=gpu))
    loop.take(4)
    with no_waiting():
        loop.take(4)


def test_steps_with_ddp_never_wait(train: Train, gpu: torch.device, tmp_path: Path) -> None:
    with group_of_one(gpu, tmp_path):
        loop = train("gpt", *SMALL, "--log-every", 100)
        loop.average()
        loop.take(4)
        with no_waiting():
            loop.take(4)
        del loop


def test_a_step_is_handed_over_while_the_gpu_is_busy(gpu: torch.device, loop: Loop) -> None:
    for _ in range(
        2
    ):  # the first time more is under way at once than ever before, and that may take more pinned memory
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]  # cycles: a second or so
        busy = torch.cuda.Event()  # type: ignore[no-untyped-call]
        busy.record()  # type: ignore[no-untyped-call]
        take_step(loop.training, "train")
        waited = busy.query()  # type: ignore[no-untyped-call]
    assert not waited
    torch.cuda.synchronize()


@pytest.mark.parametrize("wait", [lambda loss: loss.item(), bool, lambda loss: torch.tensor(1.0, device=loss.device)])
def test_a_step_that_waits_would_be_found(
    train: Train, gpu: torch.device, monkeypatch: pytest.MonkeyPatch, wait: Callable[[torch.Tensor], object]
) -> None:
    loop = train("gpt", *SMALL, "--log-every", 100)
    loop.take(3)

    def spoil(loss: torch.Tensor) -> torch.Tensor:
        wait(loss.detach())
        return poison(loss)

    monkeypatch.setattr(step, "poison", spoil)
    with pytest.raises(RuntimeError, match="synchronizing"), no_waiting():
        loop.take(1)


def test_the_trainings_that_are_looked_at_are_the_workloads(loop: Loop) -> None:
    assert loop.training.step == 4
    loop.take(2)
    assert int(loop.training.numbers.skipped) == 0 or loop.training.precision.name == "fp16"  # which seeks its scale
