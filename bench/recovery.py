"""From SIGKILL to the next step, and where the time goes: on one node, on two, and where a container or a node is replaced.

    .venv/bench/bin/python bench/recovery.py [--rounds 40] [--gpus 8 | --spares]

A kill hits a random rank that has made steps for a second since the last snapshot on the disk, so that there is no pause
between the attempts. A container is killed whole, and another takes its place at once; beside it stands what both take from
`docker run` to their job's first step, in the same round. The script's rows are from the kill to its first line, and to the first
step of all ranks, for warm restarts and cold ones (SLIPWAY_WARM=0), which take turns. What is made
again is told in seconds of training: the steps between the kill and where the job went on, at the pace it had before. With --gpus
one node with so many GPUs is measured, with a rank on each. With --spares, whole nodes of a job of two nodes and a spare one
are killed, and nothing else.
"""

import argparse
import functools
import hashlib
import itertools
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container import network, what_is_missing
from report import Report, options_parser, read_options
from sides import Spread
from starts import IMAGE, INSIDE, user

SCRIPT = """
import os, time
{first}
print("begun", os.getpid(), flush=True)
import torch, torch.distributed as dist
device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in {steps}:
    optimizer.zero_grad()
    loss = model(torch.ones(8, 64, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    if "done" not in globals():
        done = loss.item()
        print("stepped", os.getpid(), flush=True)
    time.sleep(0.05)
"""
RESUMES = "__import__('slipway').resume(model=model, optimizer=optimizer).steps(1_000_000)"
SCRIPTS = {
    "own.py": SCRIPT.format(first="", steps="range(1_000_000)"),
    "resumes.py": SCRIPT.format(first="", steps=RESUMES),
    "chooses.py": SCRIPT.format(first='os.environ["CUDA_VISIBLE_DEVICES"] = "0"', steps="range(1_000_000)"),
}
TINY = (
    *("gpt", "--preset", "tiny", "--steps", "1000000"),
    *("--save-every", "20", "--eval-every", "0", "--log-every", "1"),
)
PARTS = (
    "noticed, and its end",
    "verdict, next attempt",
    "until workers begin",
    "process group",
    "until the first step",
)
STEP = re.compile(r"step (\d+)/\d+")
PATIENCE = 120.0  # s
KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH")
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
CORES = sorted(os.sched_getaffinity(0))
PER_JOB = 4  # containers that are replaced in one job


class Node:
    """A launcher under way; `lines` are what it said, with the time of each."""

    def __init__(self, words: Sequence[str], folder: Path, variables: Mapping[str, str], container: str = "") -> None:
        """Start it in a folder; as a `container`, its name, where one is given."""
        self.container, self.lines = container, list[tuple[float, str]]()
        environ = {name: os.environ[name] for name in KEPT if name in os.environ} | variables
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append((time.time(), line))

    def said(self, pattern: str, since: float = 0.0) -> Iterator[float]:
        """When it said lines with this pattern after a moment, the newest first."""
        later = itertools.takewhile(lambda said: said[0] > since, reversed(self.lines))
        return (at for at, line in later if re.search(pattern, line))

    def kill(self) -> None:
        """End it at once, with its container."""
        if self.container:
            subprocess.run(["docker", "kill", self.container], capture_output=True)
        else:
            self.process.kill()
        self.process.wait()


class Job:
    """A job of one or several nodes, with all its files in one folder; the last of `nodes` is the newest of its rank."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder, self.ranks, self.nodes = folder, ranks, list[Node]()

    def wait_for(self, ask: Callable[[], Any]) -> Any:
        """What is answered first that is not None or False. RuntimeError with its last lines where the job ends before."""
        until = time.monotonic() + PATIENCE
        while (answer := ask()) in (None, False):
            if time.monotonic() > until or all(node.process.poll() is not None for node in self.nodes):
                raise RuntimeError("".join(line for node in self.nodes for _, line in node.lines[-30:]))
            time.sleep(0.002)
        return answer

    def said(self, words: str, since: float) -> tuple[float, str]:
        """When node 0 said something after a moment, and its line."""
        return self.wait_for(  # type: ignore[no-any-return]
            lambda: next(
                ((at, line) for at, line in reversed(self.nodes[0].lines) if at >= since and words in line), None
            )
        )

    def beat(self, rank: int, since: float = 0.0) -> dict[str, Any]:
        """What a rank wrote down last, after a moment; empty where it has not."""
        with suppress(OSError, ValueError, StopIteration):
            file = next(self.folder.glob(f"runs/*/node-*/heartbeat/rank-{rank}.json"))
            told: dict[str, Any] = json.loads(file.read_text()) if file.stat().st_mtime >= since else {}
            return told
        return {}

    def step(self) -> int:
        """The newest step of rank 0."""
        return int(self.beat(0).get("step", 0))

    def trains_on(self) -> None:
        """Return a second or two after it has made 25 more steps."""
        before = self.step()
        self.wait_for(lambda: self.step() > before + 25)
        time.sleep(1 + random.random())

    def recovery(self, killed: float, failed: str) -> tuple[list[float], float]:
        """Of a kill at this moment, which node 0 calls `failed`: the seconds of PARTS, and of training that are made again."""
        moments = [killed, self.said(failed, killed)[0], self.said(", attempt ", killed)[0]]
        later = moments[-1]
        for passed in ((), ("setup",), ("setup", "prepare", "load", "first-step", "data")):

            def reached(passed: tuple[str, ...] = passed) -> bool:
                beats = [self.beat(rank, later) for rank in range(self.ranks)]
                return all(beat and beat["phase"] not in passed for beat in beats)

            self.wait_for(reached)
            moments.append(time.time())
        return [after - then for then, after in itertools.pairwise(moments)], self.made_again(killed)

    def made_again(self, killed: float) -> float:
        """Seconds of training, at the pace of the last twenty steps, between where the job was and where it went on."""
        steps = [
            (at, int(found[1])) for at, line in [*self.nodes[0].lines] if at <= killed and (found := STEP.search(line))
        ][-20:]
        pace = (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])
        _, line = self.said("resuming from ", killed)
        return max(0, steps[-1][1] - int(line.partition("step-")[2][:8])) * pace


@contextmanager
def job(ranks: int = 2) -> Iterator[Job]:
    """A job of so many ranks in a folder of its own; its nodes are killed at the end."""
    folder = Path(tempfile.mkdtemp())
    for name, script in SCRIPTS.items():
        (folder / name).write_text(script)
    under_way = Job(folder, ranks)
    try:
        yield under_way
    finally:
        for node in under_way.nodes:
            node.kill()
        time.sleep(0.5)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def launched(*words: str, nodes: int = 1, gpus: int = 0, **variables: str) -> Iterator[Job]:
    """A job of two processes on one node or on two, which are launchers of this machine; of one on each of its `gpus`, if any."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with job(gpus or 2) as under_way:
        for rank in range(nodes):
            several = {"RANK": str(rank), "WORLD_SIZE": str(nodes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            told = variables | {"NPROC_PER_NODE": str((gpus or 2) // nodes)} | (several if nodes > 1 else {})
            told |= {} if gpus else WITHOUT_GPU
            command = ["taskset", "--cpu-list", share_of_cores(rank, nodes), sys.executable, "-m", "slipway", *words]
            under_way.nodes.append(Node(command, under_way.folder, told))
        yield under_way


def share_of_cores(rank: int, nodes: int) -> str:
    """The cores of a node, as `taskset` and `docker run` take them."""
    return ",".join(map(str, CORES[rank * len(CORES) // nodes : (rank + 1) * len(CORES) // nodes] or CORES))


@dataclass(frozen=True)
class Course:
    """What the kills of a kind cost: the seconds of PARTS, and of training that was made again."""

    parts: list[list[float]]
    again: list[float]

    @property
    def whole(self) -> list[float]:
        """From kill to step."""
        return [sum(parts) for parts in self.parts]


def kill_ranks(under_way: Job, rounds: int) -> Course:
    """Kill a random rank so many times."""
    under_way.wait_for(under_way.step)
    found = []
    for _ in range(rounds):
        under_way.trains_on()
        killed = time.time()
        os.kill(under_way.beat(random.randrange(under_way.ranks))["pid"], signal.SIGKILL)
        found.append(under_way.recovery(killed, "the workload failed"))
    return Course(*(list(column) for column in zip(*found, strict=True)))


def replace_containers(rounds: int) -> tuple[Course, list[float]]:
    """Kill node 1's container and start another, so many times; with the seconds of each job's own start."""
    found, starts = [], []
    while len(found) < rounds:
        with network() as name, job() as under_way:
            mark = secrets.token_hex(3)

            def start(rank: int, name: str = name, mark: str = mark, under_way: Job = under_way) -> Node:
                container = f"slipway-recovery-{mark}-{len(under_way.nodes)}"
                environ = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": f"slipway-recovery-{mark}-0"}
                given = [word for key, value in environ.items() for word in ("--env", f"{key}={value}")]
                place = ["--network", name, "--user", user(), "--volume", f"{under_way.folder}/runs:{INSIDE}"]
                place += ["--cpuset-cpus", share_of_cores(rank, 2)]
                words = ["docker", "run", "--rm", "--name", container, *place, *given, IMAGE, *TINY]
                return Node([*words, "--nproc-per-node", "1"], under_way.folder, WITHOUT_GPU, container)

            (under_way.folder / "runs").mkdir()
            began = time.time()
            for rank in range(2):
                under_way.nodes.append(start(rank))
            under_way.said("step 1/", began)
            starts.append(time.time() - began)
            for _ in range(min(PER_JOB, rounds - len(found))):
                under_way.trains_on()
                killed = time.time()
                under_way.nodes[-1].kill()
                under_way.nodes.append(start(1))
                found.append(under_way.recovery(killed, "a node was lost"))
    return Course(*(list(column) for column in zip(*found, strict=True))), starts


WAITS = 5.0  # s that a spare node waits before it is needed: it imports torch meanwhile


def replace_nodes(rounds: int) -> tuple[dict[bool, list[float]], bool]:
    """Kill whole nodes of a job of two nodes and a spare one, and start another launcher of the same rank each time, with an
    empty disk, which is the next spare node. Seconds from each kill to the next step, by whether it hit the node that led the
    job; and whether the weights at the end are those of an undisturbed run, bit for bit.

    The others notice a kill at once, since a connection closes.
    """
    taken: dict[bool, list[float]] = {True: [], False: []}
    with socket.create_server(("127.0.0.1", 0)) as free:
        several = {"WORLD_SIZE": "2+1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    with job() as under_way:

        def start(processes: int, *more: str, **told: str) -> Node:
            place = ("--runs", f"disk-{len(under_way.nodes)}")
            words = ("run", *TINY, "--schedule", "constant", "--sample-tokens", "0", *more, *place)
            told |= WITHOUT_GPU | {"OMP_NUM_THREADS": "1", "NPROC_PER_NODE": str(processes)}
            under_way.nodes.append(Node([sys.executable, "-m", "slipway", *words], under_way.folder, told))
            return under_way.nodes[-1]

        there = {rank: start(1, RANK=str(rank), **several) for rank in range(3)}
        under_way.wait_for(lambda: any(any(node.said(STEP.pattern)) for node in there.values()))
        running, spare = [0, 1], 2
        for _ in range(rounds):
            under_way.wait_for(lambda node=there[spare]: any(node.said("runs without this spare node, which waits")))
            time.sleep(WAITS + random.random())
            leader = max(running, key=lambda rank: next(there[rank].said(STEP.pattern), 0.0))
            victim, killed = random.choice(running), time.time()
            there[victim].kill()
            left = [node for rank, node in there.items() if rank != victim]
            stepped = under_way.wait_for(functools.partial(stepped_again, left, killed))
            taken[victim == leader].append(stepped - killed)
            which = "the node that led" if victim == leader else "the other node"
            print(f"  {which} (RANK={victim}): {stepped - killed:.2f} s", flush=True)
            running, spare = [spare, *(rank for rank in running if rank != victim)], victim
            there[victim] = start(1, RANK=str(victim), **several)
        there[running[0]].process.send_signal(signal.SIGINT)  # the job ends, with a snapshot of this step
        for rank in running:
            there[rank].process.wait(PATIENCE)
        step, _ = last_weights(under_way.folder)
        start(2, "--steps", str(step)).process.wait()
        step, weights = last_weights(under_way.folder)
    return taken, len(weights) == 3 and len(set(weights)) == 1


def stepped_again(nodes: Sequence[Node], killed: float) -> float | None:
    """When one of these nodes said the first step after a kill that is no more of the attempt before; None before that."""
    resumed = [(node, at) for node in nodes for at in node.said("resuming from ", killed)]
    return min((at for node, since in resumed for at in node.said(STEP.pattern, since)), default=None)


def last_weights(folder: Path) -> tuple[int, list[str]]:
    """The step of the newest snapshots on the disks of a job, and a checksum of the weights in each of them."""
    found = [*folder.glob("disk-*/*/snapshots/step-????????")]
    newest = [one for one in found if one.name == max(one.name for one in found)]
    files = [b"".join(file.read_bytes() for file in sorted(one.glob("*.safetensors"))) for one in newest]
    return int(newest[0].name[5:]), [hashlib.sha256(content).hexdigest() for content in files]


def recover_with_spares(report: Report, rounds: int) -> None:
    """The table and the target of a job with a spare node."""
    taken, equal = replace_nodes(rounds)
    rows = [
        [what, str(len(seconds)), f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"]
        for what, seconds in (("the node that led", taken[True]), ("the other node", taken[False]))
        if seconds
    ]
    report.table(
        "gpt --preset tiny on two nodes and a spare one, a whole node killed, seconds to the next step",
        ["killed", "kills", "median", "worst"],
        rows,
    )
    whole = Spread.of([*taken[True], *taken[False]])
    report.target("two nodes and a spare one, SIGKILL of a node to a new step", whole, 3.0, "s", at_most=True)
    if not equal:
        raise RuntimeError("the weights at the end differ from those of an undisturbed run")
    report.note("the weights at the end are those of an undisturbed run, bit for bit")


# s that a script runs before it is killed: the process for its next attempt imports torch meanwhile. Beside GPUs cores are free.
SETTLES, SETTLES_BESIDE_GPUS = 20.0, 8.0


def restart_script(under_way: Job, settles: float) -> tuple[float, float]:
    """Kill a rank of a script; seconds until its first line, and until all ranks have made a step."""
    lines = under_way.nodes[0].lines

    def said(word: str, since: float = 0.0) -> list[tuple[float, int]]:
        return [(at, int(line.split()[-1])) for at, line in lines if at > since and word in line]

    ranks = under_way.ranks
    under_way.wait_for(lambda: len(said("stepped")) >= ranks)
    time.sleep(settles + random.random())
    pids = [pid for _, pid in said("stepped")[-ranks:]]
    killed = time.time()
    os.kill(random.choice(pids), signal.SIGKILL)
    under_way.wait_for(lambda: len(said("stepped", killed)) == ranks)
    return said("begun", killed)[0][0] - killed, said("stepped", killed)[-1][0] - killed


def restart_scripts(rounds: int, script: str = "own.py", gpus: int = 0) -> dict[str, list[tuple[float, float]]]:
    """So many restarts of a script, warm and cold in turn."""
    found: dict[str, list[tuple[float, float]]] = {"1": [], "0": []}
    for _ in range(rounds):
        for warm, seconds in found.items():
            told = {"SLIPWAY_MAX_RESTARTS": "1", "SLIPWAY_PROGRESS_SECONDS": "5", "SLIPWAY_WARM": warm}
            with launched("run", script, gpus=gpus, **told) as under_way:
                seconds.append(restart_script(under_way, SETTLES_BESIDE_GPUS if gpus else SETTLES))
    return found


def tell(report: Report, what: str, course: Course) -> Spread:
    """The table of a kind of kill; returns the seconds from kill to step."""
    named = {**dict(zip(PARTS, zip(*course.parts, strict=True), strict=True)), "kill to step": course.whole}
    rows = [
        [name, f"{statistics.median(values):.2f}", f"{max(values):.2f}"]
        for name, values in {**named, "training made again": course.again}.items()
    ]
    report.table(f"{what}, {len(course.parts)} kills, seconds", ["", "median", "worst"], rows)
    return Spread.of(course.whole)


def recover_gpus(options: argparse.Namespace) -> int:
    """The tables of one node with GPUs: a workload, and three scripts, one of which chooses its GPU in its first line."""
    report = Report("Recovery on GPUs", "SIGKILL of one rank; each has a GPU.", options)
    with launched(*TINY, gpus=options.gpus) as under_way:
        course = kill_ranks(under_way, options.rounds)
    tell(report, f"gpt --preset tiny on one node, {options.gpus} GPU{'s' * (options.gpus > 1)}", course)
    report.target("training made again", Spread.of(course.again), 1.0, "s", at_most=True)
    rows = []
    for script in SCRIPTS:
        if script == "chooses.py" and options.gpus > 1:
            continue  # all of its ranks would choose the same GPU
        found = restart_scripts(max(1, options.rounds // 4), script, options.gpus)
        rows.append([script, *(Spread.of([step for _, step in found[warm]]).told(2) for warm in ("1", "0"))])
    columns = ["script", "warm", "SLIPWAY_WARM=0"]
    report.table("A script, seconds from the kill to the next step of all ranks", columns, rows)
    return report.close()


def main() -> int:
    """Print the tables; 1 where a target is missed for no known reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--gpus", type=int, default=0, help="one node with so many GPUs")
    parser.add_argument("--spares", action="store_true", help="two nodes and a spare one")
    options = read_options(parser)
    rounds = options.rounds
    if options.gpus:
        return recover_gpus(options)
    report = Report("Recovery", "One of two ranks on this machine is killed with SIGKILL.", options)
    if options.spares:
        recover_with_spares(report, rounds)
        return report.close()
    again = []
    for nodes, limit, worst in ((1, 2.0, 4.0), (2, 2.5, None)):
        where = "one node" if nodes == 1 else "two nodes"
        with launched(*TINY, nodes=nodes) as under_way:
            course = kill_ranks(under_way, rounds)
        whole = tell(report, f"gpt --preset tiny on {where}", course)
        report.target(f"{where}, SIGKILL of a rank to a new step", whole, limit, "s", at_most=True)
        if worst:
            report.target(f"{where}, the same, the worst", Spread.of([whole.most]), worst, "s", at_most=True)
        again += course.again
    with launched(*TINY, SLIPWAY_WARM="0") as under_way:
        tell(report, "gpt --preset tiny on one node, SLIPWAY_WARM=0", kill_ranks(under_way, max(1, rounds // 8)))
    if missing := what_is_missing():
        report.note(f"skipped: containers: {missing}")
    else:
        course, starts = replace_containers(rounds)
        whole = tell(report, "two containers, one killed and replaced", course)
        begun = statistics.median(starts)
        report.note(f"both containers' own start, from `docker run` to step 1: {Spread.of(starts).told(2, ' s')}")
        beyond = Spread(*(seconds - begun for seconds in (whole.median, whole.least, whole.most)))
        report.target("two containers, replaced, beyond their own start", beyond, 2.5, "s", at_most=True)
        again += course.again
    recover_with_spares(report, max(1, rounds // 2))
    report.target("training made again", Spread.of(again), 1.0, "s", at_most=True)
    scripts = restart_scripts(max(1, rounds // 4))
    report.target(
        "own script, kill to its first line", Spread.of([first for first, _ in scripts["1"]]), 1.0, "s", at_most=True
    )
    steps = {name: Spread.of([step for _, step in scripts[warm]]) for name, warm in (("warm", "1"), ("cold", "0"))}
    report.note(
        "; ".join(
            f"own script, kill to a step of all ranks, {name}: {spread.told(2, ' s')}" for name, spread in steps.items()
        )
    )
    shares = Spread.of([warm / cold for (_, warm), (_, cold) in zip(scripts["1"], scripts["0"], strict=True)])
    report.target("own script, kill to a step, warm against cold", shares, 0.5, "×", at_most=True)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
