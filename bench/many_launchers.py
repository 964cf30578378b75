"""Simulate the rendezvous of thousands of launchers: how long until all agree, and what each of them costs node 0.

    python bench/many_launchers.py [--nodes 512 2000 10000]

All launchers run the product's code in one process, on the network and the clock of the simulation (tests/sim/crowd.py), and
start in the same moment. Each callback of node 0 is timed (CPU seconds), and the virtual clock moves on by that time. System
calls are not made in the simulation. What they cost is measured first: bench/rendezvous.py runs 512 real launchers over
loopback, and the CPU time that their node 0 used beyond a simulated one's is divided by the number of its messages.
Takes about two minutes and 1.5 GB of memory for 10,000.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/sim"))

from crowd import TRAINING, Cost, Crowd
from rendezvous import make_info, rehearse

REAL = 512  # launchers that are really run
TARGET = 10.0  # seconds until all agree


def measure(callback: Callable[..., object], args: tuple[object, ...]) -> float:
    """Run a callback; its CPU seconds."""
    began = time.thread_time()
    callback(*args)
    return time.thread_time() - began


def simulate(nodes: int, message_seconds: float) -> dict[str, Cost]:
    """The life of a job of so many nodes."""
    with tempfile.TemporaryDirectory() as folder:
        return Crowd([make_info(rank, nodes) for rank in range(nodes)], Path(folder), measure, message_seconds).live()


def calibrate() -> float:
    """CPU seconds of the system calls for one message, from REAL launchers; prints what was measured."""
    real, simulated = rehearse(REAL), simulate(REAL, 0.0)["agreement"]
    seconds = max(0.0, real["cpu"] - simulated.busy) / simulated.messages
    print(
        f"{REAL} real launchers: agreed in {real['agreement']:.2f} s, node 0 used {real['cpu']:.3f} s of CPU and "
        f"{real['memory'] / REAL * 1024:.0f} KiB per node; simulated: {simulated.busy:.3f} s. "
        f"System calls: {seconds * 1e6:.0f} µs per message.",
        flush=True,
    )
    return seconds


def main() -> int:
    """Print the table; 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[512, 2000, 10_000], metavar="N", help="3 to 60000")
    options = parser.parse_args()
    if not all(3 <= nodes <= 60_000 for nodes in options.nodes):
        parser.error("--nodes takes numbers from 3 to 60000")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    message_seconds = calibrate()
    print(
        "nodes   all agree after, s   node 0: CPU per node, ms   KiB per node   heartbeats: node 0's CPU   "
        "lost node known after, s   verdict, s"
    )
    missed = False
    for nodes in options.nodes:
        costs = simulate(nodes, message_seconds)
        agreement = costs["agreement"]
        missed |= agreement.seconds > TARGET
        print(
            f"{nodes:5}   {agreement.seconds:18.2f}   {agreement.busy / nodes * 1e3:24.2f}   "
            f"{agreement.bytes / nodes / 1024:12.1f}   {costs['training'].busy / TRAINING:22.1%}   "
            f"{costs['lost'].seconds:25.2f}   {costs['verdict'].seconds:10.2f}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
