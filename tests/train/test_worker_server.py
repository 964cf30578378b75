"""The process that the workers of these tests are forked from."""

from __future__ import annotations

import os
from multiprocessing import forkserver
from pathlib import Path

import pytest
from training_jobs import SERVER


@pytest.mark.pull
def test_workers_are_forked_from_a_process_with_torch_and_without_threads(server: None) -> None:
    """A fork beside threads may copy a lock that is held, and OpenMP's threads are not there in the child, which waits for them."""
    worker = SERVER.Process(target=os.getpid)
    worker.start()
    worker.join()
    process = Path(f"/proc/{forkserver._forkserver._forkserver_pid}")
    assert "Threads:\t1\n" in (process / "status").read_text()
    assert "libtorch_cpu.so" in (process / "maps").read_text()
