"""Snapshots: what is written comes back, and what is damaged is noticed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from training_jobs import Run

from slipway.protocol.snapshots import list_snapshots
from slipway.train.snapshots import snapshot as module
from slipway.train.snapshots.snapshot import (
    NewerFormatError,
    Snapshot,
    SnapshotError,
    load_newest,
    load_snapshot,
    save_snapshot,
    verify_snapshot,
)
from slipway.train.worker.launcher import SupersededError


def make_snapshot(step: int) -> Snapshot:
    model = {
        "matrix": torch.arange(12, dtype=torch.float32).view(3, 4).t() * step,
        "half": torch.randn(5).bfloat16(),
        "scalar": torch.tensor(float(step)),
        "nothing": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
    }
    return Snapshot(
        step, {"position": 7 * step}, {"model": model, "optimizer": {}, "ranks": {"0.cpu": torch.arange(9)}}
    )


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: list[Callable[[Path], None]] = [truncate, flip_a_bit, Path.unlink, empty]
FILES = ["model.safetensors", "optimizer.safetensors", "ranks.safetensors", "state.json", "manifest.json"]


@pytest.mark.core
def test_everything_comes_back(tmp_path: Path) -> None:
    written = make_snapshot(3)
    path = save_snapshot(tmp_path, written, keep=1)
    read = load_snapshot(path)
    assert path.name == "step-00000003"
    assert (read.step, read.state) == (3, {"position": 21})
    assert read.tensors.keys() == written.tensors.keys()
    for stem, tensors in written.tensors.items():
        assert read.tensors[stem].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert read.tensors[stem][name].dtype == tensor.dtype
            assert torch.equal(read.tensors[stem][name], tensor)
    assert set(load_file(path / "model.safetensors")) == set(written.tensors["model"])


@pytest.mark.core
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_snapshot_is_skipped_with_the_reason(
    tmp_path: Path, damage: Callable[[Path], None], file: str
) -> None:
    for step in (1, 2):
        save_snapshot(tmp_path, make_snapshot(step), keep=2)
    damage(tmp_path / "step-00000002" / file)
    warnings: list[str] = []
    found = load_newest(tmp_path, warnings.append)
    assert found is not None
    assert found[1].step == 1
    assert len(warnings) == 1
    assert "step-00000002" in warnings[0]
    assert file in warnings[0]
    with pytest.raises(SnapshotError, match=file):
        load_snapshot(tmp_path / "step-00000002")


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["whole", *(damage.__name__ for damage in DAMAGES)]), min_size=1, max_size=4))
def test_the_newest_whole_snapshot_is_found_whatever_happened_to_the_others(
    tmp_path_factory: pytest.TempPathFactory, states: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("snapshots")
    for step in range(len(states)):
        save_snapshot(folder, make_snapshot(step), keep=len(states))
    for step, state in enumerate(states):
        for damage in DAMAGES:
            if damage.__name__ == state:
                damage(folder / f"step-{step:08d}" / FILES[step % len(FILES)])
    warnings: list[str] = []
    found = load_newest(folder, warnings.append)
    whole = [step for step, state in enumerate(states) if state == "whole"]
    assert (found[1].step if found else None) == (max(whole) if whole else None)
    assert len(warnings) == len(states) - 1 - (max(whole) if whole else -1)
    shutil.rmtree(folder)


def test_a_manifest_of_another_step_is_noticed(tmp_path: Path) -> None:
    path = save_snapshot(tmp_path, make_snapshot(3), keep=1)
    with pytest.raises(SnapshotError, match="belongs to step 3"):
        verify_snapshot(path.rename(tmp_path / "step-00000009"))


@pytest.mark.parametrize("name", ["model.safetensorr", "state.jsom"])
def test_a_manifest_that_names_another_file_is_damaged(tmp_path: Path, name: str) -> None:
    path = save_snapshot(tmp_path, make_snapshot(3), keep=1) / "manifest.json"
    right = FILES[0] if name.startswith("model") else "state.json"
    path.write_text(path.read_text().replace(f'"{right}"', f'"{name}"'))  # by a single bit
    with pytest.raises(SnapshotError, match=r"manifest\.json.* name"):
        load_snapshot(path.parent)


def forge(path: Path, name: str, content: bytes, **manifest: object) -> None:
    """Put a file with checksums that fit into a snapshot, and other things into its manifest."""
    (path / name).write_bytes(content)
    told = json.loads((path / "manifest.json").read_text()) | manifest
    told["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(told))


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "content", "manifest", "says"),
    [
        ("model.safetensors", b"\xff" * 100, {}, r"model\.safetensors cannot be read as tensors"),
        ("model.safetensors", b"", {}, r"model\.safetensors cannot be read as tensors"),
        ("state.json", b"{", {}, r"state\.json cannot be read"),
        ("state.json", b"[" * 100_000, {}, r"state\.json cannot be read"),
        ("state.json", b"[1]", {}, r"state\.json does not contain an object"),
        ("state.json", b"{}", {"format": float("nan")}, "invalid format None"),
        ("state.json", b"{}", {"format": 0.5}, r"invalid format 0\.5"),
        ("state.json", b"{}", {"format": True}, "invalid format True"),
        ("../x.safetensors", b"", {}, r"names '\.\./x\.safetensors'"),
        ("/tmp/x.safetensors", b"", {}, "names '/tmp/x"),  # it is never opened
    ],
)
def test_a_snapshot_whose_checksums_fit_and_whose_content_does_not_is_passed_over(
    tmp_path: Path, name: str, content: bytes, manifest: dict[str, object], says: str
) -> None:
    for step in (1, 2):
        path = save_snapshot(tmp_path / "snapshots", make_snapshot(step), keep=2)
    if name.startswith("/"):
        told = json.loads((path / "manifest.json").read_text())
        told["files"][name] = {"size": 0, "sha256": ""}
        (path / "manifest.json").write_text(json.dumps(told))
    else:
        forge(path, name, content, **manifest)
    warnings: list[str] = []
    found = load_newest(tmp_path / "snapshots", warnings.append)
    assert found is not None
    assert found[1].step == 1
    assert re.search(says, warnings[0]), warnings
    shutil.rmtree(tmp_path / "snapshots/step-00000001")
    assert load_newest(tmp_path / "snapshots", warnings.append) is None


@pytest.mark.parametrize("file", FILES)
def test_a_pipe_in_place_of_a_file_holds_nobody(tmp_path: Path, file: str) -> None:
    path = save_snapshot(tmp_path, make_snapshot(1), keep=1)
    (path / file).unlink()
    os.mkfifo(path / file)
    with pytest.raises(SnapshotError, match=file):
        load_snapshot(path)


@pytest.mark.core
def test_a_newer_format_is_refused_instead_of_losing_steps(tmp_path: Path) -> None:
    for step in (1, 2):
        path = save_snapshot(tmp_path, make_snapshot(step), keep=2)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(NewerFormatError, match="format 2, this version of slipway reads up to 1"):
        load_newest(tmp_path, pytest.fail)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save_snapshot(tmp_path, make_snapshot(step), keep=2)
    assert [path.name for path in list_snapshots(tmp_path)] == ["step-00000010", "step-00000003"]
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_deleted_before_the_new_one_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_snapshot(tmp_path, make_snapshot(1), keep=1)
    real = module.write_file

    def write(path: Path, *more: Any) -> object:
        written = real(path, *more)
        if path.name == "model.safetensors":
            flip_a_bit(path)
        return written

    monkeypatch.setattr(module, "write_file", write)
    with pytest.raises(
        OSError, match=r"the data read back from the disk are not what was written: .*model.safetensors"
    ):
        save_snapshot(tmp_path, make_snapshot(2), keep=1)
    found = load_newest(tmp_path, lambda _: None)
    assert found is not None
    assert found[1].step == 1


def test_a_damaged_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    save_snapshot(tmp_path, make_snapshot(5), keep=1)
    truncate(tmp_path / "step-00000005" / "model.safetensors")
    save_snapshot(tmp_path, make_snapshot(5), keep=1)
    verify_snapshot(tmp_path / "step-00000005")


def test_a_damaged_snapshot_that_was_named_is_an_error(
    train: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    first = train("linear", "--steps", 3, folder="first")
    empty(first.folder / "snapshots" / "step-00000003" / "model.safetensors")
    named = str(first.folder / "snapshots" / "step-00000003")
    second = train("linear", "--steps", 3, folder="second", resume=named)
    assert second.outcomes[0]["outcome"] == "no-progress"
    assert "model.safetensors has 0 bytes" in second.outcomes[0]["message"]


SMALL = (
    "gpt",
    "--layers",
    1,
    "--heads",
    1,
    "--context",
    8,
    "--eval-samples",
    4,
    "--sample-tokens",
    0,
    "--batch-size",
    2,
)


@pytest.mark.parametrize(
    ("theirs", "mine", "word", "says"),
    [
        (("linear",), ("linear",), "finished", "resuming from .*mine/snapshots/step-00000004"),
        (
            ("linear", "--seed", 5),
            ("linear",),
            "finished",
            "note: this run was trained on .* from seed 5 so far, and continues on .* from seed 0",
        ),
        (
            ("linear",),
            SMALL,
            "configuration",
            "The snapshot to resume from is of the workload linear, but this job runs gpt",
        ),
        ((*SMALL, "--embed", 8), (*SMALL, "--embed", 16), "configuration", "step 4 holds another model: embed 8, not 16"),
    ],
)  # fmt: skip
def test_a_snapshot_of_another_run_among_our_own_counts_like_them_and_one_of_another_model_is_refused(
    train: Callable[..., Run],
    capsys: pytest.CaptureFixture[str],
    theirs: tuple[object, ...],
    mine: tuple[object, ...],
    word: str,
    says: str,
) -> None:
    other = train(*theirs, "--steps", 4, folder="theirs")
    ours = train(*mine, "--steps", 2, folder="mine")
    kept = ours.tensors()
    shutil.copytree(other.folder / "snapshots/step-00000004", ours.folder / "snapshots/step-00000004")
    again = train(*mine, "--steps", 6, folder="mine", resume="auto")
    printed = capsys.readouterr()
    assert again.outcomes[0]["outcome"] == word
    assert re.search(says, printed.out + json.dumps(again.outcomes)), printed
    if word == "configuration":  # and nothing of ours is deleted or written over
        shutil.rmtree(ours.folder / "snapshots/step-00000004")
        assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in kept.items())


@pytest.mark.parametrize("name", FILES)
def test_files_of_two_runs_in_one_snapshot_are_damage(tmp_path: Path, name: str) -> None:
    """Of the same step and size, so that only the checksums tell."""
    for run in ("mine", "theirs"):
        tensors = {
            "model": {"w": torch.randn(8)},
            "optimizer": {"w": torch.randn(8)},
            "ranks": {"0.cpu": torch.randn(8)},
        }
        state = {"position": 7, "run": run.zfill(6)}
        for step in (1, 2):
            save_snapshot(tmp_path / run, Snapshot(step, state, tensors), keep=2)
    shutil.copy(tmp_path / "theirs/step-00000002" / name, tmp_path / "mine/step-00000002" / name)
    warnings: list[str] = []
    found = load_newest(tmp_path / "mine", warnings.append)
    assert found is not None
    assert found[1].step == 1
    assert "skipping the damaged snapshot step-00000002" in warnings[0]


def test_another_runs_snapshots_behind_a_link_are_not_touched(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_snapshot(tmp_path / "theirs", make_snapshot(step), keep=3)
    (tmp_path / "snapshots").symlink_to("theirs")
    with pytest.raises(OSError, match="is a link"):
        save_snapshot(tmp_path / "snapshots", make_snapshot(4), keep=1)
    assert len(list_snapshots(tmp_path / "theirs")) == 3


def test_a_link_among_the_snapshots_is_pruned_as_a_link(tmp_path: Path) -> None:
    theirs = save_snapshot(tmp_path / "theirs", make_snapshot(1), keep=1)
    (tmp_path / "snapshots").mkdir()
    for name in ("step-00000001", ".step-00000001.deleting"):
        (tmp_path / "snapshots" / name).symlink_to(theirs)
    save_snapshot(tmp_path / "snapshots", make_snapshot(4), keep=1)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["step-00000004"]
    verify_snapshot(theirs)


def test_a_writer_whose_run_somebody_else_went_on_with_changes_nothing(tmp_path: Path) -> None:
    for step in (1, 2, 9):
        save_snapshot(tmp_path, make_snapshot(step), keep=9)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(SupersededError):
        save_snapshot(tmp_path, make_snapshot(2), keep=1, superseded=lambda: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_that_is_exchanged_for_a_link_in_mid_save_stays_the_one_that_is_written_to(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_snapshot(tmp_path / "theirs", make_snapshot(step), keep=3)
    before = sorted(tmp_path.glob("theirs/**/*"))
    looks = iter((False, True, False))

    def exchange() -> bool:  # asked when the files are written and the folder has no name yet
        if next(looks):
            (tmp_path / "snapshots").rename(tmp_path / "moved")
            (tmp_path / "snapshots").symlink_to("theirs")
        return False

    save_snapshot(tmp_path / "snapshots", make_snapshot(4), keep=1, superseded=exchange)
    assert sorted(tmp_path.glob("theirs/**/*")) == before
    verify_snapshot(tmp_path / "moved/step-00000004")


def test_what_an_earlier_attempt_finishes_after_a_later_one_went_on_is_passed_over(tmp_path: Path) -> None:
    save_snapshot(tmp_path, replace(make_snapshot(2), attempt=2), keep=9)
    save_snapshot(tmp_path, replace(make_snapshot(7), attempt=1), keep=9)
    warnings: list[str] = []
    found = load_newest(tmp_path, warnings.append)
    assert found is not None
    assert (found[0].name, found[1].attempt) == ("step-00000002", 2)
    assert "skipping step-00000007" in warnings[0]


def test_a_writer_that_wakes_after_its_snapshot_has_its_name_deletes_nothing(tmp_path: Path) -> None:
    looks = iter((False, False, True))

    def go_on() -> bool:
        if superseded := next(looks):
            for step in (5, 6):
                save_snapshot(tmp_path, replace(make_snapshot(step), attempt=2), keep=9)
        return superseded

    with pytest.raises(SupersededError):
        save_snapshot(tmp_path, replace(make_snapshot(4), attempt=1), keep=1, superseded=go_on)
    assert {"step-00000005", "step-00000006"} <= {path.name for path in list_snapshots(tmp_path)}


def test_a_later_attempts_snapshots_are_not_deleted(tmp_path: Path) -> None:
    """By a writer that was frozen at the last moment, after its last look."""
    for step in (5, 6):
        save_snapshot(tmp_path, replace(make_snapshot(step), attempt=2), keep=9)
    save_snapshot(tmp_path, replace(make_snapshot(4), attempt=1), keep=1)
    assert [path.name for path in list_snapshots(tmp_path)] == ["step-00000006", "step-00000005", "step-00000004"]
    save_snapshot(tmp_path, replace(make_snapshot(7), attempt=2), keep=1)
    assert [path.name for path in list_snapshots(tmp_path)] == ["step-00000007"]


def test_a_writer_whose_files_somebody_else_cleared_away_says_why(tmp_path: Path) -> None:
    """The launcher that went on deletes what is under way; that is no broken disk."""
    looks = iter((False, True, True))

    def note(_: int) -> None:
        for path in tmp_path.glob(".step-*"):
            shutil.rmtree(path)

    with pytest.raises(SupersededError):
        save_snapshot(tmp_path, make_snapshot(4), keep=1, note=note, superseded=lambda: next(looks))
