"""What a watch over the workers takes for a hang, by what the kernel shows of their processes, second by second."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from stand_ins import write_files

from slipway.launch.hangs import watch
from slipway.launch.hangs.hang import HangReport
from slipway.launch.hangs.stack_request import Found
from slipway.launch.hangs.watch import Watch

LIMIT = 6.0  # s
WAITS = ["0", 2, "all_reduce", [[4]], ["Float"], 0.0, False, False, None]  # rank 1 since the start; rank 0 has not come
LAUNCHER, FIRST, SECOND, CHILD = 10, 20, 21, 30  # process ids


@dataclass
class Node:
    """Two ranks, of which rank 0 does something by itself while rank 1 waits for it. All ticks are hundredths of a second."""

    ticks: int = 0  # of rank 0's processor time
    ticks_below: int = 0  # of a process that rank 0 started
    written: int = 0  # bytes, by rank 0
    lines: int = 0  # of output
    done: int = 1  # collectives

    def show(self, proc: Path) -> None:
        """Write what the kernel shows of it."""
        stat = "{} (python) S {} 0 0 0 0 0 0 0 0 0 {} 0 0 0"
        times = {FIRST: self.ticks, SECOND: 0}
        files = {f"{pid}/stat": stat.format(pid, LAUNCHER, ticks) for pid, ticks in times.items()}
        files |= {f"{pid}/io": f"rchar: 7\nwchar: {self.written if pid == FIRST else 0}\n" for pid in times}
        files |= {f"{CHILD}/stat": stat.format(CHILD, FIRST, self.ticks_below), f"{CHILD}/io": "rchar: 7\nwchar: 0\n"}
        write_files(proc, files)


@dataclass
class Asked:
    """A request for stacks that is answered at once: rank 1 waits in a collective, rank 0 is in its own code."""

    workers: dict[int, int] = field(default_factory=dict)

    def over(self, now: float) -> bool:
        return True

    def found(self) -> dict[int, Found]:
        calls: dict[int, list[Any]] = {0: [], 1: [WAITS]}
        threads = [["MainThread", True, [["own.py", 7, "f"]]]]
        answer = {"members": {"0": [0, 1]}, "last": {}, "threads": threads}
        return {rank: Found(pid, "", answer | {"begun": calls[rank]}) for rank, pid in self.workers.items()}


def hang_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: Callable[[Node, float], object], seconds: float
) -> float | None:
    """The second in which a hang is reported while rank 0 `does` something for so long, None where none is."""
    monkeypatch.setattr(watch, "StackRequest", lambda listener, workers, now: Asked(dict(workers)))
    said: list[str] = []
    node, report = Node(), HangReport(tmp_path, LIMIT, said.append, end=True)
    watching = Watch((0, 1), 0, tmp_path, LIMIT, 0.0, proc=tmp_path / "proc")
    numbers = SimpleNamespace(numbers={"0/0": [2, 1]})
    watching._listener = cast(Any, SimpleNamespace(workers={0: numbers, 1: numbers}, ask=lambda question: None))
    for look in range(1, int(2 * seconds)):
        now = look / 2
        does(node, now)
        node.show(tmp_path / "proc")
        numbers.numbers = {"0/0": [2, node.done]}
        if watching.poll((FIRST, SECOND), node.lines, now) and report.judge(watching.dumps, now):
            return now
    return None


def works(cores: float, below: bool = False) -> Callable[[Node, float], object]:
    """Keep so many cores busy, in a process below the rank or in the rank itself."""
    return lambda node, now: setattr(node, "ticks_below" if below else "ticks", int(100 * cores * now))


SLOW = {
    "a silent pause that is shorter than the limit": (lambda node, now: None, LIMIT),
    "a slow batch, made by a loader's process": (works(1.0, below=True), 2 * LIMIT),
    "evaluation": (works(2.0), 2 * LIMIT),
    "a compiler": (works(0.5, below=True), 2 * LIMIT),
    "a save": (lambda node, now: setattr(node, "written", int(now / 2)), 10 * LIMIT),
    "a line now and then": (lambda node, now: setattr(node, "lines", int(now / 5)), 10 * LIMIT),
    "work on a tenth of a processor": (works(0.1), 2 * LIMIT),
    "collectives": (lambda node, now: setattr(node, "done", int(now / 5)), 10 * LIMIT),
}


@pytest.mark.parametrize("what", SLOW)
def test_what_takes_its_time_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    does, seconds = SLOW[what]
    assert hang_after(tmp_path, monkeypatch, does, seconds) is None


@pytest.mark.parametrize(
    ("does", "second"),
    [
        (lambda node, now: None, LIMIT),
        (works(0.01), LIMIT),  # a thread that wakes now and then
        (works(1.0), 2 * LIMIT),  # twice as long as others, and not for ever
        (lambda node, now: setattr(node, "lines", min(int(now / 5), 4)), 20 + LIMIT),  # it stands still after that
    ],
    ids=["nothing", "almost nothing", "an endless loop", "it stops in the middle"],
)
def test_what_stands_still_for_the_limit_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: Callable[[Node, float], object], second: float
) -> None:
    told = hang_after(tmp_path, monkeypatch, does, 10 * LIMIT)
    assert told is not None
    assert second <= told <= second + 2.0, "with a look every half second"
