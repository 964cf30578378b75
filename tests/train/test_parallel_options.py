"""Options of how processes share the work, and what all of them must have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from training_jobs import Run

from slipway.options import parse
from slipway.options.linear import LinearOptions
from slipway.options.vision import VisionOptions
from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop import step
from slipway.train.loop.arithmetic import read_precision
from slipway.train.loop.step import take_step
from slipway.train.loop.training import agree_on_task, begin_training
from slipway.train.parallel import data_parallel
from slipway.train.worker.context import outside_job
from slipway.train.workloads.linear import make_data
from slipway.train.workloads.vision import make_task

Start = Callable[..., Run]
OPTIONS = ("--dataset-size", 150, "--batch-size", 16, "--steps", 12, "--log-every", 4)


def distance(one: Run, other: Run) -> float:
    """The largest difference between two runs' weights."""
    return max(float((tensor - other.tensors()[name]).abs().max()) for name, tensor in one.tensors().items())


@pytest.mark.parametrize("option", ["--static-graph", "--find-unused-parameters", "--bucket-mb=0.001"])
def test_how_gradients_are_found_and_packed_changes_no_weight(job: Start, option: str) -> None:
    plain, run = job("linear", *OPTIONS, folders=("plain",)), job("linear", *OPTIONS, option)
    assert (plain.exit_code, run.exit_code) == (0, 0), run.output
    assert distance(plain, run) == 0


@pytest.mark.parametrize("form", [torch.bfloat16, torch.float16])
def test_gradients_that_travel_shortened_are_as_near_as_the_format_is_fine(job: Start, form: torch.dtype) -> None:
    short = {torch.bfloat16: "bf16", torch.float16: "fp16"}[form]
    options = (*OPTIONS, "--steps", 1)  # and the weights are the first ones less the rate times the gradient
    plain, run = job("linear", *options, folders=("plain",)), job("linear", *options, "--comm", short)
    assert (plain.exit_code, run.exit_code) == (0, 0), run.output
    # Each process rounds its gradient, and their sum is rounded once more, each time by eps / 2 at most as a share
    # (https://docs.pytorch.org/docs/stable/type_info.html has eps). A gradient is a mean of inputs times a number between -1
    # and 1, the error of a probability; at first, when that is about a half, there is room for what fp32 rounds as well.
    used = parse(LinearOptions, [str(word) for word in options])
    largest = max(1.0, float(make_data(used)[0].abs().max()))  # 1 is what the bias is multiplied by
    assert 0 < distance(plain, run) <= used.lr * torch.finfo(form).eps * largest


def test_a_batch_per_process_grows_with_their_number(job: Start) -> None:
    for processes in (1, 2):
        run = job("linear", "--steps", 3, "--batch-size-per-process", 8, processes=processes, folders=(str(processes),))
        assert f"3 steps of {8 * processes} samples (8 per process)" in run.output


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"data": "glyphs of another seed"}, r"its data \(glyphs of another seed instead of glyphs"),
        ({"description": {"model": "large"}}, r"its model's model \(large instead of "),
    ],
)
def test_ranks_with_other_data_or_another_model_do_not_train(
    odd: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with outside_job() as context:
        options = parse(VisionOptions, ["--train-pictures", "64", "--eval-pictures", "8"])
        task = make_task(options, context)
        precision = read_precision("fp32", context.device)
        said = list[str]()
        monkeypatch.setattr(
            context, "share_text", lambda text, source=0: said.append(text) or said[0 if source == 0 else -1]
        )
        agree_on_task(task, options, precision, context)
        monkeypatch.setattr(context, "gather_number", lambda number: [0, number])
        with pytest.raises(ConfigurationError, match=f"^Rank 1 differs from rank 0 in {told}"):
            agree_on_task(replace(task, **odd), options, precision, context)


@pytest.mark.usefixtures("shared_cache")
def test_a_step_that_is_left_out_leaves_running_statistics_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    with outside_job() as context:
        args = ["--train-pictures", "64", "--eval-pictures", "8", "--batch-size", "16", "--precision", "fp32"]
        options = parse(VisionOptions, args)
        training = begin_training(make_task(options, context), options, context)
        training.loader.start(0)
        take_step(training, "train")
        kept = [buffer.clone() for buffer in training.task.model.buffers()]
        poison = step.poison
        monkeypatch.setattr(step, "poison", lambda loss: poison(loss + torch.inf))
        take_step(training, "train")
        assert all(map(torch.equal, kept, training.task.model.buffers()))
        monkeypatch.setattr(step, "poison", poison)
        take_step(training, "train")
        assert not all(map(torch.equal, kept, training.task.model.buffers()))


@pytest.mark.pull
def test_a_newer_torch_that_has_another_word_for_buffers_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(model: torch.nn.Module, *, broadcast_buffers: bool, **_: object) -> torch.nn.Module:
        assert not broadcast_buffers
        said = "`broadcast_buffers` is deprecated. Use `forward_sync_buffers` instead."  # 2.13
        warnings.warn(said, FutureWarning, stacklevel=2)
        return model

    monkeypatch.setattr(data_parallel, "DistributedDataParallel", wrap)
    model, options = torch.nn.Linear(1, 1), LinearOptions()
    with outside_job() as context:
        assert data_parallel.average_gradients(model, options, context) is model
