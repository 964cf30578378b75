"""Micro-batches of users' own loops are replayed: the training does not notice it, and a rank that computes wrongly is named."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import faulty_worker
import pytest
import torch
import torch.distributed as dist
from own_replays import FORMS
from own_runs import assert_equal, results
from replay_trials import Exchange, ThreadContext
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training_jobs import Job
from training_jobs import Run as Ended

import slipway
from slipway.protocol.mistake import ConfigurationError
from slipway.train.observe.micro_batches import ReplayError
from slipway.train.observe.replay import Replays, WrongArithmetic, WrongArithmeticError
from slipway.train.user import replaying
from slipway.train.user.replaying import UserReplays, compute_apart

Work = Callable[[nn.Module, torch.Tensor], Any]


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    return loss


def two_backwards(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad(set_to_none=False)
    losses(model, x).backward()
    losses(model, x).backward()


def retained(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = losses(model, x)
    loss.backward(retain_graph=True)
    torch.autograd.backward([loss])
    return loss


@pytest.fixture
def parallel() -> Iterator[DistributedDataParallel]:
    """A model in a process group of this process, in training, with a gradient that is pending."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(3)
    yield DistributedDataParallel(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
    dist.destroy_process_group()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("work", "times"), [(losses, 1), (two_backwards, 2), (retained, 2)])
def test_gradients_are_those_of_a_backward_and_the_pending_ones_stay(
    work: Work, times: int, compiled: bool, parallel: DistributedDataParallel
) -> None:
    x = torch.randn(5, 3)
    losses(parallel, x).backward()
    parameters = list(parallel.parameters())
    pending = [(parameter.grad, parameter.grad.clone()) for parameter in parameters if parameter.grad is not None]
    model = torch.compile(parallel, backend=lambda graph, inputs: pytest.fail("compiled")) if compiled else parallel
    loss, gradients = compute_apart(lambda x: work(model, x), (x,), parameters)
    assert torch.equal(loss, losses(parallel.module, x).detach().expand(times))
    for parameter, gradient, (same, value) in zip(parameters, gradients, pending, strict=True):
        assert torch.equal(gradient, times * value)
        assert parameter.grad is same
        assert torch.equal(same, value)
    assert losses(parallel, x).requires_grad, "DistributedDataParallel and torch.autograd are as before"
    torch.autograd.backward([losses(parallel, x)])
    assert torch.equal(parameters[0].grad, 2 * pending[0][1])


def steps(model: nn.Module, x: torch.Tensor) -> None:
    losses(model, x).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def unscales(model: nn.Module, x: torch.Tensor) -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=1.0)
    scaler.scale(losses(model, x)).backward()
    scaler.unscale_(optimizer)


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (unscales, r"calls unscale_\(\) of a GradScaler; let it end after the backward"),
        (steps, r"calls optimizer.step\(\); let it end after the backward"),
        (lambda model, x: losses(model, x).item(), "returns no loss and calls no backward"),
        (lambda model, x: None, "returns no loss and calls no backward"),
    ],
)
def test_a_function_that_is_no_forward_and_backward_is_refused_and_changes_nothing(
    work: Work, reason: str, parallel: DistributedDataParallel
) -> None:
    before = [parameter.detach().clone() for parameter in parallel.parameters()]
    with pytest.raises(ReplayError, match=reason):
        compute_apart(lambda x: work(parallel, x), (torch.randn(5, 3),), list(parallel.parameters()))
    assert all(map(torch.equal, before, parallel.parameters()))
    assert all(parameter.grad is None for parameter in parallel.parameters())


@pytest.mark.parametrize(
    ("named", "every", "message"),
    [
        ({"model": nn.Linear(1, 1)}, "often", r"run.replay\(every='often'\): type a number of steps, 0 for never, or 'auto'"),
        ({"model": nn.Linear(1, 1)}, -1, r"run.replay\(every=-1\): type"),
        ({"model": nn.Linear(1, 1)}, 2.5, r"run.replay\(every=2.5\): type"),
    ],
)  # fmt: skip
def test_a_call_that_makes_no_sense_ends_with_what_to_type(
    named: dict[str, nn.Module], every: Any, message: str, own_run: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = slipway.resume(**named)
    with pytest.raises(SystemExit) as end:
        run.replay(losses, torch.ones(1, 1), every=every)
    assert end.value.code == 78
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("more", [{"model": nn.Linear(1, 1)}, {}, {"snapshots": False}])
def test_a_single_process_replays_nothing(more: dict[str, Any], own_run: None) -> None:
    run = slipway.resume(**more)
    run.replay(pytest.fail, torch.ones(1, 1), every=1)


@pytest.mark.parametrize(
    ("keeps", "message"),
    [
        (True, r"run.replay needs the model: pass it to slipway.resume\(model=…\)"),
        (False, r"run.replay needs snapshots, .* Pass the model to slipway.resume\(model=…\) instead"),
    ],
)
def test_without_a_model_several_processes_are_told_what_to_type_unless_nothing_is_to_be_replayed(
    keeps: bool, message: str
) -> None:
    def check(every: int) -> None:
        objects = SimpleNamespace(named_of_kind=lambda kind: {})
        own = UserReplays(ThreadContext(Exchange(1), 0, 1), objects, keeps)  # type: ignore[arg-type]
        own.check(1, losses, (torch.ones(1, 1),), every, Disk())  # type: ignore[arg-type]

    check(every=0)
    with pytest.raises(ConfigurationError, match=message):
        check(every=1)


@pytest.fixture
def memory() -> Iterator[tuple[str, ...]]:
    """The files that a launcher holds for a node of three processes."""
    held = [os.memfd_create(f"test-{number}") for number in range(6)]
    yield (" ".join(f"/proc/{os.getpid()}/fd/{file}" for file in held),)
    for file in held:
        os.close(file)


def run_job(
    folder: Path, *args: object, resume: str = "none", processes: int = 3, memory: tuple[str, ...] = ()
) -> Ended:
    """A loop of own_replays on several processes, to its end."""
    job = Job([folder], memory)
    job.start("own_replays", (args[0], folder / "found", *args[1:]), processes, resume, work=faulty_worker.run_program)
    return job.end()[0]


@pytest.mark.parametrize("form", FORMS)
def test_with_and_without_replays_a_loop_ends_alike(form: str, server: None, tmp_path: Path) -> None:
    whole, run = (run_job(tmp_path / f"every-{every}", form, every, processes=2) for every in (0, 1))
    assert (whole.exit_code, run.exit_code) == (0, 0), whole.output + run.output
    assert "replay" not in run.output
    for rank in range(2):
        assert_equal(results(run.folder / "found", rank), results(whole.folder / "found", rank))


@pytest.mark.pull
def test_a_rank_that_computes_wrongly_ends_the_attempt_and_the_next_one_resumes_from_before(
    server: None, tmp_path: Path, memory: tuple[str, ...]
) -> None:
    whole = run_job(tmp_path / "whole", "plain", 0)
    run = run_job(tmp_path / "run", "plain", 4, 1, 12, 1, memory=memory)
    assert run.exit_code == 1
    assert {outcome["outcome"] for outcome in run.outcomes} == {"failed"}
    said = "rank 1 computed wrongly: a micro-batch of rank 0 differs, first in the gradient of first.0.weight"
    assert run.outcomes[0]["message"] == said
    assert f"{said}; the next attempt starts from a snapshot of step 8 or before, when all ranks agreed" in run.output
    assert "Traceback" not in run.output
    assert run.snapshots == ["step-00000005"]
    assert (run.folder / "snapshots" / "suspect-step-00000010").is_dir()
    [row] = json.loads((run.folder / "replicas.json").read_text())["differences"]
    assert (row["kind"], row["step"], row["nodes"][0][:8]) == ("arithmetic", 12, "node 0 (")
    again = run_job(tmp_path / "run", "plain", 4, resume="auto", memory=memory)
    assert again.exit_code == 0, again.output
    assert "step-00000005" in again.output
    for rank in range(3):
        assert_equal(results(run.folder / "found", rank), results(whole.folder / "found", rank))


def test_the_second_time_within_a_day_the_node_is_unhealthy(server: None, tmp_path: Path) -> None:
    first = run_job(tmp_path, "plain", 4, 1, 12, 99)
    assert first.exit_code == 1, first.output
    second = run_job(tmp_path, "plain", 4, 1, 0, 99, resume="auto")  # known to have agreed, it is named at once
    assert {outcome["outcome"] for outcome in second.outcomes} == {"unhealthy"}, second.output
    assert "for the second time within a day on node 0 (" in second.outcomes[0]["message"]


def test_before_all_ranks_have_agreed_once_nobody_is_named(server: None, tmp_path: Path) -> None:
    run = run_job(tmp_path, "plain", 4, 1, 0, 99)
    assert run.exit_code == 0, run.output
    assert (
        run.output.count(
            "warning: replays are turned off: results differ between ranks, or between two passes on one rank"
        )
        == 1
    )
    assert "if the computation depends on the rank" in run.output
    assert not (tmp_path / "replicas.json").exists()


class Disk:
    """Stands for the snapshots of a job, of these steps. `after`: the step after which they were set aside."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.after = steps, -1
        self.memory = SimpleNamespace(forget=lambda: None)

    def wait(self, step: int) -> None:
        """None is being written."""

    def has(self, until: int) -> bool:
        return any(step <= until for step in self.steps)

    def set_aside(self, after: int) -> None:
        self.after = after


@pytest.mark.parametrize(
    ("state", "after", "start"),
    [
        ({}, 10, "from a snapshot of step 10 or before, where the replays began"),
        ({"clean": 8, "agreed": True}, 8, "from a snapshot of step 8 or before, when all ranks agreed"),
        (
            {"clean": 0, "agreed": False},
            0,
            "where this run began. If the job does not restart by itself, type the same command with --resume auto",
        ),
    ],
)
def test_a_loop_returns_at_most_to_where_its_replays_began(
    state: dict[str, Any], after: int, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(replays: Replays, step: int) -> NoReturn:
        difference = WrongArithmetic((0,), 0, "", "sum in fp32")
        raise WrongArithmeticError(str(difference), difference, proven=True)

    monkeypatch.setattr(Replays, "check", find)
    monkeypatch.setattr(replaying, "was_found", lambda context: False)
    monkeypatch.setattr(replaying, "record_finding", lambda context, error: None)
    context, disk = ThreadContext(Exchange(1), 0, 1), Disk(5, 10)
    objects = SimpleNamespace(named_of_kind=lambda kind: {"model": nn.Linear(1, 1)})
    own = UserReplays(context, objects, keeps=True)  # type: ignore[arg-type]
    own.resume(10, {"loop": "own", **state})
    assert own.state() == state
    with pytest.raises(WrongArithmeticError):
        own.check(12, losses, (torch.ones(1, 1),), 1, disk)  # type: ignore[arg-type]
    assert disk.after == after
    assert own.state() == {"clean": after, "agreed": bool(state.get("agreed"))}
    assert [line.partition("; ")[2] for line in context.said] == [f"the next attempt starts {start}"]
