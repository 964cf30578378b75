"""A job that was killed goes on bit for bit as if it had not been."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_jobs import Run
from waiting import PATIENCE, wait_until

from slipway.train.loop import loader as module
from slipway.train.loop.loader import Loader, Sampler

Start = Callable[..., Run]

# 150 samples: an epoch ends in the middle, in the middle of a batch. Validation comes between, and a line for each step.
LINEAR = ("--dataset-size", 150, "--batch-size", 16, "--lr", 0.5)
GPT = (
    "--layers", 2, "--heads", 2, "--embed", 32, "--context", 32, "--batch-size", 16, "--eval-samples", 9,
    "--sample-tokens", 0, "--dropout", 0.1, "--precision", "fp32",
)  # fmt: skip
COMMON = ("--steps", 20, "--accumulate", 2, "--workers", 2, "--save-every", 3, "--eval-every", 7, "--log-every", 2)
STEMS = ("model", "optimizer", "ranks")


def checksum(run: Run) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(run.tensors(*STEMS).items()):
        digest.update(name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def lines(run: Run) -> list[dict[str, float]]:
    """The metrics without what depends on the clock."""
    return [
        {name: value for name, value in line.items() if name in ("step", "epoch", "loss", "val_loss")}
        for line in run.metrics
    ]


@pytest.mark.core
@pytest.mark.parametrize(("workload", "options"), [("linear", LINEAR), ("gpt", GPT)])
def test_a_job_killed_at_any_step_ends_like_one_that_was_not(
    job: Start, whole: Start, dice: random.Random, workload: str, options: tuple[object, ...]
) -> None:
    reference = whole(workload, *options, *COMMON)
    step = dice.randrange(6, 20)  # where the second snapshot begins the first one is on the disk
    killed = job(workload, *options, *COMMON, kill=[dice.randrange(2), step])
    assert killed.exit_code == 9, killed.output
    copy = shutil.copytree(killed.folder, killed.folder.with_name("control"))
    resumed = job(workload, *options, *COMMON, resume="auto")
    assert resumed.exit_code == 0, resumed.output
    assert "resuming from" in resumed.output
    assert checksum(resumed) == checksum(reference), f"killed at step {step}"
    assert lines(resumed) == lines(reference)
    if workload == "gpt":
        control = job(workload, *options, *COMMON, folders=(copy.name,), resume="auto", forget_random=True)
        assert control.exit_code == 0, control.output
        assert checksum(control) != checksum(reference)


@pytest.mark.pull
def test_four_processes_with_many_buckets_sum_in_the_same_order(job: Start, whole: Start) -> None:
    options = (*GPT, "--steps", 8, "--log-every", 1, "--save-every", 3, "--bucket-mb", 0.01)
    reference = whole("gpt", *options, processes=4)
    killed = job("gpt", *options, processes=4, kill=[3, 5])
    resumed = job("gpt", *options, processes=4, resume="auto")
    assert (killed.exit_code, resumed.exit_code) == (9, 0), resumed.output
    assert checksum(resumed) == checksum(reference)
    assert lines(resumed) == lines(reference)


@pytest.mark.pull
def test_another_number_of_processes_goes_on_close_by(train: Start, job: Start) -> None:
    options = ("--dataset-size", 150, "--batch-size", 12, "--steps", 20, "--log-every", 5, "--save-every", 7)
    whole = train("linear", *options, folder="whole")
    killed = job("linear", *options, processes=2, kill=[0, 16])
    resumed = job("linear", *options, processes=3, resume="auto")
    assert (killed.exit_code, resumed.exit_code) == (9, 0), resumed.output
    for name, tensor in whole.tensors().items():
        assert torch.allclose(tensor, resumed.tensors()[name], atol=1e-5)
    for one, other in zip(lines(whole), lines(resumed), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def share_of(
    rank: int, world_size: int, sampler: Sampler, parts: int, workers: int, position: int, steps: int
) -> list[tuple[int, int]]:
    """Samples and keys that one process sees, in its order."""

    def make(indices: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return indices, keys

    loader = Loader(make, sampler, 12, parts, (rank, world_size), torch.device("cpu"), workers)
    loader.start(position)
    batches = [batch for _ in range(steps) for batch in loader.step()]
    loader.close()
    return [pair for indices, keys in batches for pair in zip(indices.tolist(), keys.tolist(), strict=True)]


@pytest.mark.core
@settings(max_examples=40)
@given(
    st.integers(1, 70),
    st.integers(0, 2**32),
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 6]), st.integers(0, 4)), min_size=1, max_size=4),
    st.sampled_from([0, 2]),
)
def test_no_sample_is_repeated_or_lost_when_the_number_of_processes_changes(
    size: int, seed: int, attempts: list[tuple[int, int]], workers: int
) -> None:
    sampler, position = Sampler(size, seed), 0
    seen: list[tuple[int, int]] = []
    for world_size, steps in attempts:
        for rank in range(world_size):
            seen += share_of(rank, world_size, sampler, 2 if world_size < 6 else 1, workers, position, steps)
        position += 12 * steps
    stream = sampler.indices(0, position)
    expected = zip(stream.tolist(), sampler.keys(0, stream).tolist(), strict=True)
    assert sorted(seen) == sorted(expected)


def test_what_a_sample_looks_like_depends_on_seed_epoch_and_sample_alone() -> None:
    sampler = Sampler(100, 5)
    first, second = sampler.indices(0, 100), sampler.indices(100, 100)
    keys = dict(zip(first.tolist(), sampler.keys(0, first).tolist(), strict=True))
    again = dict(zip(second.tolist(), sampler.keys(100, second).tolist(), strict=True))
    assert len({*keys.values(), *again.values()}) == 200
    assert np.array_equal(sampler.keys(40, sampler.indices(40, 20)), [keys[index] for index in sampler.indices(40, 20)])
    other = Sampler(100, 6)
    assert not set(other.keys(0, other.indices(0, 100)).tolist()) & set(keys.values())


def test_what_goes_wrong_while_data_are_prepared_is_raised_where_they_are_needed() -> None:
    def make(indices: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise ValueError("a broken picture")

    loader = Loader(make, Sampler(10, 0), 4, 2, (0, 1), torch.device("cpu"), 1)
    loader.start(0)
    assert loader.ready(within=PATIENCE)
    with pytest.raises(ValueError, match="a broken picture"):
        next(loader.step())
    loader.close()


def test_no_thread_is_at_work_any_more_once_the_loader_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, waited_for, join = [], threading.Event(), threading.Thread.join

    def make(indices: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
        begun.append(threading.current_thread())
        if len(begun) > 1:
            waited_for.wait(PATIENCE)
        return indices, keys

    def join_and_release(thread: threading.Thread, timeout: float | None = None) -> None:
        waited_for.set()
        join(thread, timeout)

    loader = Loader(make, Sampler(10, 0), 2, 1, (0, 1), torch.device("cpu"), 2)
    loader.start(0)
    next(loader.step())
    wait_until(lambda: len(begun) == 3, "both threads to be at work")
    monkeypatch.setattr(threading.Thread, "join", join_and_release)
    loader.close()
    assert not [thread for thread in begun if thread.is_alive()]
    assert len(begun) == 3, "the fourth, which was ordered ahead, is left undone"


def test_dead_storage_does_not_keep_a_loader_open(monkeypatch: pytest.MonkeyPatch) -> None:
    alive, readers = threading.Event(), list[threading.Thread]()
    monkeypatch.setattr(module, "LINGER", 0.0)

    def make(indices: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
        readers.append(threading.current_thread())
        alive.wait(PATIENCE)
        return indices, keys

    loader = Loader(make, Sampler(10, 0), 2, 1, (0, 1), torch.device("cpu"), 2)
    loader.start(0)
    wait_until(lambda: len(readers) == 2, "both threads to read")
    loader.close()
    assert all(reader.is_alive() for reader in readers), "it is closed although they hang"
    alive.set()
    for reader in readers:
        reader.join()
