"""Where an export goes, from which snapshot it comes, and what is in its way."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from training_jobs import Run

from slipway.options import parse
from slipway.options.gpt import GptOptions
from slipway.options.target import require_target
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.snapshots import list_snapshots
from slipway.train.export import export_result, export_run, read_export
from slipway.train.loop.fit import TrainingResult
from slipway.train.snapshots.snapshot import Snapshot, SnapshotError, save_snapshot
from slipway.train.worker.context import outside_job

Start = Callable[..., Run]

GPT = (
    "--layers", 1, "--heads", 2, "--embed", 16, "--context", 16, "--batch-size", 8, "--warmup", 4, "--save-every", 2,
    "--eval-samples", 33, "--sample-tokens", 4, "--precision", "fp32",
)  # fmt: skip


@pytest.fixture
def run(train: Start) -> Path:
    """A run of a tiny GPT on bytes, with snapshots at steps 2 and 4."""
    done = train("gpt", *GPT, "--steps", 4)
    assert done.exit_code == 0
    return done.folder


def test_the_newest_snapshot_that_verifies_is_exported_or_the_one_asked_for(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_run(run, tmp_path / "second", step=2)
    newest = list_snapshots(run / "snapshots")[0]
    assert newest.name == "step-00000004"
    (newest / "model.safetensors").write_bytes(b"damaged")
    export_run(run, tmp_path / "newest")
    assert "skipping the damaged snapshot step-00000004" in capsys.readouterr().err
    assert [read_export(tmp_path / name).step for name in ("second", "newest")] == [2, 2]
    with pytest.raises(SnapshotError, match=r"model\.safetensors"):
        export_run(run, tmp_path / "third", step=4)
    with pytest.raises(ConfigurationError, match=r"no snapshot of step 3; it holds step-00000002, step-00000004"):
        export_run(run, tmp_path / "third", step=3)
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.safetensors", b"half", "is damaged .*; export its run again"),
        ("model.safetensors", None, "is damaged .*; export its run again"),
        ("slipway.json", b'{"format": 1, "snapshot": "1", "workload": "gpt"}', "is damaged"),
        ("slipway.json", b'{"format": 2, "snapshot": "1", "version": "9.1"}', "was written by slipway 9.1; this is"),
        ("slipway.json", b"[]", "neither a run directory nor an export"),
    ],
)
def test_a_damaged_export_is_told(run: Path, tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    export_run(run, tmp_path / "model")
    if content is None:
        (tmp_path / "model" / name).unlink()
    else:
        (tmp_path / "model" / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=says):
        read_export(tmp_path / "model")


def test_an_export_is_there_as_a_whole_or_not_at_all(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slipway.train.export.folder.write_card", fail)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="No space"):
        export_run(run, tmp_path / "model")
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture
def taken(run: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder with something of the user's."""
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    assert (folder / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("taken", "taken is not empty, and nothing in it is overwritten"),
        ("taken/thesis.txt", "is a file; type the name of a new folder"),
        ("/proc", "/proc is a mount point.*Type a folder in it: /proc/model"),
        ("older", "holds step 2 of run already"),
    ],
)
def test_nothing_in_the_way_is_overwritten(run: Path, taken: Path, tmp_path: Path, name: str, says: str) -> None:
    export_run(run, tmp_path / "older", step=2)
    with pytest.raises(ConfigurationError, match=says):
        export_run(run, tmp_path / name)


def test_a_link_in_the_place_of_the_folder_is_refused_before_training(tmp_path: Path) -> None:
    """It could not be replaced by the new folder at the end."""
    (tmp_path / "empty").mkdir()
    for target in ("empty", "missing"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(tmp_path / target)
        with pytest.raises(ConfigurationError, match="is a link"):
            require_target(link)


def test_an_empty_folder_is_taken_and_an_export_that_is_there_already_is_left(run: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert export_run(run, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("a better card")
    assert not export_run(run, tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text() == "a better card"


def test_a_training_exports_at_its_end_and_keeps_an_earlier_export_beside_it(train: Start, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    assert train("gpt", *GPT, "--steps", 2, "--export", folder).exit_code == 0
    first = folder.stat()
    again = train("gpt", *GPT, "--steps", 2, "--export", folder, resume="auto")  # finished, exported, and started again
    assert (again.exit_code, folder.stat().st_ino) == (0, first.st_ino)
    assert train("gpt", *GPT, "--steps", 4, "--export", folder, resume="auto").exit_code == 0
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model", "model.step-00000002"]
    assert [read_export(path).step for path in (folder, folder.with_name("model.step-00000002"))] == [4, 2]


def test_two_processes_export_once(job: Start, tmp_path: Path) -> None:
    ended = job("gpt", *GPT, "--steps", 2, "--export", tmp_path / "model")
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("exported to") == 1
    trained = read_export(tmp_path / "model")
    assert (trained.nodes, trained.processes_per_node) == (1, 2)


def test_a_training_whose_export_has_no_place_does_not_begin(train: Start, taken: Path) -> None:
    refused = train("gpt", *GPT, "--steps", 2, "--export", taken, folder="refused")
    assert refused.outcomes[0]["outcome"] == "configuration"
    assert "taken is not empty" in refused.outcomes[0]["message"]
    assert not (refused.folder / "metrics.jsonl").exists()


def test_what_came_in_the_way_meanwhile_is_told_with_what_to_type(run: Path, taken: Path) -> None:
    options = dataclasses.replace(parse(GptOptions, []), export=str(taken))
    with outside_job() as context:
        context.place = dataclasses.replace(context.place, run_dir=run)
        with pytest.raises(ConfigurationError, match=f"slipway export {run} DIR"):
            export_result(TrainingResult("finished", 4, {}), options, context)
        export_result(TrainingResult("stopped", 4, {}), options, context)


def test_only_what_others_can_read_is_exported(train: Start, tmp_path: Path) -> None:
    run = train("linear", "--dataset-size", 64, "--steps", 2).folder
    with pytest.raises(ConfigurationError, match=r"trained by linear.*Export a run of gpt"):
        export_run(run, tmp_path / "model")
    shutil.rmtree(run / "snapshots")
    with pytest.raises(ConfigurationError, match=r"has no snapshot\."):
        export_run(run, tmp_path / "model")
    save_snapshot(run / "snapshots", Snapshot(2, state={}, tensors={"model": {"weight": torch.ones(1)}}), keep=1)
    with pytest.raises(
        ConfigurationError, match=r"step-00000002 does not say its data: .* not of one of Slipway's workloads"
    ):
        export_run(run, tmp_path / "model")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigurationError, match=r"neither a run directory nor an export: it has no slipway.json"):
        read_export(tmp_path / "other")
