"""The spare nodes of a job, as `slipway status` and the last lines show them."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipway.protocol.files import SPARES_FILE, write_json


class SparesDisplay:
    """Which spare nodes are here, written down by the node that leads when that has changed."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._shown: tuple[tuple[int, str], ...] | None = None

    def show(self, here: Sequence[tuple[int, str]], node: Path) -> None:
        """Take the ranks and hosts of those that are here, and write them into the folder of this `node`."""
        if (now := tuple(here)) == self._shown:
            return
        self._shown = now
        with suppress(OSError):  # a disk that is full or away ends no job
            write_json(node / SPARES_FILE, {"spares": [{"node": rank, "host": host} for rank, host in now]})

    def __str__(self) -> str:
        """`spare nodes at the end: node 2 (gpu7)`; empty if this node never led."""
        if self._shown is None:
            return ""
        return f"spare nodes at the end: {', '.join(f'node {rank} ({host})' for rank, host in self._shown) or 'none'}"
