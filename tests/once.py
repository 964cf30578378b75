"""What a run of the tests makes once, however many processes pytest runs them in."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of pytest that all its processes see; pytest-xdist gives each of them one below it."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, which the first process that asks for it has made; the others wait for it.

    Where `make` raises, the next one that asks begins again with an empty folder.
    """
    done = folder.with_name(f"{folder.name}.made")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            make(folder)
            done.touch()
    return folder
