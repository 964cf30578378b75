"""Several ways of doing the same, in turn: seconds of each round, ratios with their spread, and where they were measured."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """What one run took, with all its children, in seconds."""

    wall: float
    cpu: float


Side = Callable[[], Cost]


@dataclass(frozen=True)
class Spread:
    """The median of several values, and the smallest and largest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def told(self, digits: int, unit: str = "") -> str:
        """As a table shows it: with so many digits behind the point, and a unit behind the median."""
        return f"{self.median:.{digits}f}{unit} ({self.least:.{digits}f} to {self.most:.{digits}f})"

    def __str__(self) -> str:
        """With three digits."""
        return self.told(3)


def run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Cost:
    """Run a command to its end. Raises RuntimeError with its last lines where it fails."""
    with (folder / "output").open("w+b") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=dict(environ), stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            said = output.read().decode(errors="replace").splitlines()[-20:]
            raise RuntimeError("\n".join([f"{command[0]} ended with {process.returncode}:", *said]))
    return Cost(wall, used.ru_utime + used.ru_stime)


def take_turns(sides: dict[str, Side], rounds: int) -> dict[str, list[Cost]]:
    """Every side once to warm up, then in each round all of them; every other round in the opposite order.

    A single round is no measurement, and goes without warming up.
    """
    for side in sides.values() if rounds > 1 else ():
        side()
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 else reversed(sides):
            costs[name].append(sides[name]())
    return costs


def ratio(costs: Sequence[Cost], others: Sequence[Cost]) -> Spread:
    """How much longer than the others, round by round."""
    return Spread.of([one.wall / other.wall for one, other in zip(costs, others, strict=True)])


def machine(rounds: int) -> str:
    """The line above a table: where and how it was measured."""
    names = {line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")}
    cpus, load = f"{os.cpu_count()} × {', '.join(names) or platform.machine()}", f"load {os.getloadavg()[0]:.1f}"
    return f"{cpus}, {load}, Python {platform.python_version()}, {rounds} rounds, median (min to max)"


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
