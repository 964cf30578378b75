"""Steps whose loss or gradient is not finite are left out, on all ranks; too many of them end the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler
from training_jobs import Run

from slipway.train.loop import step
from slipway.train.loop.arithmetic import StepCounts, are_finite, poison
from slipway.train.loop.training import allow_left_out_steps
from slipway.train.worker.launcher import Heartbeat

Start = Callable[..., Run]
OPTIONS = ("--dataset-size", 150, "--batch-size", 16, "--steps", 20, "--log-every", 5)


@pytest.mark.core
def test_one_ranks_infinite_loss_leaves_out_the_step_on_all(job: Start) -> None:
    run = job("linear", *OPTIONS, "--dataset-size", 1000, infinite=[1, [6, 7, 12], 1])
    assert run.exit_code == 0, run.output
    assert [line.get("skipped") for line in run.metrics if "lr" in line] == [None, 2, 1, None]
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in run.metrics if "loss" in line)
    assert "2 steps left out: not finite" in run.output


def test_a_passing_fault_costs_nothing_but_the_way_back_to_the_snapshot(job: Start) -> None:
    more = ("--save-every", 4, "--nonfinite-budget", 2)
    whole = job("linear", *OPTIONS, *more, folders=("whole",))
    run = job("linear", *OPTIONS, *more, infinite=[0, [9, 10, 11], 1])
    assert run.exit_code == 0, run.output
    assert "returning to the newest snapshot" in run.output
    assert "resuming from" in run.output
    for name, tensor in whole.tensors("model", "ranks").items():
        assert torch.equal(tensor, run.tensors("model", "ranks")[name])
    assert [line["step"] for line in run.metrics] == [line["step"] for line in whole.metrics]


def test_after_going_back_the_launcher_is_told_of_no_first_step(train: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    phases, losses = [], []
    poison, beat = step.poison, Heartbeat.beat

    def infect(loss: torch.Tensor) -> torch.Tensor:
        losses.append(loss)
        return poison(loss + torch.inf if 12 < len(losses) < 16 else loss)

    def listen(self: Heartbeat, phase: str, *numbers: Any) -> None:
        phases.append(phase)
        beat(self, phase, *numbers)

    monkeypatch.setattr(step, "poison", infect)
    monkeypatch.setattr(Heartbeat, "beat", listen)
    assert train("linear", "--steps", 20, "--save-every", 10, "--nonfinite-budget", 2).exit_code == 0
    first, second = (place for place, phase in enumerate(phases) if phase == "load" and phases[place - 1] != "load")
    assert "first-step" in phases[first:second]
    assert "first-step" not in phases[second:]


def test_the_second_time_ends_the_job(job: Start) -> None:
    run = job("linear", *OPTIONS, "--save-every", 4, "--nonfinite-budget", 2, infinite=[0, list(range(9, 20)), 9])
    assert run.exit_code == 1
    assert {outcome["outcome"] for outcome in run.outcomes} == {"no-progress"}
    assert "not finite in 3 steps in a row, up to step" in run.outcomes[0]["message"]
    assert "again after a return to a snapshot" in run.outcomes[0]["message"]
    assert run.snapshots[0] == "step-00000008"


def test_without_a_snapshot_there_is_nothing_to_go_back_to(train: Start) -> None:
    run = train("linear", *OPTIONS, "--lr", 1e38, "--nonfinite-budget", 0)
    assert run.outcomes[0]["outcome"] == "no-progress"
    assert "there is no snapshot to return to; type a smaller --lr" in run.outcomes[0]["message"]
    assert run.snapshots == []


def test_a_validation_loss_that_is_not_finite_is_told(
    train: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from slipway.train.workloads import linear

    monkeypatch.setattr(linear, "sums", lambda model, batch: torch.tensor([torch.inf, 0.0, len(batch[1])]))
    assert train("linear", *OPTIONS).exit_code == 0
    assert "the validation loss is not finite at step 20; type a smaller --lr" in capfd.readouterr().err


def test_weights_that_are_not_finite_are_never_saved(train: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spoil(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        seen.append(1)
        if len(seen) == 6:
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
            return (
                torch.zeros((), requires_grad=True)
                * sum(parameter.sum() for parameter in model.parameters()).nan_to_num()
            )
        return real(model, batch)

    from slipway.train.workloads import linear

    real = linear.loss
    monkeypatch.setattr(linear, "loss", spoil)
    run = train("linear", *OPTIONS, "--save-every", 2)
    assert run.exit_code == 0
    assert run.snapshots == ["step-00000020", "step-00000018"]
    assert len(seen) == 22  # the steps 5 and 6 were taken again


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_that_is_left_out_changes_nothing_even_if_it_is_the_first(momentum: float) -> None:
    model, twin = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    optimizer, other = (torch.optim.SGD(m.parameters(), 0.1, momentum, fused=True) for m in (model, twin))
    allow_left_out_steps(optimizer)
    for bad in (True, False, True, False):
        loss = model(torch.ones(1, 3)).sum()
        poison(loss * torch.inf if bad else loss).backward()
        optimizer.found_inf = torch.tensor(float(bad))
        optimizer.step()
        optimizer.zero_grad()
        if not bad:
            twin(torch.ones(1, 3)).sum().backward()
            other.step()
            other.zero_grad()
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


def test_an_optimizer_that_cannot_leave_out_a_step_is_refused() -> None:
    with pytest.raises(TypeError, match="needs fused=True"):
        allow_left_out_steps(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1))


def test_steps_in_a_row_are_counted_and_read_one_step_late() -> None:
    numbers = StepCounts(torch.device("cpu"))
    one, inf = torch.tensor(1.0), torch.tensor(torch.inf)
    late = []
    for norm in (one, inf, inf, one, inf):
        numbers.judge(torch.tensor(2.0), norm, one)
        late.append(numbers.late())
    assert late == [0, 0, 1, 2, 0]
    assert (float(numbers.in_row), float(numbers.skipped), float(numbers.losses)) == (1, 3, 4)


def test_an_overflow_while_the_scaler_seeks_its_scale_is_left_out_but_not_counted() -> None:
    numbers, scaler = StepCounts(torch.device("cpu")), GradScaler("cpu", init_scale=4.0)
    scales = []
    for _ in range(5):
        scale = scaler.scale(torch.ones(()))
        scales.append(float(scale))
        weight = torch.nn.Parameter(torch.ones(1))
        weight.grad = torch.full((1,), torch.inf)
        optimizer = torch.optim.SGD([weight], 0.1, fused=True)
        scaler.unscale_(optimizer)
        numbers.judge(torch.tensor(2.0), weight.grad.norm(), scale)
        scaler.update()
    assert scales == [4, 2, 1, 0.5, 0.25]
    assert (float(numbers.skipped), float(numbers.in_row)) == (5, 3)


@pytest.mark.parametrize(
    ("value", "finite"), [(1.0, True), (3e38, True), (torch.inf, False), (-torch.inf, False), (torch.nan, False)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_finite_tensors_are_told_from_others(value: float, finite: bool, dtype: torch.dtype) -> None:
    tensors = [torch.ones(3, dtype=dtype), torch.tensor([1.0, value, -1.0], dtype=dtype), torch.empty(0)]
    assert are_finite(tensors) is finite
