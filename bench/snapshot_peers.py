"""Other ways to keep a training's state on the disk, each durable when it is done: what snapshot.py measures Slipway against.

torch.save, safetensors and PyTorch's distributed checkpoints (DCP), as their own documentation has them used, and fsync.
None of them has checksums of its own that are compared with what the disk gives back.
"""

import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save, save
from torch.serialization import set_crc32_options

from slipway.train.loop.training import Training
from slipway.train.snapshots.state import optimizer_state


def save_with_torch(training: Training, path: Path) -> None:
    """What most training scripts do."""
    model, optimizer = training.task.model.state_dict(), training.task.optimizer.state_dict()
    with path.open("wb") as file:
        torch.save({"model": model, "optimizer": optimizer}, file)
        file.flush()
        os.fsync(file.fileno())


def save_with_torch_unchecked(training: Training, path: Path) -> None:
    """The same without torch.save's own checksums, which take most of its CPU time."""
    set_crc32_options(False)
    save_with_torch(training, path)
    set_crc32_options(True)


def save_with_safetensors(training: Training, path: Path) -> None:
    """All tensors in one file; what is not a tensor would need another."""
    save_file(
        {**training.task.model.state_dict(), **optimizer_state(training.task.optimizer, training.task.model)[0]}, path
    )
    with path.open("rb") as file:
        os.fsync(file.fileno())


def state(training: Training) -> dict[str, object]:
    """Model and optimizer as DCP wants them."""
    model, optimizer = get_state_dict(training.task.model, training.task.optimizer)
    return {"model": model, "optimizer": optimizer}


def save_with_dcp(training: Training, path: Path) -> None:
    """DCP, waiting for the disk; two threads write, which was faster here than one."""
    writer = FileSystemWriter(path, sync_files=True, thread_count=2)
    save(state(training), storage_writer=writer, no_dist=True)


# Those during which training stands still.
PEERS: Mapping[str, Callable[[Training, Path], None]] = {
    "torch.save and fsync": save_with_torch,
    "the same without crc32": save_with_torch_unchecked,
    "safetensors and fsync": save_with_safetensors,
    "DCP save": save_with_dcp,
}


class AsyncDcp:
    """DCP in the background at its best: into memory that is kept, while forward and backward of the next step go on."""

    def __init__(self, training: Training, path: Path) -> None:
        """Before the optimizer changes anything it waits until all is copied, and notes for how long."""
        self._training, self._path = training, path
        self._stager = DefaultStager(StagingOptions(False, False, True, False))  # as threads, without a GPU
        self._save: AsyncSaveResponse | None = None
        self.waited = 0.0
        training.task.optimizer.register_step_pre_hook(lambda *_: self._wait())

    def start(self) -> None:
        """Begin a checkpoint."""
        shutil.rmtree(self._path, ignore_errors=True)
        self.waited = 0.0
        writer = FileSystemWriter(self._path, sync_files=True, thread_count=2)
        saving = async_save(state(self._training), storage_writer=writer, async_stager=self._stager, no_dist=True)
        assert isinstance(saving, AsyncSaveResponse)
        self._save = saving

    def busy(self) -> bool:
        """Whether it still is under way. Raises what went wrong."""
        if self._save is not None and self._save.upload_completion.done():
            self._save.upload_completion.result()
            self._save = None
        return self._save is not None

    def _wait(self) -> None:
        if self._save is not None:
            start = time.perf_counter()
            self._save.staging_completion.result()
            self.waited += time.perf_counter() - start


def remove(path: Path) -> int:
    """Delete a file or folder, if there is one. Returns how many bytes it had."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    return size


warnings.filterwarnings("ignore", message="torch.distributed is disabled")
warnings.filterwarnings("ignore", message=".*TypedStorage is deprecated")
