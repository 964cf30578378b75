"""Launchers on loopback, each test with a port and a folder of its own."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage import Launcher, make_card

from slipway.launch.resolve.connectivity import free_port


@pytest.fixture
def port(worker_id: str) -> int:
    """A port that nothing listens on, nor on the next; below those that the kernel hands out to others meanwhile.

    Each of pytest's workers looks among 1500 of its own: nobody else takes it between the look and the use.
    """
    least = 20_000 + 1500 * int(worker_id.removeprefix("gw").replace("master", "0"))
    for candidate in range(least + 2 * random.randrange(500), least + 1500, 2):
        if free_port(candidate) == candidate and free_port(candidate + 1) == candidate + 1:
            return candidate
    raise AssertionError("no free port")


@pytest.fixture
def launcher(port: int, tmp_path: Path) -> Callable[..., Launcher]:
    """Makes launchers of one job: `launcher(rank, nodes, card={…}, **Launcher's fields)`."""

    def make(node_rank: int, nodes: int, card: dict[str, Any] | None = None, **fields: Any) -> Launcher:
        given: dict[str, Any] = {"port": port, "folder": tmp_path, "nodes": nodes} | fields
        return Launcher(card=make_card(node_rank, given["nodes"], **(card or {})), **given)

    return make
