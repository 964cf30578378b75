"""Places with little room: a file system and a memory cgroup. Tests that take them need `mounts` or `memory cgroup`."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size (as in `3m`) at `folder`."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def small_memory(size: int) -> Iterator[tuple[str, ...]]:
    """A memory cgroup of `size` bytes, v2 or v1; yields the words that start a command inside it."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    top, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    folder = top / f"slipway-test-{os.getpid()}"
    folder.mkdir()
    (folder / limit).write_text(str(size))
    try:
        yield ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")
    finally:
        until = time.monotonic() + 20
        while folder.is_dir() and time.monotonic() < until:
            try:
                folder.rmdir()
            except OSError:
                time.sleep(0.1)
