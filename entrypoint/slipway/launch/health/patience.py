"""Waiting with an end: a name server that is silent and a file server that hangs must not hold up a check."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, but TimeoutError after so many seconds; its thread is then left to itself."""
    came: list[Any] = []

    def do() -> None:
        try:
            came.append((work(), None))
        except BaseException as error:
            came.append((None, error))

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(seconds)
    if not came:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    result, error = came[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
