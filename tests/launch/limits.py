"""Places with little room, and a disk that fails. Tests that take them need `mounts`, `memory cgroup` or `loop devices`."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from waiting import wait_until


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size (as in `3m`) at `folder`."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass(frozen=True)
class FailingDisk:
    """A file system at `folder` that can become read-only under open files, as ext4 does after an error of its disk."""

    folder: Path
    image: Path

    def fail(self) -> None:
        """From now on nothing can be written (https://docs.kernel.org/admin-guide/ext4.html, `abort`)."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.folder)], check=True)

    def mend(self) -> None:
        """Mount it anew."""
        subprocess.run(["umount", str(self.folder)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.folder)], check=True)


@contextmanager
def failing_disk(folder: Path, size: int = 8 << 20) -> Iterator[FailingDisk]:
    """A disk of so many bytes at `folder`, in a file beside it."""
    image = folder.with_name(f"{folder.name}.image")
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield FailingDisk(folder, image)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def small_memory(size: int, *, of_step: bool = False) -> Iterator[tuple[str, ...]]:
    """A memory cgroup of `size` bytes, v2 or v1; yields the words that start a command inside it.

    `of_step`: as Slurm and enroot have it. The limit is the step's, and the command begins a cgroup namespace in the task's cgroup
    below, with the step's mounted.
    """
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    top, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    folder = top / f"slipway-test-{os.getpid()}"
    task = folder / "task_0" if of_step else folder
    folder.mkdir()
    (folder / limit).write_text(str(size))
    if of_step:
        task.mkdir()
        if top == v2:
            (folder / "cgroup.subtree_control").write_text("+memory")
    shown = f'mount --bind {folder} {top} && exec "$@"' if of_step else 'exec "$@"'
    spaces = ("unshare", "--cgroup", "--mount") if of_step else ()
    try:
        yield ("sh", "-c", f'echo $$ > {task}/cgroup.procs && exec "$@"', "sh", *spaces, "sh", "-c", shown, "sh")
    finally:
        wait_until(lambda: removed(task) and removed(folder), f"the end of all processes in {folder}")


def removed(cgroup: Path) -> bool:
    """Remove a cgroup, unless a process is left in it."""
    with suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()
