"""A snapshot is complete or not there, whenever its writer dies, and training need not wait for it."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import slipway
from slipway.protocol.durable import sync_folder
from slipway.train.loop.metrics import keep_metrics
from slipway.train.observe.sinks import Sinks
from slipway.train.snapshots import snapshot as module
from slipway.train.snapshots import writer as writing
from slipway.train.snapshots.snapshot import Snapshot, load_snapshot, save_snapshot
from slipway.train.snapshots.writer import ALIGNED, Writer, set_aside, size_aside

pytestmark = pytest.mark.core


def make_snapshot(step: int) -> Snapshot:
    return Snapshot(step, {}, {"model": {"a": torch.full((2, 3), float(step)), "b": torch.arange(4).bfloat16()}})


def test_a_writer_that_dies_at_any_operation_leaves_the_snapshot_before_or_the_new_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(slipway.__file__).parents[1])}
    script = Path(__file__).with_name("crashing_writer.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [result["step"] for result in results]
    assert len(steps) > 40
    assert steps == sorted(steps)
    assert set(steps) == {1, 2, 3}
    for result in results:
        assert (result["whole"], result["warnings"], result["left"]) == (True, [], ["step-00000004"]), result


def test_every_file_is_on_the_disk_before_the_manifest_and_all_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, str]] = []

    def record(name: str, path_of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def recorded(*args: Any, **more: Any) -> Any:
            log.append((name, path_of(*args).removeprefix(f"{tmp_path}/")))
            return real(*args, **more)

        monkeypatch.setattr(os, name, recorded)

    record("fsync", lambda descriptor: str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    record("rename", lambda source, target: f"{os.path.realpath(source)} {os.path.realpath(target)}")
    record("rmdir", lambda path, **_: os.path.realpath(path))
    folder = tmp_path / "snapshots"
    for step in (1, 2):
        log.clear()
        save_snapshot(folder, make_snapshot(step), keep=1)
    new, old = "snapshots/.step-00000002.writing", "snapshots/step-00000001"
    assert log == [
        ("fsync", f"{new}/state.json"),
        ("fsync", f"{new}/model.safetensors"),
        ("fsync", f"{new}/manifest.json"),
        ("fsync", new),
        ("rename", f"{new} {tmp_path}/snapshots/step-00000002"),
        ("fsync", "snapshots"),
        ("rename", f"{old} {tmp_path}/snapshots/.step-00000001.deleting"),
        ("rmdir", "snapshots/.step-00000001.deleting"),
    ]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The disk writes nothing before this is set."""
    opened, real = threading.Event(), module.write_file

    def write(*args: Any) -> Any:
        opened.wait(30)
        return real(*args)

    monkeypatch.setattr(module, "write_file", write)
    return opened


def test_what_is_written_is_what_was_there_when_it_began(tmp_path: Path, gate: threading.Event) -> None:
    writer, training = Writer(tmp_path, keep=2), make_snapshot(1)
    for step in (1, 2):  # the second goes into the same memory
        writer.start(Snapshot(step, {}, training.tensors), copy=True)
        assert writer.wait(0)
        training.tensors["model"]["a"].add_(1)
        gate.set()
        assert not writer.wait(30)
        gate.clear()
    for step in (1, 2):
        assert load_snapshot(tmp_path / f"step-{step:08d}").tensors["model"]["a"].eq(step).all()
    assert writer.written > 0


def test_copies_lie_in_one_piece_that_is_no_larger_than_they_are() -> None:
    tensors = {
        ("model", "a"): torch.randn(3, 5),
        ("model", "nothing"): torch.empty(0, 4),
        ("model", "half"): torch.randn(7).bfloat16(),
        ("ranks", "seen"): torch.tensor(True),
        ("optimizer", "step"): torch.tensor(3.0, dtype=torch.float64),
    }
    memory = torch.empty(size_aside(tensors), dtype=torch.uint8)
    copies = set_aside(tensors, memory)
    assert memory.nbytes <= sum(tensor.nbytes for tensor in tensors.values()) + len(tensors) * ALIGNED
    for names, tensor in tensors.items():
        copies[names].copy_(tensor)
    for names, tensor in tensors.items():  # none lies where another does
        assert (copies[names].dtype, copies[names].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(copies[names], tensor)
        assert copies[names].untyped_storage().data_ptr() == memory.data_ptr()


class OnGpu(torch.Tensor):
    """Says that it is."""

    is_cuda = property(lambda _: True)  # type: ignore[assignment]


def test_for_tensors_on_a_gpu_that_piece_is_pinned_as_it_is_and_no_longer_than_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: dict[int, int] = {}
    monkeypatch.setattr(writing, "pin", lambda memory: pinned.update({memory.data_ptr(): memory.nbytes}))
    monkeypatch.setattr(writing, "unpin", lambda memory: pinned.pop(memory.data_ptr()))
    monkeypatch.setattr(writing, "copy_all", lambda sources, targets: lambda: 0.0)
    writer = Writer(tmp_path, keep=1)
    for step in (1, 2):
        writer.start(Snapshot(step, {}, {"model": {"a": torch.ones(1000).as_subclass(OnGpu)}}), copy=True)
        assert not writer.wait(30)
        writer.check()
    assert list(pinned.values()) == [4032]
    del writer
    gc.collect()
    assert not pinned


def test_a_snapshot_that_cannot_be_written_is_told_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_file", full)
    writer = Writer(tmp_path, keep=1)
    writer.start(make_snapshot(1), copy=False)
    assert not writer.wait(30)
    assert writer.failed
    with pytest.raises(OSError, match="No space left"):
        writer.check()
    assert list(tmp_path.iterdir()) == []


def test_what_is_replaced_stays_as_it_was_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1}\n{"step": 2}\n\xff\xfe')  # and a torn line
    keep_metrics(file, 1)
    assert file.read_text() == '{"step": 1}\n'

    def fail(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        keep_metrics(file, 0)
    assert file.read_text() == '{"step": 1}\n'


def fail(monkeypatch: pytest.MonkeyPatch, name: str, number: int, part: str) -> None:
    """Let a function of `os` refuse what is at, or in, a path with this part, as file systems do."""
    real = getattr(os, name)

    def refuses(path: Any, *args: Any, dir_fd: int | None = None, **more: Any) -> Any:
        above = "" if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        if part in f"{above}/{path}":
            raise OSError(number, os.strerror(number), path)
        return real(path, *args, **more) if dir_fd is None else real(path, *args, dir_fd=dir_fd, **more)

    monkeypatch.setattr(os, name, refuses)


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.EBUSY, errno.EPERM, errno.EACCES])
@pytest.mark.parametrize("name", ["rmdir", "unlink", "rename"])
def test_an_old_snapshot_that_somebody_reads_stays_until_a_later_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    warnings: list[str] = []
    writer = Writer(tmp_path, keep=1, warn=warnings.append)

    def save(step: int) -> None:
        writer.start(make_snapshot(step), copy=True)
        writer.wait()
        writer.check()

    save(1)
    with monkeypatch.context() as patched:
        fail(patched, name, number, "step-00000001")
        for step in (2, 3):
            save(step)
            assert load_snapshot(tmp_path / f"step-0000000{step}").step == step
        assert len(list(tmp_path.iterdir())) == 2
        assert len(warnings) == 1
        assert os.strerror(number) in warnings[0]
        assert f"{tmp_path}/" in warnings[0]
    save(4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


def test_a_step_is_saved_again_though_what_was_left_of_it_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what in ("writing", "replaced", "deleting"):
        (tmp_path / f".step-00000002.{what}/in-use").mkdir(parents=True)
    save_snapshot(tmp_path, make_snapshot(2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    with monkeypatch.context() as patched:
        fail(patched, "rmdir", errno.ENOTEMPTY, "step-00000002")
        for _ in range(3):
            save_snapshot(tmp_path, make_snapshot(2), keep=1)
    assert load_snapshot(tmp_path / "step-00000002").step == 2
    save_snapshot(tmp_path, make_snapshot(2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_folders_still_gets_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112  # a link to what is open
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert sync_folder(tmp_path) is False
    assert load_snapshot(save_snapshot(tmp_path / "snapshots", make_snapshot(1), keep=1)).step == 1


def test_an_error_in_syncing_a_folder_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=str(tmp_path)):
        sync_folder(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize(("step", "left"), [(1, "there is none before it"), (2, "the newest one left is of step 1")])
def test_a_disk_that_is_full_or_broken_is_told_with_the_path_what_is_needed_and_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: int, left: str
) -> None:
    folder = tmp_path / "snapshots"
    if step == 2:
        save_snapshot(folder, make_snapshot(1), keep=1)

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "model.safetensors":
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=rf"^\[Errno {number}\] ") as caught:
        save_snapshot(folder, make_snapshot(step), keep=1)
    said = str(caught.value)
    assert f"(the snapshot of step {step} takes 0.0 MB, " in said
    assert " MB are free; " in said
    assert left in said
    assert f"'{folder}/.step-0000000{step}.writing/model.safetensors'" in said
    assert [path.name for path in folder.iterdir()] == (["step-00000001"] if step == 2 else [])


def test_metrics_that_cannot_be_written_are_told_with_their_file(tmp_path: Path) -> None:
    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sinks: Any = Sinks(None, (), print)
    sinks._path, sinks._file = tmp_path / "metrics.jsonl", SimpleNamespace(write=full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/metrics.jsonl'"):
        sinks.write(1, loss=1.0)
