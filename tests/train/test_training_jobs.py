"""Whole jobs on one and two processes."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from training_jobs import Job, Run, raise_stop_flag, worker_environment

from slipway.options import parse
from slipway.options.linear import LinearOptions
from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.arithmetic import Precision
from slipway.train.loop.step import take_step
from slipway.train.loop.training import begin_training, divide_batch, warn_of_room
from slipway.train.snapshots.snapshot import Snapshot, save_snapshot
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import leave_group, read_place
from slipway.train.workloads.linear import make_task

Start = Callable[..., Run]

LINEAR = ("--dataset-size", 512, "--batch-size", 32, "--epochs", 2)
GPT = (
    "--layers", 2, "--heads", 2, "--embed", 32, "--context", 32, "--batch-size", 8, "--warmup", 4,
    "--eval-samples", 33, "--sample-tokens", 4,
)  # fmt: skip


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((tensor.double() - other[name].double()).abs().max()) for name, tensor in one.items())


@pytest.mark.core
@pytest.mark.parametrize("accumulate", [1, 4])
def test_two_processes_with_half_the_batch_reach_the_weights_of_one(train: Start, job: Start, accumulate: int) -> None:
    alone = train("linear", *LINEAR)
    pair = job("linear", *LINEAR, "--accumulate", accumulate)
    assert (alone.exit_code, pair.exit_code) == (0, 0), pair.output
    assert largest_difference(alone.tensors(), pair.tensors()) < 1e-5
    assert pair.metrics[-1]["val_loss"] == pytest.approx(alone.metrics[-1]["val_loss"], abs=1e-6)
    assert pair.metrics[-2]["loss"] == pytest.approx(alone.metrics[-2]["loss"], abs=1e-5)


def test_gradients_are_exchanged_once_per_step_however_many_parts_it_has(tmp_path: Path) -> None:
    context = Context(
        read_place(worker_environment(tmp_path, "none")), torch.device("cpu"), None, Heartbeat(tmp_path / "heartbeat")
    )
    options = parse(LinearOptions, ["--accumulate", "4"])
    training = begin_training(make_task(options, context), options, context)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        training.parallel.model = averaging = DistributedDataParallel(training.parallel.judged)
        exchanges = []

        def count(_, bucket):  # type: ignore[no-untyped-def]  # torch wants these annotations unquoted or not at all
            exchanges.append(bucket)
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        averaging.register_comm_hook(None, count)
        training.loader.start(0)
        take_step(training, "train")
        assert len(exchanges) == 1
    finally:
        del training, averaging
        leave_group()


def test_a_gpt_on_two_processes_reaches_the_weights_of_one(train: Start, job: Start) -> None:
    # One validation sample: one of the two processes has nothing to evaluate.
    options = (*GPT, "--precision", "fp32", "--steps", 6, "--lr", 1e-4, "--eval-samples", 1)
    alone, pair = train("gpt", *options), job("gpt", *options, "--accumulate", 2)
    assert (alone.exit_code, pair.exit_code) == (0, 0), pair.output
    assert largest_difference(alone.tensors(), pair.tensors()) < 1e-5
    assert pair.metrics[-1]["val_loss"] == pytest.approx(alone.metrics[-1]["val_loss"], abs=1e-6)


@pytest.mark.core
@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("linear", ("--dataset-size", 512, "--steps", 60, "--log-every", 5, "--accumulate", 2)),
        ("gpt", (*GPT, "--steps", 24, "--log-every", 5, "--dropout", 0.1, "--accumulate", 2, "--precision", "fp32")),
    ],
)
def test_a_stopped_job_resumes_and_ends_bit_for_bit_like_one_that_was_not_stopped(
    start: Callable[..., Job], whole: Start, dice: random.Random, workload: str, options: tuple[object, ...]
) -> None:
    reference, held = whole(workload, *options), dice.randrange(3, 40)  # a part of a step; each has two
    stopping = start(workload, *options, hold=["part", held])
    stopping.wait_until(lambda: stopping.heartbeat().get("step") == (held - 1) // 2, f"part {held} began")
    raise_stop_flag(stopping.folders[0])
    [stopped] = stopping.end()
    assert stopped.exit_code == 0, stopped.output
    assert [outcome["outcome"] for outcome in stopped.outcomes] == ["stopped", "stopped"]
    step = stopped.outcomes[0]["step"]
    assert (held - 1) // 2 <= step <= (held - 1) // 2 + 2
    assert [outcome["snapshot"] for outcome in stopped.outcomes] == [f"step-{step:08d}"] * 2
    assert stopped.tensors()

    [resumed] = start(workload, *options, resume="auto").end()
    assert resumed.exit_code == 0, resumed.output
    assert "resuming from" in resumed.output
    assert [outcome["outcome"] for outcome in resumed.outcomes] == ["finished", "finished"]
    files = ("model", "optimizer", "ranks")
    assert largest_difference(reference.tensors(*files), resumed.tensors(*files)) == 0
    assert [line["step"] for line in resumed.metrics] == [line["step"] for line in reference.metrics]
    assert resumed.metrics[-1]["val_loss"] == reference.metrics[-1]["val_loss"]


@pytest.mark.core
def test_two_processes_go_on_where_one_stopped(train: Start, job: Start) -> None:
    whole = train("linear", *LINEAR, folder="whole")
    first = train("linear", "--dataset-size", 512, "--batch-size", 32, "--steps", 13, folder="pair")
    assert first.exit_code == 0
    resumed = job("linear", *LINEAR, folders=("pair",), resume="auto")
    assert resumed.exit_code == 0, resumed.output
    assert largest_difference(whole.tensors(), resumed.tensors()) < 1e-5


@pytest.mark.pull
def test_a_killed_process_leaves_its_peer_with_that_reason(start: Callable[..., Job]) -> None:
    job = start("linear", "--steps", 1_000_000, kill=[1, 5])
    [run] = job.end()
    assert [worker.exitcode for worker in job.workers] == [1, -signal.SIGKILL]
    assert [(outcome["outcome"], outcome["step"]) for outcome in run.outcomes] == [("peer", 5)], run.output
    assert "another process of this job went away" in run.output


@pytest.mark.pull
@pytest.mark.parametrize("word", ["stopped", "cancelled"])
def test_the_stop_flag_says_how_the_job_ends(train: Start, tmp_path: Path, word: str) -> None:
    raise_stop_flag(tmp_path / "run", word)
    run = train("linear", *LINEAR)
    assert run.exit_code == 0
    assert run.outcomes[0]["outcome"] == word
    assert run.snapshots == ["step-00000000"]


@pytest.mark.core
def test_linear_learns(train: Start) -> None:
    run = train("linear", "--epochs", 5, "--log-every", 10_000)
    assert run.metrics[-1]["accuracy"] > 0.97
    assert [line["epoch"] for line in run.metrics if "epoch" in line] == [1, 2, 3, 4, 5]


@pytest.mark.core
def test_gpt_learns_from_the_standard_library(train: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("gpt", *GPT, "--steps", 150, "--eval-every", 50, "--log-every", 50, "--lr", 0.01)
    losses = [line["val_loss"] for line in run.metrics if "val_loss" in line]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 3.2 < 5.5  # 5.55 nats per byte is what knowing nothing costs
    assert run.metrics[-1]["bits_per_byte"] == pytest.approx(losses[-1] / 0.6931472)
    printed = capsys.readouterr().out
    assert "bits per byte" in printed
    assert "def " in printed


@pytest.mark.pull
def test_the_schedule_and_the_epochs_are_written_down(train: Start) -> None:
    run = train("linear", *LINEAR, "--warmup", 10, "--schedule", "cosine", "--log-every", 1)
    rates = [line["lr"] for line in run.metrics if "lr" in line]
    assert rates[0] == pytest.approx(0.01)
    assert max(rates) == rates[9] == rates[10] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.01, rel=0.1)


@pytest.mark.pull
def test_a_finished_run_says_so_and_changes_nothing(train: Start, capsys: pytest.CaptureFixture[str]) -> None:
    train("linear", *LINEAR)
    again = train("linear", *LINEAR, resume="auto")
    assert again.outcomes[0] | {"time": 0} == {
        "outcome": "finished", "message": "was already finished at step 32", "step": 32,
        "snapshot": "step-00000032", "exception": None, "where": None, "time": 0,
    }  # fmt: skip
    assert "already finished" in capsys.readouterr().out


@pytest.mark.pull
def test_a_fresh_start_does_not_mix_with_an_older_run(train: Start, capsys: pytest.CaptureFixture[str]) -> None:
    train("linear", *LINEAR)
    again = train("linear", *LINEAR)
    assert again.outcomes[0]["outcome"] == "configuration"
    assert "--resume auto" in capsys.readouterr().err


@pytest.mark.pull
def test_another_model_than_the_snapshot_holds_is_refused(train: Start, capsys: pytest.CaptureFixture[str]) -> None:
    train("linear", *LINEAR)
    again = train("linear", *LINEAR, "--input-size", 7, resume="auto")
    assert again.outcomes[0]["outcome"] == "configuration"
    assert "input_size 20, not 7" in capsys.readouterr().err


@pytest.mark.pull
def test_a_failure_leaves_its_exception_and_place(train: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise ValueError("a line\nand another")

    monkeypatch.setattr("slipway.train.workloads.linear.make_task", break_down)
    run = train("linear")
    outcome = run.outcomes[0]
    assert run.exit_code == 1
    assert (outcome["outcome"], outcome["exception"]) == ("failed", "ValueError: a line and another")
    assert outcome["where"].startswith("test_training_jobs.py:")
    assert outcome["where"].endswith(" in break_down")


@pytest.mark.pull
@pytest.mark.parametrize("resume", ["a run", "a snapshot"])
def test_a_run_goes_on_from_another_one(train: Start, resume: str) -> None:
    first = train("linear", *LINEAR, folder="first")
    source = first.folder if resume == "a run" else first.folder / "snapshots" / first.snapshots[0]
    second = train("linear", *LINEAR, "--epochs", 3, folder="second", resume=str(source))
    whole = train("linear", *LINEAR, "--epochs", 3, folder="whole")
    assert largest_difference(second.tensors(), whole.tensors()) == 0


def test_other_data_than_before_are_mentioned(train: Start, capsys: pytest.CaptureFixture[str]) -> None:
    train("linear", *LINEAR)
    train("linear", *LINEAR, "--dataset-size", 640, resume="auto")
    assert "trained on 512 samples from seed 0 so far, and continues on 640" in capsys.readouterr().out


def test_a_snapshot_does_not_bring_back_old_settings(train: Start) -> None:
    train("linear", *LINEAR)
    decayed = train("linear", *LINEAR, "--epochs", 3, "--weight-decay", 0.5, resume="auto")
    plain = train("linear", *LINEAR, "--epochs", 3, folder="plain")
    assert largest_difference(decayed.tensors(), plain.tensors()) > 0.01


def test_a_run_goes_on_with_an_arithmetic_that_scales_its_gradients(
    train: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("linear", *LINEAR)
    monkeypatch.setattr(Precision, "scaler", lambda _: GradScaler("cpu"))
    assert train("linear", *LINEAR[:4], "--epochs", 3, resume="auto").exit_code == 0
    run = train("linear", *LINEAR[:4], "--epochs", 4, resume="auto")
    assert run.outcomes[0]["step"] == 64


@pytest.mark.pull
def test_an_older_snapshot_of_the_same_run_is_not_branched_off(
    train: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("linear", *LINEAR, "--save-every", 16)
    again = train("linear", *LINEAR, resume=str(run.folder / "snapshots" / "step-00000016"))
    assert again.outcomes[0]["outcome"] == "configuration"
    assert "Type another --run-dir" in capsys.readouterr().err


@pytest.mark.pull
def test_help_ends_well(train: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("linear", "--help")
    assert run.exit_code == 0
    assert run.outcomes[0]["outcome"] == "finished"
    assert "--dataset-size" in capsys.readouterr().out


def test_the_resolved_options_are_written_down(train: Start) -> None:
    run = train("linear", "--dataset-size", 64, "--steps", 2)
    options = json.loads((run.folder / "options.json").read_text())
    assert (options["steps"], options["batch_size"], options["sources"]["steps"]) == (2, 32, "command line")


def test_a_default_batch_is_made_divisible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = read_place({**worker_environment(tmp_path, "none"), "WORLD_SIZE": "5"})
    context = Context(place, torch.device("cpu"), None, Heartbeat(tmp_path / "heartbeat"))
    assert divide_batch(parse(LinearOptions, []), context) == 35
    assert "batch size 35 instead of 32" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="Type --batch-size 30 or 35"):
        divide_batch(parse(LinearOptions, ["--batch-size", "32"]), context)


def test_a_worker_without_launcher_says_how_to_start_it() -> None:
    with pytest.raises(SystemExit, match=r"SLIPWAY_RUN_DIR is not set.*slipway run"):
        read_place({})


def test_a_snapshot_of_a_script_with_a_loop_of_its_own_is_refused(train: Start, tmp_path: Path) -> None:
    save_snapshot(tmp_path / "own" / "snapshots", Snapshot(3, {"lr": 1}, {"model": {"weight": torch.zeros(1)}}), keep=1)
    run = train("linear", "--steps", 4, resume=str(tmp_path / "own"))
    assert run.outcomes[0]["outcome"] == "configuration"
    assert "is of a script with a loop of its own, but this job runs linear" in run.outcomes[0]["message"]


@pytest.mark.parametrize(("size", "warned"), [(8, True), (32, False)])
def test_a_batch_of_more_samples_than_there_are_is_warned_of(
    train: Start, capfd: pytest.CaptureFixture[str], size: int, warned: bool
) -> None:
    run = train("linear", "--dataset-size", size, "--batch-size", 32, "--steps", 2)
    assert run.exit_code == 0
    said = run.output + "".join(capfd.readouterr())
    text = "warning: --batch-size 32 is more than the data (8 samples)"
    assert (text in said, "type --batch-size 8" in said) == (warned, warned)


@pytest.mark.parametrize(("width", "warned"), [(10**8, True), (8, False)])
def test_a_disk_without_room_for_the_weights_is_named_before_the_training(
    tmp_path: Path, width: int, warned: bool
) -> None:
    said: list[str] = []
    warn_of_room(torch.nn.Linear(width, width, device="meta"), tmp_path, said.append)
    assert [f"MB are free at {tmp_path}, and the weights in a snapshot alone take 40," in line for line in said] == (
        [True] if warned else []
    )
