"""Launchers on loopback, each test with a port and a folder of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ports import take_ports
from stage import Launcher, make_info


@pytest.fixture
def port() -> int:
    """A port that is the test's own, and so is the next."""
    return take_ports(2)


@pytest.fixture
def launcher(port: int, tmp_path: Path) -> Callable[..., Launcher]:
    """Makes launchers of one job: `launcher(rank, nodes, info={…}, **Launcher's fields)`."""

    def make(node_rank: int, nodes: int, info: dict[str, Any] | None = None, **fields: Any) -> Launcher:
        given: dict[str, Any] = {"port": port, "folder": tmp_path, "nodes": nodes} | fields
        return Launcher(info=make_info(node_rank, given["nodes"], **(info or {})), **given)

    return make
