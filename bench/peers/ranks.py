"""Both processes of a side: `python -m peers.ranks MODULE` loads it once, and runs its `main` in each.

torch alone takes seconds to import, and ten processes on two cores would pay for it one by one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing import connection, get_context

from peers.plan import PROCESSES


def main() -> int:
    """Run all ranks; 1 as soon as one of them fails, 0 when all have ended well."""
    run: Callable[[], None] = import_module(f"peers.{sys.argv[1]}").main
    ranks = [get_context("fork").Process(target=start, args=(run, rank)) for rank in range(PROCESSES)]
    for process in ranks:
        process.start()
    while ranks:
        connection.wait([process.sentinel for process in ranks])
        if any(process.exitcode for process in ranks):
            os._exit(1)  # the bench ends the others; they hold each other up
        ranks = [process for process in ranks if process.exitcode is None]
    return 0


def start(run: Callable[[], None], rank: int) -> None:
    """Run as this rank."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    run()


if __name__ == "__main__":
    sys.exit(main())
