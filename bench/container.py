"""From `docker run` to the first training step, on one node and on two, against bare torchrun with a plain loop.

    .venv/bench/bin/python bench/container.py [--rounds 8]

Both start from the same image (IMAGE, else slipway:dev), with two processes in all; two nodes are two containers on a
network of their own. Then the same without containers. A first step of Slipway's has everything on: launcher, logs of each
rank, run directory, charts, snapshots; the plain loop (steps.py) has what DistributedDataParallel's tutorial has.
"""

import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from moments import MOMENTS, Start
from report import Report, options_parser, read_options
from sides import Spread
from starts import IMAGE, Command, directly, in_container, see_through

OURS, PEER = "slipway", "torchrun and a plain loop"


def main() -> int:
    """Print the tables; 1 where a target is missed without a reason."""
    options = read_options(options_parser(__doc__))
    report = Report(
        "Start of a container",
        "Wall-clock seconds from `docker run` to the end of the first training step of two CPU processes, with a warm page "
        "cache.",
        options,
    )
    if missing := what_is_missing():
        report.note(f"skipped: {missing}")
        return report.close()
    if not options.smoke:
        measure_docker(report)
    compare(report, "one node, in a container", {OURS: in_container(), PEER: in_container(plain=True)})
    if not options.smoke:
        with network() as name:
            compare(
                report, "two nodes, in containers", {OURS: in_container(name), PEER: in_container(name, plain=True)}, 2
            )
        compare(report, "one node, without containers", {OURS: directly(), PEER: directly(plain=True)})
    return report.close()


def what_is_missing() -> str:
    """Why nothing can be measured here; empty where it can."""
    if not _succeeds("docker", "version"):
        return "no Docker engine answers"
    return "" if _succeeds("docker", "image", "inspect", IMAGE) else f"there is no image {IMAGE}: make image"


def _succeeds(*words: str) -> bool:
    try:
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def network() -> Iterator[str]:
    """A network on which containers know each other's names."""
    name = f"slipway-start-{secrets.token_hex(4)}"
    subprocess.run(["docker", "network", "create", name], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "network", "rm", name], check=True, capture_output=True)


def measure_docker(report: Report) -> None:
    """What Docker itself takes for a container that does nothing, to its end."""
    command = ["docker", "run", "--rm", "--entrypoint", "/bin/true", IMAGE]
    seconds = []
    for _ in range(report.options.rounds):
        began = time.perf_counter()
        subprocess.run(command, check=True)
        seconds.append(time.perf_counter() - began)
    report.table("Docker alone", ["", "s"], [["`docker run` of /bin/true, to its end", str(Spread.of(seconds))]])


def compare(report: Report, setting: str, sides: Mapping[str, Command], nodes: int = 1) -> None:
    """Start both sides in turns; the tables, and whether ours is there first."""
    rounds: list[dict[str, Start]] = []
    for number in range(report.options.rounds + (not report.options.smoke)):
        names = list(sides)[:: 1 if number % 2 else -1]
        rounds.append({name: see_through(sides[name], nodes) for name in names})
    rounds = rounds[not report.options.smoke :]  # the first one only warmed up
    tell_times(report, setting, rounds)
    ratios = Spread.of([row[OURS].moments["stepped"] / row[PEER].moments["stepped"] for row in rounds])
    report.target(f"{setting}: slipway / torchrun", ratios, 1.0, at_most=True, reason=longest_lag(rounds))


def tell_times(report: Report, setting: str, rounds: list[dict[str, Start]]) -> None:
    """Where the time goes, and what both sides cost and learned."""
    rows = []
    for moment, text in MOMENTS.items():
        rows.append([text, *(f"{middle(rounds, name, moment):.2f}" for name in (OURS, PEER))])
    report.table(f"{setting}: seconds until", ["", OURS, PEER], rows)
    whole: dict[str, Callable[[Start], float]] = {
        "first step, s": lambda start: start.moments["stepped"],
        "CPU s of all processes, to their end": lambda start: start.cpu,
        "loss of that step": lambda start: start.loss,
    }
    rows = [
        [text, *(str(Spread.of([value(row[name]) for row in rounds])) for name in (OURS, PEER))]
        for text, value in whole.items()
    ]
    report.table(f"{setting}: in all", ["", OURS, PEER], rows)


def middle(rounds: list[dict[str, Start]], name: str, moment: str) -> float:
    """The median of a side's seconds to a moment."""
    return statistics.median(row[name].moments[moment] for row in rounds)


def longest_lag(rounds: list[dict[str, Start]]) -> str:
    """What a missed target rests on: both CPU times, and between which two moments of its workers slipway loses most."""
    before, lags = 0.0, {}
    # Up to there our workers go side by side with torchrun, and the peer's one after it.
    for moment in list(MOMENTS)[list(MOMENTS).index("worker has torch") :]:
        lag = middle(rounds, OURS, moment) - middle(rounds, PEER, moment)
        lags[MOMENTS[moment].strip()], before = lag - before, lag
    worst = max(lags, key=lags.__getitem__)
    ours, peer = (statistics.median(row[name].cpu for row in rounds) for name in (OURS, PEER))
    cpu = f"all nodes share {os.cpu_count()} processors, and it takes {ours:.1f} s of CPU time against {peer:.1f} s"
    return f"{cpu}; it loses most, {lags[worst]:.2f} s, before “{worst}”"


if __name__ == "__main__":
    sys.exit(main())
