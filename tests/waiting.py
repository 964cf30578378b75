"""The one place where tests sleep: waiting until something holds, however slow the machine is."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 120.0  # s; no judgement of the machine, only the end of a test that would wait for ever
Found = TypeVar("Found")


def wait_until(
    holds: Callable[[], Found], what: str | Callable[[], str], patience: float = PATIENCE, every: float = 0.02
) -> Found:
    """Ask every so many seconds until `holds` returns something true, and return that.

    `holds` may raise where waiting on makes no sense. AssertionError after `patience` seconds: it says `what` was waited for.
    """
    until = time.monotonic() + patience
    while not (found := holds()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {patience:.0f} s in vain for {what if isinstance(what, str) else what()}")
        time.sleep(every)
    return found
