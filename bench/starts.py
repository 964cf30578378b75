"""Starts of training, as containers and as programs of this machine: what is started, and when it came how far.

Every Python that has to do with a start loads TRACE and notes when it began, and when torch was there; the rest is what the
workload leaves: Slipway's run directory, or what the plain loop (steps.py) prints. One machine, so one clock.
"""

import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 300.0  # s for one start

# What a start comes to, in this order; of several processes and nodes the last one counts.
MOMENTS = {
    "first Python": "the first Python runs",
    "torchrun": "torchrun's Python runs",
    "torchrun has torch": "  which has imported torch",
    "worker": "the workers' Pythons run",
    "worker has torch": "  which have imported torch",
    "imported": "  and all that stands at the top of the program",
    "ready": "group, data, model and DDP are there",
    "stepped": "the first training step is done",
}

# Python imports this module at its start. The worker that Slipway starts has the name of its module on its command line.
TRACE = """
import atexit, os, sys, time
from importlib.machinery import PathFinder
words = " ".join(sys.orig_argv)
role = "launcher"
if "--nnodes" in words:
    role = "torchrun"
elif "slipway.train" in words or "steps.py" in words:
    role = "worker"
def mark(what):
    file = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{time.time():.4f} {sum(os.times()[:4]):.2f} {what}\\n".encode())
    os.close(file)
class Torch:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def timed(module):
            load(module)
            mark(role + " has torch")
        spec.loader.exec_module = timed
        return spec
if role != "launcher":
    sys.meta_path.insert(0, Torch())
    mark(role)
mark("first Python")
atexit.register(lambda: mark("end"))
"""


@dataclass(frozen=True)
class Start:
    """A start that was seen through: seconds from its beginning to each moment, CPU seconds to its end, the first loss."""

    moments: Mapping[str, float]
    cpu: float
    loss: float


@dataclass(frozen=True)
class Node:
    """One node of a start: its rank, the job's name, and a folder for all that it leaves."""

    rank: int
    job: str
    folder: Path

    @property
    def name(self) -> str:
        """What its container is called."""
        return f"{self.job}-{self.rank}"

    def traced(self, folder: str) -> dict[str, str]:
        """The variables that make its Pythons note their moments, where the folder is called `folder`."""
        return {"PYTHONPATH": folder, "MARKS": f"{folder}/marks"}


Command = Callable[[Node], tuple[list[str], Mapping[str, str]]]  # what is typed for a node, and its environment


def see_through(command: Command, nodes: int = 1) -> Start:
    """Start the nodes of a job at once and see them to their end. Raises RuntimeError where one fails."""
    with tempfile.TemporaryDirectory() as name:
        job = f"slipway-start-{secrets.token_hex(4)}"
        places = [Node(rank, job, Path(name, str(rank))) for rank in range(nodes)]
        for node in places:
            node.folder.mkdir()
            (node.folder / "sitecustomize.py").write_text(TRACE)
            (node.folder / "marks").touch()
        began = time.time()
        processes = [begin(node, *command(node)) for node in places]
        try:
            for node, process in zip(places, processes, strict=True):
                if code := process.wait(PATIENCE):
                    raise RuntimeError(f"{process.args!r} ended with {code}:\n{said(node)[-3000:]}")
        finally:
            for process in processes:
                process.kill()
        return read_start([node.folder for node in places], began)


def begin(node: Node, words: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a node, with all that it says in a file."""
    with (node.folder / "said").open("wb") as file:
        return subprocess.Popen(words, cwd=node.folder, env=environ, stdout=file, stderr=subprocess.STDOUT)


def said(node: Node) -> str:
    """What a node printed."""
    return (node.folder / "said").read_text(errors="replace")


def read_start(folders: Sequence[Path], began: float) -> Start:
    """What the nodes left in their folders. Node 0's rank 0 tells of the training."""
    moments: dict[str, float] = {}
    cpu = 0.0
    for folder in folders:
        marks = [line.split(" ", 2) for line in (folder / "marks").read_text().splitlines()]
        cpu += max(float(used) for _, used, _ in marks)  # the first process of all counts those that it waited for
        for what in {what for _, _, what in marks}:
            times = [float(when) for when, _, mark in marks if mark == what]
            moments[what] = max(moments.get(what, 0.0), min(times) if what == "first Python" else max(times))
    runs = list(folders[0].glob("*/run.json"))
    told, loss = read_run(runs[0].parent, folders) if runs else read_lines(folders[0] / "said")
    moments |= told
    return Start({name: moments[name] - began for name in MOMENTS}, cpu, loss)


def read_run(run: Path, folders: Sequence[Path]) -> tuple[dict[str, float], float]:
    """The moments and the first loss that a run directory tells of: its files are written once, when they are due."""
    joining = [file.stat().st_mtime for folder in folders for file in folder.glob("*/node-*/honours-stop")]
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    ready = (run / "options.json").stat().st_mtime
    return {"imported": max(joining), "ready": ready, "stepped": first["time"]}, first["loss"]


def read_lines(file: Path) -> tuple[dict[str, float], float]:
    """The same of the lines that steps.py prints."""
    lines = [line.split() for line in file.read_text(errors="replace").splitlines() if line.startswith("moment ")]
    loss = next(float(line[3]) for line in lines if line[2] == "loss")
    return {line[2]: float(line[1]) for line in lines}, loss
