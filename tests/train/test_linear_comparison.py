"""`linear --compare`: the same training with and without DDP, and what is said about both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from training_jobs import Job, Run, raise_stop_flag

from slipway.options import parse
from slipway.options.linear import LinearOptions
from slipway.protocol.mistake import ConfigurationError
from slipway.train.measure.plots import aligned, comparison_rows
from slipway.train.workloads import comparison
from slipway.train.workloads.comparison import Comparison, explanation

Start = Callable[..., Run]
SMALL = ("--dataset-size", 512, "--epochs", 2, "--compare")


def record(run: Run) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((run.folder / "comparison.json").read_text())
    return made


@pytest.mark.core
@pytest.mark.parametrize(
    ("processes", "args"),
    [
        (1, ("--batch-size", 32)),
        (2, ("--batch-size", 32)),
        (2, ("--batch-size-per-process", 8, "--accumulate", 4)),
        (3, ("--schedule", "cosine", "--clip", 0.5)),  # and a batch size that is made divisible
    ],
)
def test_with_and_without_ddp_the_weights_are_the_same(job: Start, processes: int, args: tuple[object, ...]) -> None:
    run = job("linear", *SMALL, *args, processes=processes)
    assert run.exit_code == 0, run.output
    made, weights = record(run), run.tensors()
    assert (made["processes"], made["equal"]) == (processes, True)
    assert made["steps"] == run.metrics[-1]["step"]
    assert [value for _, value, _ in made["weights"]] == pytest.approx(
        [*weights["model/layer.weight"][0, :8].tolist(), *weights["model/layer.bias"].tolist()], abs=0
    )
    assert made["others"][0] == 12
    assert all(seconds > 0.0 for seconds in made["seconds"])
    alone = json.loads((run.folder / "without-ddp" / "options.json").read_text())
    assert (alone["batch_size"], alone["accumulate"]) == (json_batch(run), 1)
    assert "layer.weight[7]" in run.output
    assert "… and 12 more" in run.output


def json_batch(run: Run) -> int:
    return int(json.loads((run.folder / "options.json").read_text())["batch_size"])


def test_a_run_that_goes_on_has_nothing_to_compare_but_tells_what_was_found(
    train: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    train("linear", *SMALL)
    found = capsys.readouterr().out
    again = train("linear", *SMALL, "--epochs", 3, resume="auto")
    said = capsys.readouterr().out
    assert again.exit_code == 0
    assert "both trainings are the same" in found
    assert "nothing to compare" in said
    assert "the largest difference was 0.0e+00 (comparison.json)" in said
    assert "without DDP" not in said


def test_a_difference_fails_the_job_and_is_not_forgotten_when_it_is_started_again(
    train: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "TOLERANCE", -1.0)
    first = train("linear", *SMALL)
    outcome = first.outcomes[0]
    assert (first.exit_code, outcome["outcome"]) == (1, "failed")
    assert "the weights with and without DDP differ by 0.0e+00, and rounding explains" in outcome["message"]
    assert record(first)["equal"] is False
    monkeypatch.undo()
    again = train("linear", *SMALL, resume="auto")
    assert (again.exit_code, again.outcomes[0]["outcome"]) == (1, "failed")


def test_training_that_differs_is_noticed(train: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    real = comparison.divide_batch
    monkeypatch.setattr(comparison, "divide_batch", lambda *given: real(*given) // 2)
    run = train("linear", *SMALL)
    assert (run.exit_code, record(run)["equal"]) == (1, False)
    assert record(run)["difference"] > 1e-3


def test_a_stop_while_comparing_leaves_the_training_finished(start: Callable[..., Job], tmp_path: Path) -> None:
    args = ("--dataset-size", 512, "--compare", "--steps", 60, "--log-every", 1)
    job = start("linear", *args, hold=["part", 66, 0])  # the sixth without DDP
    file = tmp_path / "job" / "without-ddp" / "metrics.jsonl"
    job.wait_until(file.exists, "it trained without DDP")
    raise_stop_flag(tmp_path / "job")
    run = job.end()[0]
    assert run.exit_code == 0, run.output
    assert run.outcomes[0]["outcome"] == "stopped"
    assert "stopped while comparing; the training itself is finished and saved" in run.outcomes[0]["message"]
    assert (run.outcomes[0]["step"], run.snapshots[0]) == (60, "step-00000060")
    assert not (run.folder / "comparison.json").exists()


def test_the_table_says_what_was_found() -> None:
    weights = (("layer.weight[0]", 0.5, 0.25), ("layer.bias[0]", -1.0, -1.0))
    made = Comparison(2, 1280, (0.5, 0.125), weights, (0, 0.0), 1.0, 0.25)
    head, rows = comparison_rows(asdict(made))
    assert aligned([head, *rows]) == [
        "weight                   2 processes, DDP  1 process, no DDP  difference",
        "layer.weight[0]                0.50000000         0.25000000     2.5e-01",
        "layer.bias[0]                 -1.00000000        -1.00000000     0.0e+00",
        "largest difference                                               2.5e-01",
        "seconds for 1,280 steps              0.50               0.12",
    ]
    assert not made.equal
    assert explanation(made) == ["The weights differ by more than the 1.0e-05 that rounding explains."]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--compare", "--precision", "bf16"], "Type --precision fp32"),
        (["--compare", "--comm", "bf16"], "Type --comm full"),
        (["--world-size", "3"], r"type --nproc-per-node 3 .* --nnodes N"),
        (["--launcher", "mpirun"], "'torchrun', 'spawn'"),
        (["--launcher", "spawn", "--world-size", "0"], "from 1 to 1024"),
    ],
)
def test_what_makes_no_sense_is_refused(args: list[str], message: str) -> None:
    with pytest.raises((click.UsageError, ConfigurationError)) as caught:
        parse(LinearOptions, args)
    assert re.search(message, str(caught.value))


def test_the_weights_of_large_layers_are_summed_up(train: Start) -> None:
    made = record(train("linear", "--input-size", 1000, "--dataset-size", 64, "--steps", 1, "--compare"))
    assert len(made["weights"]) == 9
    assert made["others"] == [992, 0.0]
    assert torch.isfinite(torch.tensor(made["largest"]))
