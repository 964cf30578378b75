"""A model split into stages trains as the undivided one does, and its snapshots do not remember where it was cut."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.amp.grad_scaler import GradScaler
from training_jobs import Job, Run, raise_stop_flag, worker_environment

from slipway.options import parse
from slipway.options.linear import LinearOptions
from slipway.protocol.snapshots import list_snapshots
from slipway.train.loop.arithmetic import Precision
from slipway.train.loop.step import take_step
from slipway.train.loop.training import begin_training
from slipway.train.models.gpt import Gpt
from slipway.train.snapshots.snapshot import load_snapshot
from slipway.train.text.language import described_config, sample
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import read_place
from slipway.train.workloads.linear import make_task

Start = Callable[..., Run]
# Four blocks; as many validation samples as nothing divides.
MODEL = ("--layers", 4, "--heads", 2, "--embed", 16, "--context", 16, "--eval-samples", 37, "--sample-tokens", 8)
STEPS = ("--batch-size", 16, "--accumulate", 4, "--lr", 0.01, "--warmup", 2, "--precision", "fp32", "--log-every", 1)
SMALL = (*MODEL, *STEPS, "--steps", 6)


def assert_close(one: Run, other: Run, *stems: str) -> None:
    """The same snapshot but for the order in which sums are taken."""
    expected, found = one.tensors(*stems), other.tensors(*stems)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        pair = found[name], tensor
        if "c_attn.bias" in name and tensor.dim():
            # Without the keys': what is added to all keys changes no attention, so their gradient is 0 but for rounding, and
            # Adam makes steps of that.
            pair = tuple(torch.cat([queries, values]) for queries, _, values in (part.chunk(3) for part in pair))
        torch.testing.assert_close(*pair, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: name + text)


def assert_equal(one: Run, other: Run) -> None:
    """The same snapshot to the last bit."""
    expected, found = (run.tensors("model", "optimizer", "ranks") for run in (one, other))
    assert expected.keys() == found.keys()
    assert not [name for name, tensor in expected.items() if not tensor.equal(found[name])]


def curve(run: Run, *names: str) -> list[float]:
    """These metrics at all steps."""
    return [line[name] for name in names for line in run.metrics if name in line]


@pytest.mark.parametrize(
    ("schedule", "stages", "processes"), [("gpipe", 2, 2), ("1f1b", 2, 4), ("gpipe", 2, 4), ("1f1b", 3, 3)]
)
def test_stages_train_as_the_undivided_model_does(
    train: Start, job: Start, schedule: str, stages: int, processes: int
) -> None:
    more = ("--clip", 0.5, "--dataset", "stdlib")
    whole = train("gpt", *SMALL, *more)
    split = job("pipeline", *SMALL, *more, "--stages", stages, "--pipeline-schedule", schedule, processes=processes)
    assert (whole.exit_code, split.exit_code) == (0, 0), split.output
    assert_close(whole, split, "model", "optimizer")
    for name in ("grad_norm", "val_loss", "bits_per_byte"):
        assert curve(split, name) == pytest.approx(curve(whole, name), rel=1e-4), name
    if processes == stages:  # else each line is the mean over the pipelines' parts
        assert curve(split, "loss") == pytest.approx(curve(whole, "loss"), rel=1e-5)


@pytest.mark.core
def test_a_snapshot_is_one_model(job: Start) -> None:
    run = job("pipeline", *SMALL, "--stages", 3, processes=3)
    assert run.exit_code == 0, run.output
    newest = list_snapshots(run.folder / "snapshots")[0]
    parts = {path.name for path in newest.glob("model*")}
    assert parts == {f"model-{number}-of-3.safetensors" for number in (1, 2, 3)}
    snapshot = load_snapshot(newest)
    model = Gpt(described_config(snapshot.state["model"]))
    model.load_state_dict(snapshot.tensors["model"])  # none is missing, none too many
    wanted = {f"{name}.{entry}" for name, _ in model.named_parameters() for entry in ("exp_avg", "exp_avg_sq", "step")}
    assert set(snapshot.tensors["optimizer"]) == wanted
    assert sample(run.folder, "def ", 8, 0.6, 0) in run.output


@pytest.mark.pull
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stopped_job_goes_on_to_the_same_bits(job: Start, start: Callable[..., Job], schedule: str) -> None:
    options = (*SMALL, "--steps", 24, "--dropout", 0.1, "--pipeline-schedule", schedule)
    whole = job("pipeline", *options, processes=4, folders=("whole",))
    begun = start("pipeline", *options, processes=4, hold=["step", 3])
    begun.wait_for("train", 2)
    raise_stop_flag(begun.folders[0])
    stopped = begun.end()[0]
    assert {(line["outcome"], line["step"] < 24) for line in stopped.outcomes} == {("stopped", True)}, stopped.output
    resumed = job("pipeline", *options, processes=4, resume="auto")
    assert resumed.exit_code == 0, resumed.output
    assert_equal(whole, resumed)
    assert curve(whole, "loss", "val_loss") == curve(resumed, "loss", "val_loss")


def test_a_snapshot_loads_at_another_split(job: Start, tmp_path: Path) -> None:
    options = (*SMALL, "--save-every", 3)
    whole = job("pipeline", *options, folders=("whole",))
    assert job("pipeline", *options, kill=[1, 4]).exit_code != 0
    for stages, processes in ((1, 2), (4, 4), (2, 4)):
        folder = f"{stages}-stages-{processes}"
        shutil.copytree(tmp_path / "job", tmp_path / folder)
        run = job("pipeline", *options, "--stages", stages, processes=processes, folders=(folder,), resume="auto")
        assert run.exit_code == 0, run.output
        assert "resuming from" in run.output
        assert run.snapshots == ["step-00000006", "step-00000003"]
        assert_close(whole, run, "model", "optimizer")


@pytest.mark.parametrize("processes", [2, 4])
def test_every_node_keeps_all_stages(start: Callable[..., Job], processes: int) -> None:
    one, two = start("pipeline", *SMALL, processes=processes, folders=("one", "two")).end()
    assert one.exit_code == 0, one.output
    assert_equal(one, two)
    shutil.rmtree(one.folder)
    back = start("pipeline", *SMALL, "--steps", 8, processes=processes, folders=("one", "two"), resume="auto").end()
    assert all("two/snapshots/step-00000006" in run.output for run in back)
    assert_equal(*back)


def test_all_stages_leave_out_a_step_that_is_not_finite(job: Start) -> None:
    options = (*SMALL, "--clip", 1.0)
    whole = job("gpt", *options, processes=1, folders=("whole",), infinite=[0, [3], 1])
    split = job("pipeline", *options, infinite=[1, [3], 1])  # only the last stage has a loss
    assert (whole.exit_code, split.exit_code) == (0, 0), split.output
    assert [line.get("skipped", 0) for line in split.metrics if "lr" in line] == [0, 0, 0, 1, 0, 0]
    assert_close(whole, split, "model", "optimizer")


def test_one_pipeline_of_several_makes_all_leave_out_the_step(job: Start) -> None:
    run = job("pipeline", *SMALL, processes=4, infinite=[3, [3, 4, 5], 9], folders=("run",))
    assert run.exit_code == 0, run.output
    assert sum(curve(run, "skipped")) == 3
    again = job(
        "pipeline", *SMALL, "--nonfinite-budget", 1, processes=4, infinite=[3, [2, 3, 4], 9], folders=("again",)
    )
    assert {line["outcome"] for line in again.outcomes} == {"no-progress"}, again.output


def test_less_precise_arithmetic_and_exchange_stay_near(train: Start, job: Start) -> None:
    whole = train("gpt", *SMALL)
    split = job("pipeline", *SMALL, "--precision", "bf16", "--comm", "bf16", "--checkpoint-activations", processes=4)
    assert split.exit_code == 0, split.output
    # Of the first step alone can be said how near: after it Adam has turned gradients that are nearly 0 into whole steps, one
    # way or the other. Each product is rounded by eps / 2 at most as a share; there are four in each of four blocks and one
    # behind them, forward and twice that back, and the exchange rounds twice.
    rounding = torch.finfo(torch.bfloat16).eps / 2
    first, exact = (curve(run, "grad_norm")[0] for run in (split, whole))
    assert 0 < abs(first - exact) < (3 * 17 + 2) * rounding * exact
    # The loss moves by no more than twice what the logits do, and those are below a half before anything is learnt.
    first, exact = (curve(run, "loss")[0] for run in (split, whole))
    assert 0 < abs(first - exact) < 17 * rounding
    assert curve(split, "val_loss")[-1] < math.log(256)


def test_a_stage_whose_own_gradient_is_finite_scales_down_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Precision, "scaler", lambda _: GradScaler("cpu", init_scale=8.0))
    place = read_place(worker_environment(tmp_path, "none"))
    context = Context(place, torch.device("cpu"), None, Heartbeat(tmp_path / "heartbeat"))
    options = parse(LinearOptions, [])
    training = begin_training(make_task(options, context), options, context)
    weights = [parameter.clone() for parameter in training.task.model.parameters()]
    monkeypatch.setattr(training.parallel, "agree", lambda loss, _: (loss, torch.tensor(torch.inf)))  # elsewhere
    training.loader.start(0)
    take_step(training, "train")
    assert training.scaler.get_scale() == 4.0
    assert all(map(torch.equal, weights, training.task.model.parameters()))
