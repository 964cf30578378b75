"""Python runs this in every process whose PYTHONPATH leads here: it does the harm that FAULTS asks for, as JSON.

do      what happens, the name of a function below
rank    the worker that it happens to; the other processes are left alone
beat    [phase, step, n]: at the n-th heartbeat of that phase with at least so many steps done
event   [name, pattern, n]: at the n-th audit event of that name with this regular expression in its first argument
        (https://docs.python.org/3/library/audit_events.html)
batch   [n]: while the n-th part of a batch is made
go      a file that ends a hold
saved   a snapshot that is waited for before anything happens: on a busy disk it comes some steps late
"""

import errno
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

Fault = dict[str, Any]


def hold(fault: Fault) -> None:
    while not os.path.exists(fault["go"]):  # noqa: PTH110
        time.sleep(0.02)


def wait(fault: Fault) -> None:
    time.sleep(fault["seconds"])


def fail(_: Fault) -> None:
    raise RuntimeError("boom")


def leave(_: Fault) -> None:
    os._exit(3)


def kill(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def spin(_: Fault) -> None:
    while True:
        pass


def eat(_: Fault) -> None:
    eaten = []
    while True:
        eaten.append(os.urandom(1 << 24))


def exceed_quota(_: Fault) -> None:
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


def infect(fault: Fault) -> None:
    """The next losses are infinite, so many times."""
    import torch

    from slipway.train.loop import step

    real, left = step.poison, [fault["times"]]

    def poison(loss: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        return real(loss + torch.inf if left[0] >= 0 else loss)

    step.poison = poison


class Harm:
    """Done once, at the n-th time that `happens` is called."""

    def __init__(self, fault: Fault, number: int) -> None:
        self.fault, self.left = fault, number

    def happens(self) -> None:
        self.left -= 1
        if self.left == 0:
            while "saved" in self.fault and not os.path.exists(self.fault["saved"]):  # noqa: PTH110
                time.sleep(0.02)
            os.write(1, f"fault: {self.fault['do']}\n".encode())  # in one piece, from whichever thread
            globals()[self.fault["do"]](self.fault)


def at_beat(fault: Fault, phase: str, step: int, number: int) -> None:
    from slipway.train.worker.launcher import Heartbeat

    harm, real = Harm(fault, number), Heartbeat.beat

    def beat(self: Any, now: str, done: int, steps: int | None) -> None:
        real(self, now, done, steps)
        if now == phase and done >= step:
            harm.happens()

    Heartbeat.beat = beat  # type: ignore[method-assign]


def at_event(fault: Fault, name: str, pattern: str, number: int) -> None:
    harm, words = Harm(fault, number), re.compile(pattern)

    def hear(event: str, values: tuple[Any, ...]) -> None:
        if event != name:
            return
        what = str(values[0])
        if words.search(os.path.realpath(what) if what.startswith("/proc/self/fd/") else what):  # a folder that is held
            harm.happens()

    sys.addaudithook(hear)


def at_batch(fault: Fault, number: int) -> None:
    from slipway.train.loop.loader import Loader

    harm, real = Harm(fault, number), Loader._make_part

    def make_part(self: Any, *values: Any) -> Any:
        harm.happens()
        return real(self, *values)

    Loader._make_part = make_part  # type: ignore[method-assign]


def set_clock(fault: Fault, real: Callable[[], float] = time.time) -> None:
    """Seconds ahead, before and once `go` is there."""
    time.time = lambda: real() + fault["ahead"][os.path.exists(fault["go"])]  # noqa: PTH110


def prepare(fault: Fault) -> None:
    if fault["do"] == "set_clock":  # for the launcher and all of its processes
        set_clock(fault)
    elif "LOCAL_RANK" in os.environ and os.environ["RANK"] == str(fault["rank"]):
        for name, when in (("beat", at_beat), ("event", at_event), ("batch", at_batch)):
            if name in fault:
                when(fault, *fault[name])


for _fault in json.loads(os.environ.get("FAULTS", "[]")):
    prepare(_fault)
