"""Places with little room, for root: a file system and a memory cgroup. Tests are skipped where they cannot be made."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size (as in `3m`) at `folder`."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("no file system can be mounted here")
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
    try:
        folder.mkdir()
        (folder / limit).write_text(str(size))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")
    finally:
        until = time.monotonic() + 20
        while folder.is_dir() and time.monotonic() < until:
            try:
                folder.rmdir()
            except OSError:
                time.sleep(0.1)
