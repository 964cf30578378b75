"""What the watcher in every worker costs: at the start of a Python, and of CPU for each collective.

    .venv/bin/python bench/watcher.py [--pairs 15]

Each pair is a process as `slipway run` starts it and one as with SLIPWAY_WATCH=0, in turns. For the start it is a Python that
does nothing, up to its first line. For collectives it is a process alone in its group (gloo: with others most of the time is
waiting), which does 20,000 all_reduce of four numbers with torch's flight recorder on, while it is asked every half second,
twenty times as often as by a launcher; counted is the CPU time of all its threads. Shown are medians of the differences, and
quartiles.
"""

import argparse
import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from slipway.launch.hangs.inquiry import Listener

ASK_SECONDS = 0.5
MOST = 20.0  # ms at the start, and µs of CPU for a collective
COLLECTIVES = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(4)
for _ in range(1000):
    dist.all_reduce(x)
began = time.process_time()
for _ in range(20_000):
    dist.all_reduce(x)
print((time.process_time() - began) / 20_000 * 1e6)
dist.destroy_process_group()
"""


class Ran(NamedTuple):
    """A worker from its start to its end: when it was started, seconds of CPU, and what it printed."""

    began: float
    cpu: float
    text: str


def run(program: str, *, watched: bool) -> Ran:
    """Let a worker run this program."""
    selector = selectors.DefaultSelector()
    listener = Listener([0], selector)
    environ = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    environ |= listener.open(environ) if watched else {}
    began = time.monotonic()
    worker = subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    with worker.stdout:
        selector.register(worker.stdout, selectors.EVENT_READ)
        over = False
        while not over:  # until it prints, or ends
            for key, _ in selector.select(ASK_SECONDS):
                if key.data:
                    key.data()
                else:
                    over = True
            listener.ask("numbers")
        text = worker.stdout.read()
        _, status, used = os.wait4(worker.pid, 0)
    listener.close()
    worker.returncode = os.waitstatus_to_exitcode(status)
    if worker.returncode:
        sys.exit(f"a worker ended with {worker.returncode}")
    return Ran(began, used.ru_utime + used.ru_stime, text)


def start_ms(*, watched: bool) -> float:
    """Milliseconds to the first line of a program."""
    ran = run("import time; print(time.monotonic())", watched=watched)
    return (float(ran.text) - ran.began) * 1e3


def start_cpu_ms(*, watched: bool) -> float:
    """Milliseconds of CPU of a program that does nothing, its end included; other work on the machine changes them little."""
    return run("pass", watched=watched).cpu * 1e3


def collective_us(*, watched: bool) -> float:
    """Microseconds of CPU of one collective."""
    return float(run(COLLECTIVES, watched=watched).text.split()[-1])


def compare(measure: Callable[..., float], pairs: int) -> tuple[float, list[float]]:
    """The median without a watcher, and the quartiles of what it adds."""
    without, added = [], []
    for pair in range(pairs):
        taken = {watched: measure(watched=watched) for watched in ((True, False) if pair % 2 else (False, True))}
        without.append(taken[False])
        added.append(taken[True] - taken[False])
    return statistics.median(without), statistics.quantiles(added, n=4)


ROWS = (
    ("start", start_ms, "ms", 4),
    ("start", start_cpu_ms, "ms of CPU", 4),
    ("collective", collective_us, "µs of CPU", 1),
)


def main() -> int:
    """Measure all; 1 where a median is above what it may be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    pairs, bad = parser.parse_args().pairs, False
    for name, measure, unit, many in ROWS:
        without, (low, middle, high) = compare(measure, many * pairs)
        figures = f"{without:6.1f} {unit} without, {middle:+.2f} with [{low:+.2f}, {high:+.2f}]"
        print(f"{name:11} {figures}, {many * pairs} pairs", flush=True)
        bad |= middle > MOST
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
