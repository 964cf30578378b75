"""Starts of training, as containers and as programs of this machine: what is typed, and how it is seen to its end."""

import functools
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moments import MARKS, SAID, Start, read_start

PATIENCE = 300.0  # s for one start
TRACED, LOOP = (Path(__file__).with_name(name) for name in ("traced", "steps.py"))
PROGRAMS = Path(__file__).parents[1] / ".venv/bin"
IMAGE = os.environ.get("IMAGE", "slipway:dev")
INSIDE = "/checkpoints"  # where a node's folder is in its container; to Slipway it holds the runs
# What follows the first step is kept short.
TRAINS = ["gpt", "--preset=tiny", "--steps=1", "--eval-samples=64", "--sample-tokens=0"]


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


Command = Callable[[Node], tuple[list[str], Mapping[str, str]]]  # what is typed for a node, and its environment


def in_container(network: str = "", plain: bool = False) -> Command:
    """A node in a container of the image; with a `network` one of two nodes, with a process each."""

    def command(node: Node) -> tuple[list[str], Mapping[str, str]]:
        master = f"{node.job}-0" if network else "127.0.0.1"
        environ = {"PYTHONPATH": "/traced", "MARKS": f"{INSIDE}/{MARKS}", "OMP_NUM_THREADS": "1"}
        words = ["--name", node.name, "--user", user(), "--shm-size", "1g"]
        words += ["--network", network] if network else []
        words += ["--volume", f"{TRACED}:/traced:ro", "--volume", f"{node.folder}:{INSIDE}"]
        if plain:
            words += ["--entrypoint", "torchrun", "--volume", f"{LOOP}:/{LOOP.name}:ro"]
            program = [*torchrun(2 if network else 1, node.rank, master), f"/{LOOP.name}"]
        else:
            program = [*TRAINS, f"--nproc-per-node={1 if network else 2}"]
            if network:
                environ |= {"RANK": str(node.rank), "WORLD_SIZE": "2", "MASTER_ADDR": master}
        given = [word for name, value in environ.items() for word in ("--env", f"{name}={value}")]
        return ["docker", "run", "--rm", *words, *given, IMAGE, *program], os.environ

    return command


@functools.cache
def user() -> str:
    """Whom containers run as, so that what they leave is ours: in a rootless engine root inside is the caller outside."""
    engine = subprocess.run(["docker", "info", "--format", "{{.SecurityOptions}}"], capture_output=True, text=True)
    return "0:0" if "rootless" in engine.stdout else f"{os.getuid()}:0"


def directly(plain: bool = False) -> Command:
    """A node without a container, from this checkout."""

    def command(node: Node) -> tuple[list[str], Mapping[str, str]]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(node.folder), "CUDA_VISIBLE_DEVICES": ""}
        environ |= {"PYTHONPATH": str(TRACED), "MARKS": str(node.folder / MARKS)}
        environ |= {"SLIPWAY_RUNS": str(node.folder), "OMP_NUM_THREADS": "1"}
        if plain:
            return [str(PROGRAMS / "torchrun"), *torchrun(1, 0, "127.0.0.1"), str(LOOP)], environ
        return [str(PROGRAMS / "slipway"), *TRAINS, "--nproc-per-node=2"], environ

    return command


def torchrun(nodes: int, rank: int, master: str) -> list[str]:
    """Torchrun's own options, with its static rendezvous, the faster one."""
    return [
        f"--nnodes={nodes}", f"--node-rank={rank}", f"--nproc-per-node={2 // nodes}",
        f"--master-addr={master}", "--master-port=29511",
    ]  # fmt: skip


def see_through(command: Command, nodes: int = 1) -> Start:
    """Start the nodes of a job at once and see them to their end. Raises RuntimeError where one fails."""
    with tempfile.TemporaryDirectory() as name:
        job = f"slipway-start-{secrets.token_hex(4)}"
        places = [Node(rank, job, Path(name, str(rank))) for rank in range(nodes)]
        for node in places:
            node.folder.mkdir()
            (node.folder / MARKS).touch()
        began = time.time()
        processes = [begin(node, *command(node)) for node in places]
        try:
            for node, process in zip(places, processes, strict=True):
                if code := process.wait(PATIENCE):
                    raise RuntimeError(f"{process.args!r} ended with {code}:\n{said(node)[-3000:]}")
        finally:
            for node, process in zip(places, processes, strict=True):
                if process.poll() is None:
                    process.kill()
                    with suppress(OSError):  # without Docker there is no container to remove
                        subprocess.run(["docker", "rm", "--force", node.name], capture_output=True)
        return read_start([node.folder for node in places], began)


def begin(node: Node, words: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a node, with all that it says in a file."""
    with (node.folder / SAID).open("wb") as file:
        return subprocess.Popen(words, cwd=node.folder, env=environ, stdout=file, stderr=subprocess.STDOUT)


def said(node: Node) -> str:
    """What a node printed."""
    return (node.folder / SAID).read_text(errors="replace")
