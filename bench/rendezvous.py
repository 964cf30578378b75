"""Rehearse the rendezvous of N launchers on this machine, with nothing in place of torchrun: time, bytes, CPU, memory.

    python bench/rendezvous.py [--nodes 2 16 64 256] [--rounds 5]

Node 0 is a process of its own, as in a job; the other launchers share two processes and speak the real protocol over
loopback, in turns without SLIPWAY_TOKEN and with one. All are loaded before the clock starts. Agreement is the time from
the start to the last launcher's go, the verdict that from the first report to the last launcher's verdict. CPU and memory
are node 0's alone, and bytes are those of the messages that pass node 0, both ways. Ends after at most two minutes per round.
"""

import argparse
import asyncio
import itertools
import json
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.launch.rendezvous import link
from slipway.launch.rendezvous.codec import decode, encode
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.messages import NodeInfo
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.resolve.connectivity import free_port
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome

TARGETS = {16: 0.2, 256: 2.0}  # seconds to agreement
SECONDS = 120  # for one round, whatever happens
CROWDS = 2  # processes that hold the other launchers


def make_info(node_rank: int, nodes: int) -> NodeInfo:
    """A info as long as that of a node with eight GPUs."""
    return NodeInfo(
        node_rank=node_rank,
        nodes=str(nodes),
        host=f"gpu{node_rank:04}.cluster.example",
        workload="gpt",
        arguments=("--preset", "124m", "--data", "/data/openwebtext", "--batch-size", "12", "--steps", "600000"),
        processes=8,
        backend="nccl",
        version="1.0.0",
        run="gpt-20260101-000000",
        gpus=("NVIDIA H200",) * 8,
        driver="580.82.07",
        torch="2.10.0+cu128",
        nccl="2.27.5",
        image="sha256:" + "0" * 64,
        data="0" * 64,
    )


def wait_for_start() -> float:
    """Say that everything is loaded, and wait for the starting gun; its moment on the monotonic clock."""
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    time.sleep(max(0.0, start - time.monotonic()))
    return start


def count_bytes() -> dict[str, int]:
    """Count the messages' bytes in this process from now on."""
    counts = {"in": 0, "out": 0}

    def counting_encode(message: Any) -> bytes:
        line = encode(message)
        counts["out"] += len(line)
        return line

    def counting_parse(line: bytes) -> Any:
        counts["in"] += len(line)
        return decode(line)

    vars(link).update(encode=counting_encode, decode=counting_parse)
    return counts


def make_config(rank: int, nodes: int, port: int, folder: Path, token: str) -> RendezvousConfig:
    """What each launcher knows of the job."""
    return RendezvousConfig(
        node_rank=rank,
        nodes=nodes,
        address="127.0.0.1",
        port=port,
        timeout=SECONDS,
        folder=folder,
        say=keep_quiet,
        token=token,
    )


def play_node_0(nodes: int, port: int, folder: Path, token: str) -> dict[str, float]:
    """Node 0 with its real Rendezvous; what it cost."""
    import slipway.launch.rendezvous.client
    import slipway.launch.rendezvous.coordinator
    import slipway.launch.rendezvous.server  # noqa: F401

    counts = count_bytes()
    start = wait_for_start()
    before = resource.getrusage(resource.RUSAGE_SELF)
    with Rendezvous(make_config(0, nodes, port, folder, token)) as rendezvous:
        rendezvous.join(make_info(0, nodes))
        go, middle = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        bytes_to_go = counts["in"] + counts["out"]
        synchronise(start)
        rendezvous.report(Outcome(0, "host", "finished", time.time()), lambda verdict, leaving: Ending(verdict))
        end = time.monotonic()
    return {
        "agreement": go - start,
        "verdict": end - start,
        "cpu": middle.ru_utime + middle.ru_stime - before.ru_utime - before.ru_stime,
        "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss) / 1024,
        "bytes": bytes_to_go / nodes,
    }


def synchronise(start: float) -> None:
    """All processes report at the same moment: the next whole five seconds after the start."""
    time.sleep(max(0.0, start + 5.0 * (1 + (time.monotonic() - start) // 5.0) - time.monotonic()))


async def play_crowd(ranks: range, nodes: int, port: int, folder: Path, token: str) -> dict[str, float]:
    """Many launchers in one event loop; when the last of them had go and verdict."""
    from slipway.launch.rendezvous.client import Client

    start = wait_for_start()
    members = {rank: Client(make_config(rank, nodes, port, folder, token)) for rank in ranks}
    await asyncio.gather(*(member.join(make_info(rank, nodes)) for rank, member in members.items()))
    go = time.monotonic()
    synchronise(start)
    reports = (member.report(Outcome(rank, "host", "finished", time.time())) for rank, member in members.items())
    await asyncio.gather(*reports)
    end = time.monotonic()
    for member in members.values():
        await member.leave()
    return {"agreement": go - start, "verdict": end - start}


def keep_quiet(line: str) -> None:
    """Hundreds of launchers would say the same."""


def rehearse(nodes: int, token: str = "") -> dict[str, float]:
    """One rendezvous of N launchers in three processes."""
    port = free_port(0)
    bounds = [1 + (nodes - 1) * part // CROWDS for part in range(CROWDS + 1)]
    roles = [(0, 1), *(pair for pair in itertools.pairwise(bounds) if pair[0] < pair[1])]
    with tempfile.TemporaryDirectory() as folder:
        children = [
            subprocess.Popen(
                [sys.executable, __file__, "--role", json.dumps([*role, nodes, port, folder, token])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for role in roles
        ]
        try:
            results = list(conduct(children))
        finally:
            for child in children:
                child.kill()
                child.wait()
    longest = {name: max(result[name] for result in results) for name in ("agreement", "verdict")}
    return results[0] | longest | {"verdict": longest["verdict"] % 5.0}


def conduct(children: list[subprocess.Popen[str]]) -> Iterator[dict[str, float]]:
    """Fire the gun once all are ready; the children's results."""
    for child in children:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
    start = time.monotonic() + 0.2
    for child in children:
        assert child.stdin
        child.stdin.write(f"{start}\n")
        child.stdin.flush()
    for child in children:
        yield json.loads(child.communicate(timeout=SECONDS)[0])


def play_role(first: int, end: int, nodes: int, port: int, folder: str, token: str) -> dict[str, float]:
    """What one child process does."""
    if first == 0:
        return play_node_0(nodes, port, Path(folder), token)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    return asyncio.run(play_crowd(range(first, end), nodes, port, Path(folder), token))


def main() -> int:
    """Print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 16, 64, 256], metavar="N", help="2 to 1024")
    parser.add_argument("--rounds", type=int, default=5, help="per number of nodes; the table shows the median")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        print(json.dumps(play_role(*json.loads(options.role))))
        return 0
    if not all(2 <= nodes <= 1024 for nodes in options.nodes):
        parser.error("--nodes takes numbers from 2 to 1024")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds, median (min to max)")
    print(
        "nodes   agreement, s             verdict, s   bytes/node   node 0: CPU, s   memory, MiB   with a token   target"
    )
    missed = False
    for nodes in options.nodes:
        pairs = [(rehearse(nodes), rehearse(nodes, secrets.token_hex(16))) for _ in range(options.rounds)]
        rounds, proved = [pair[0] for pair in pairs], statistics.median(pair[1]["agreement"] for pair in pairs)
        seconds = [one["agreement"] for one in rounds]
        middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        target = TARGETS.get(nodes)
        verdict = "" if target is None else f"{target} s: {'met' if middle['agreement'] <= target else 'missed'}"
        missed |= verdict.endswith("missed")
        spread = f"{middle['agreement']:.3f} ({min(seconds):.3f} to {max(seconds):.3f})"
        print(
            f"{nodes:5}   {spread:<23}  {middle['verdict']:10.3f}   {middle['bytes']:10.0f}   {middle['cpu']:14.3f}   "
            f"{middle['memory']:11.1f}   {f'{proved:.3f} s':>12}   {verdict}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
