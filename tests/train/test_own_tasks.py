"""Tasks of one's own: what cannot be saved or averaged is refused at the start, and a loss may be a sum and a count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional
from training_jobs import worker_environment

from slipway.options import Common, parse
from slipway.options.vision import VisionOptions
from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.arithmetic import Buffers, are_finite
from slipway.train.loop.fit import fit
from slipway.train.loop.requirements import require_saveable
from slipway.train.parallel.data_parallel import divided
from slipway.train.snapshots.snapshot import Snapshot, load_snapshot, save_snapshot
from slipway.train.snapshots.tensors import DTYPES
from slipway.train.task import Batch, Summed, Task, Validation
from slipway.train.worker.context import Context, open_context
from slipway.train.workloads.vision import suit_to_count

pytestmark = pytest.mark.pull


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of the tasks here."""

    workload: ClassVar[str] = "own.py"
    presets: ClassVar = {"": {"steps": 6, "batch_size": 8, "lr": 0.5, "save_every": 3, "log_every": 5}}


class Model(nn.Module):
    """Predicts the next of 20 tokens; `more` is a buffer of some type."""

    def __init__(self, more: torch.Tensor | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside, self.outside = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.register_buffer("more", more)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.outside(self.inside(tokens))
        return result


class WithState(Model):
    """With a state of its own."""

    state: ClassVar[Any] = {"scale": 1.0}

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        """Nothing."""


class WithTensorState(WithState):
    """With one that can be saved."""

    state = torch.tensor([1, 2])


TOKENS = torch.randint(0, 20, (64, 16), generator=torch.Generator().manual_seed(1))
LENGTHS = torch.where(torch.arange(64) % 2 == 0, 2, 16)  # short and long ones in turns
TARGETS = (TOKENS * 3 + 1).remainder(20).masked_fill(torch.arange(16)[None] >= LENGTHS[:, None], -100)


def summed(model: nn.Module, batch: Batch) -> Summed:
    """Sum and count of the tokens that are not masked."""
    total = functional.cross_entropy(
        model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=-100, reduction="sum"
    )
    return total, (batch[1] != -100).sum()


def mean(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Their mean."""
    total, count = summed(model, batch)
    return total / count


def make_task(
    model: nn.Module, loss: Callable[[nn.Module, Batch], Any] = summed, more: tuple[nn.Parameter, ...] = ()
) -> Task:
    """The task on a model, with `more` parameters in its optimizer."""
    return Task(
        name="own", model=model, description={}, samples=64, loss=loss,
        batch=lambda indices, keys: (TOKENS[indices], TARGETS[indices]),
        optimizer=torch.optim.SGD([*model.parameters(), *more], 0.5, fused=True),
        validation=Validation(
            samples=64, batch_size=64, batch=lambda indices: (TOKENS[indices], TARGETS[indices]),
            sums=lambda model, batch: torch.stack([part.double() for part in summed(model, batch)]),
            results=lambda means: {"val_loss": means[0]},
        ),
    )  # fmt: skip


def train(folder: Path, task: Task, *typed: object, resume: str = "none") -> None:
    """Train it in this process."""
    with open_context(worker_environment(folder, resume)) as context:
        fit(task, parse(Options, [str(word) for word in typed]), context)


# What is refused


def test_a_parameter_outside_the_model_is_refused_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(())))
    with pytest.raises(
        ConfigurationError, match=r"trains 2 parameters outside the model: number 3 .* \(2 × 3\).*single"
    ):
        require_saveable(make_task(Model(), more=more))
    with pytest.raises(SystemExit):
        train(tmp_path, make_task(Model(), more=more))
    assert "Nothing would average them" in capsys.readouterr().err
    assert not (tmp_path / "snapshots").exists()
    require_saveable(make_task(Model()))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (WithState(), r"_extra_state in the state_dict\(\) of the model of own is a dict"),
        (Model(torch.zeros(2, dtype=torch.complex128)), "more in the state_dict.. of the model of own is complex128"),
        (Model(torch.eye(2).to_sparse()), "more in the state_dict.. of the model of own is sparse_coo"),
        (nn.Sequential(Model(), WithState()), r"1\._extra_state"),
    ],
)
def test_a_state_that_no_snapshot_holds_is_named(model: nn.Module, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        require_saveable(make_task(model))


# What is saved


def value(kind: str) -> torch.Tensor:
    """Three numbers of a type."""
    return torch.tensor([0, 1, 1]).to(getattr(torch, kind))


@pytest.mark.parametrize("kind", DTYPES)
def test_each_type_that_safetensors_knows_is_saved_as_it_is(tmp_path: Path, kind: str) -> None:
    save_snapshot(tmp_path, Snapshot(1, {"data": ""}, {"model": {"more": value(kind)}}), 1)
    [folder] = tmp_path.iterdir()
    back = load_snapshot(folder).tensors["model"]["more"]
    assert back.dtype == getattr(torch, kind)
    assert torch.equal(back.view(torch.uint8), value(kind).view(torch.uint8))


@pytest.mark.parametrize("kind", DTYPES)
def test_buffers_of_each_type_come_back_where_a_step_is_left_out(kind: str) -> None:
    for left_out in (0.0, 1.0):
        buffer = value(kind)
        kept = Buffers([buffer])
        buffer.copy_(torch.zeros(3).to(buffer.dtype))
        kept.restore(torch.tensor(left_out))
        expected = value(kind) if left_out else torch.zeros(3).to(buffer.dtype)
        assert torch.equal(buffer.view(torch.uint8), expected.view(torch.uint8))
    if buffer.is_floating_point():
        assert are_finite([buffer])


@pytest.mark.parametrize(
    "model", [WithTensorState(), *(Model(value(kind)) for kind in ("uint32", "float8_e4m3fn", "complex64"))]
)
def test_a_model_with_such_a_state_trains_and_saves(tmp_path: Path, model: Model) -> None:
    train(tmp_path, make_task(model))
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == ["step-00000003", "step-00000006"]


# A sum and a count


def trained(folder: Path, loss: Callable[[nn.Module, Batch], Any], accumulate: int) -> torch.Tensor:
    """The weights after a few steps."""
    model = Model()
    train(
        folder / f"{accumulate}",
        make_task(model, loss),
        "--accumulate",
        accumulate,
        "--save-every",
        0,
        "--precision",
        "fp32",
    )
    return torch.cat([part.detach().flatten() for part in model.parameters()])


def test_a_sum_and_a_count_give_the_same_model_however_a_batch_is_cut(tmp_path: Path) -> None:
    whole, parts = (trained(tmp_path, summed, accumulate) for accumulate in (1, 4))
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole, trained(tmp_path / "mean", mean, 1), rtol=1e-5, atol=1e-6)
    means = trained(tmp_path / "mean", mean, 4)
    assert (means - whole).abs().max() > 1e-3  # so the comparison says something


def test_a_count_is_added_up_over_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the half of a batch, where the other process counts three times as many tokens."""
    from slipway.train.parallel.data_parallel import DataParallel

    with open_context(worker_environment(tmp_path, "none")) as context:
        model = Model()
        parallel = object.__new__(DataParallel)
        parallel._task, parallel._context, parallel.share = make_task(model), context, (0, 2)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        monkeypatch.setattr(Context, "sum", lambda self, values: values + 9)
        loss = parallel._divide_by_counts(torch.tensor(6.0), [torch.tensor(2.0), torch.tensor(4.0)])
        assert loss == 6 / ((3 + 9) / 2)
        assert all((parameter.grad == 1 / 6).all() for parameter in model.parameters())


def test_a_step_in_which_nothing_counts_changes_nothing() -> None:
    loss, count = divided((torch.zeros(()), torch.tensor(0)), 4)
    assert (float(loss), float(count if count is not None else -1)) == (0, 0)
    plain = torch.tensor(2.5)
    assert divided(plain, 4) == (plain, None)


# Schedules


@pytest.mark.parametrize(
    ("typed", "noted"),
    [
        (("--steps", 12, "--schedule", "cosine"), True),
        (("--steps", 12, "--schedule", "linear"), True),
        (("--steps", 12), False),
        (("--steps", 6, "--schedule", "cosine"), False),
    ],
)
def test_a_schedule_that_ends_later_than_before_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: tuple[object, ...], noted: bool
) -> None:
    schedule = typed[2:]
    train(tmp_path, make_task(Model()), "--steps", 6, *schedule)
    train(tmp_path, make_task(Model()), *typed, resume="auto")
    said = capsys.readouterr().out
    assert ("schedule ended at step 6, now it ends at step 12: at step 6 the learning rate goes from" in said) == noted


# Defaults for small folders


def suited(count: int, *typed: object) -> tuple[object, ...]:
    """Batch size, epochs, steps, warm-up and learning rate for so many pictures."""
    options = suit_to_count(parse(VisionOptions, ["--dataset", "folder:.", *map(str, typed)]), count)
    return options.batch_size, options.epochs, options.steps, options.warmup, round(options.lr, 6)


def test_only_what_is_adapted_is_said_to_be() -> None:
    options = suit_to_count(parse(VisionOptions, ["--dataset", "folder:."]), 50_000)
    assert (options.warmup, options.batch_size) == (156, 128)
    assert [name for name, source in options.sources.items() if source == "for 50,000 pictures"] == ["warmup"]


@pytest.mark.parametrize(
    ("count", "typed", "values"),
    [
        (200, (), (8, 16, None, 40, 0.025)),
        (36, (), (8, 89, None, 44, 0.025)),
        (2, (), (8, 1600, None, 160, 0.025)),
        (1000, (), (32, 13, None, 41, 0.1)),
        (96_000, (), (128, 4, None, 300, 0.4)),  # as the preset has it
        (200, ("--steps", 100), (8, None, 100, 10, 0.025)),
        (200, ("--batch-size", 20), (20, 40, None, 40, 0.4)),
        (200, ("--lr", 0.3, "--warmup", 5, "--epochs", 4), (8, 4, None, 5, 0.3)),
        (200, ("--batch-size", 8, "--steps", 20, "--warmup", 0, "--lr", 0.05), (8, None, 20, 0, 0.05)),
        (300, ("--epochs", 1000), (16, 1000, None, 300, 0.05)),  # as in a run that resumes for more epochs
    ],
)
def test_a_small_folder_gets_batches_and_a_warm_up_that_suit_it(
    count: int, typed: tuple[object, ...], values: tuple[object, ...]
) -> None:
    assert suited(count, *typed) == values
