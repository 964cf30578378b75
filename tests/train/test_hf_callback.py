"""slipway.hf.Callback: what it changes of a Trainer's arguments, and which checkpoint the processes agree on."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipway import hf
from slipway.protocol.mistake import ConfigurationError

CPU = torch.device("cpu")


def checkpoints(folder: Path, *steps: int, complete: bool = True) -> Path:
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        if complete:
            (folder / f"checkpoint-{step}" / hf.COMPLETE).touch()
    return folder


class Peers:
    """Processes that reduce numbers among each other, as threads."""

    ReduceOp = SimpleNamespace(MIN="min")

    def __init__(self, number: int) -> None:
        self.barrier, self.given = threading.Barrier(number), list[torch.Tensor]()

    def is_initialized(self) -> bool:
        return True

    def all_reduce(self, numbers: torch.Tensor, op: str) -> None:
        assert op == "min"
        self.given.append(numbers.clone())
        self.barrier.wait()
        least = torch.stack(self.given).min(dim=0).values
        self.barrier.wait()
        self.given.clear()
        self.barrier.wait()
        numbers.copy_(least)


def agree(monkeypatch: pytest.MonkeyPatch, folders: Sequence[Path]) -> list[str | None]:
    monkeypatch.setattr(hf, "dist", Peers(len(folders)))
    with ThreadPoolExecutor(len(folders)) as threads:
        return list(threads.map(lambda folder: hf.newest_checkpoint(folder, CPU), folders))


def test_the_newest_complete_checkpoint_counts(tmp_path: Path) -> None:
    assert hf.newest_checkpoint(tmp_path / "none", CPU) is None
    checkpoints(tmp_path, 20, 100, 40)
    checkpoints(tmp_path, 120, complete=False)
    checkpoints(tmp_path / "checkpoint-100-of-mine", 500)
    assert hf.newest_checkpoint(tmp_path, CPU) == str(tmp_path / "checkpoint-100")


def test_processes_with_disks_of_their_own_go_back_to_one_that_all_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = [
        checkpoints(tmp_path / "a", 20, 40, 60),
        checkpoints(tmp_path / "b", 20, 60),
        checkpoints(tmp_path / "c", 20, 40),
    ]
    assert agree(monkeypatch, folders) == [str(folder / "checkpoint-20") for folder in folders]
    assert agree(monkeypatch, [tmp_path / "d", tmp_path / "e"]) == [None, None]


def test_a_checkpoint_that_only_some_can_read_is_no_reason_to_begin_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="a disk that all nodes share"):
        agree(monkeypatch, [checkpoints(tmp_path / "a", 20), tmp_path / "b"])


def arguments(**more: Any) -> Any:
    usual = {
        "output_dir": "outputs/mine",
        "save_total_limit": None,
        "save_strategy": "steps",
        "save_only_model": False,
        "ignore_data_skip": False,
        "local_process_index": 0,
    }
    return SimpleNamespace(**usual | more)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, []),
        ({"save_total_limit": 1}, ["two checkpoints are kept"]),
        ({"save_strategy": "no", "save_only_model": True}, ["begins again after a failure", "the optimizer"]),
        ({"ignore_data_skip": True}, ["data begin again"]),
    ],
)
def test_what_is_not_restored_is_said(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], says: list[str]) -> None:
    monkeypatch.delenv("SLIPWAY_RUN_DIR", raising=False)
    args = arguments(**more)
    notes = list(hf._prepare(args))
    assert len(notes) == len(says)
    assert all(text in note for text, note in zip(says, notes, strict=True))
    assert args.output_dir == "outputs/mine", "without a launcher, the script decides"
    assert args.save_total_limit in (None, 2)


def test_each_run_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / "run"))
    args = arguments()
    assert "this run's own folder" in "".join(hf._prepare(args))
    assert Path(args.output_dir) == tmp_path / "run/mine"
    assert Path(args.output_dir).is_dir()


def test_a_callback_that_is_added_later_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="pass it to the constructor"):
        hf.Callback().on_train_begin(arguments(), None, None)
    with pytest.raises(ConfigurationError, match="pass it to the constructor"):
        hf.Callback().on_init_end(arguments(), None, None)
