"""What TensorBoard's own reader finds in a run, and that training needs none of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_jobs import Run

from slipway.protocol.files import append_to_run_file
from slipway.train.observe.sinks import Charts, new_file, tag

Start = Callable[..., Run]
GPT = (
    "--layers", 1, "--heads", 1, "--embed", 16, "--context", 16, "--batch-size", 4, "--warmup", 0, "--lr", 1e-3,
    "--eval-samples", 9, "--log-every", 5,
)  # fmt: skip


def read(folder: Path) -> EventAccumulator:
    """All points, as TensorBoard reads them."""
    charts = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    charts.Reload()
    return charts


def points(charts: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in charts.Scalars(name)]


def logged(run: Run, name: str) -> list[tuple[int, float]]:
    lines = [(int(line["step"]), line[name]) for line in run.metrics if name in line]
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in lines]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", "train/loss"),
        ("lr", "train/lr"),
        ("grad_norm", "train/grad_norm"),
        ("tokens_per_second", "throughput/tokens_per_second"),
        ("memory_peak_gib", "memory/peak_gib"),
        ("val_loss", "val/loss"),
        ("accuracy", "val/accuracy"),
        ("bits_per_byte", "val/bits_per_byte"),
    ],
)
def test_charts_have_the_names_that_people_expect(name: str, expected: str) -> None:
    assert tag(name) == expected


def test_a_run_shows_every_metric_of_the_json_lines_and_the_text_it_writes(train: Start) -> None:
    run = train("gpt", *GPT, "--steps", 20, "--eval-every", 10, "--sample-tokens", 12)
    charts = read(run.folder / "tensorboard")
    names = {name for line in run.metrics for name in line} - {"time", "step"}
    assert {"loss", "lr", "grad_norm", "tokens_per_second", "memory_peak_gib", "val_loss", "bits_per_byte"} <= names
    assert set(charts.Tags()["scalars"]) == set(map(tag, names))
    assert charts.Tags()["tensors"] == ["sample"]
    for name in names:
        assert points(charts, tag(name)) == logged(run, name)
    assert [step for step, _ in points(charts, "train/loss")] == [5, 10, 15, 20]
    samples = charts.Tensors("sample")
    assert [event.step for event in samples] == [10, 20]
    assert samples[1].tensor_proto.string_val[0].decode().startswith("    def ")


def test_accuracy_is_shown_where_the_task_has_one(train: Start) -> None:
    run = train("linear", "--dataset-size", 128, "--steps", 8)
    assert points(read(run.folder / "tensorboard"), "val/accuracy") == logged(run, "accuracy")


@pytest.mark.pull
def test_only_rank_0_writes_charts(job: Start) -> None:
    run = job("linear", "--dataset-size", 128, "--steps", 8)
    assert run.exit_code == 0, run.output
    assert len(list((run.folder / "tensorboard").iterdir())) == 1


def test_a_resumed_run_goes_on_in_the_same_charts_without_double_points(train: Start) -> None:
    options = ("--dataset-size", 128, "--log-every", 4)
    folder = train("linear", *options, "--steps", 40).folder / "tensorboard"
    killed = Charts(folder, 40)  # a start that came as far as step 54 without a snapshot, and half a point more
    for step in (44, 48, 52, 54):
        killed.write(step, {"loss": 9.0})
    killed.close()
    with max(folder.iterdir()).open("ab") as file:
        file.write(b"\x18\0\0\0torn")
    run = train("linear", *options, "--steps", 60, resume="auto")
    found = points(read(folder), "train/loss")
    assert found == logged(run, "loss")
    assert [step for step, _ in found] == list(range(4, 61, 4))


def test_event_files_sort_by_their_start_whatever_the_clock_says(tmp_path: Path) -> None:
    ahead = tmp_path / "events.out.tfevents.9999999000.host.1"
    ahead.touch()
    assert new_file(tmp_path).name > ahead.name
    first = new_file(tmp_path / "none")
    assert "events.out.tfevents.1000000000" < first.name < ahead.name


def test_without_tensorboard_the_training_goes_on_with_one_warning(
    train: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    run = train("linear", "--dataset-size", 128, "--steps", 8, "--log-every", 1)
    assert run.exit_code == 0
    assert run.outcomes[0]["outcome"] == "finished"
    assert len(run.metrics) == 9
    assert capsys.readouterr().err.count("no more metrics for TensorBoard") == 1


def test_a_full_disk_ends_the_charts_with_one_warning_and_not_the_training(
    train: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_file(file: Path) -> int:
        return os.open("/dev/full", os.O_WRONLY) if "tfevents" in file.name else append_to_run_file(file)

    monkeypatch.setattr("slipway.train.observe.sinks.append_to_run_file", open_file)
    run = train("linear", "--dataset-size", 128, "--steps", 8, "--log-every", 1)
    assert run.exit_code == 0
    assert len(run.metrics) == 9
    (warning,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in warning


def test_the_gradient_norm_is_that_before_clipping(train: Start) -> None:
    options = ("--dataset-size", 128, "--steps", 1, "--log-every", 1)
    free, clipped = train("linear", *options), train("linear", *options, "--clip", 1e-3, folder="clipped")
    assert clipped.metrics[0]["grad_norm"] == free.metrics[0]["grad_norm"] > 1e-3
    assert not free.tensors()["model/layer.weight"].equal(clipped.tensors()["model/layer.weight"])
