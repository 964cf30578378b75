"""A job of several nodes on a real engine: each is a container with a disk of its own, and all are on one network."""

import json
import re
import shlex
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from contained import ContainerJob
from containers import PATIENCE, Container, Containers, as_oneself, docker, fresh_name
from scene import COURSE, INSIDE, Scene
from waiting import wait_until

from slipway.protocol.snapshots import snapshot_name

# In fp32: one node takes sums in another order than two, and what bf16 makes of that grows to a share of 2.5e-5 of the loss,
# in fp32 to 2e-9.
JOB = (
    "gpt", "--layers", "1", "--heads", "2", "--embed", "32", "--context", "32", "--eval-samples", "16",
    "--sample-tokens", "0", "--precision", "fp32", *COURSE,
)  # fmt: skip
# A node that is silent for 4 s is lost.
SETTINGS = {
    "NPROC_PER_NODE": "1",
    "MASTER_ADDR": "node-0",
    "SLIPWAY_HEARTBEAT_TIMEOUT": "4",
    "SLIPWAY_ELASTIC_WINDOW": "3",
    "SLIPWAY_RENDEZVOUS_TIMEOUT": "60",
}


@dataclass(frozen=True)
class Moment:
    """Where a rank is held (see sitecustomize), and the step of the snapshot that the other nodes have then."""

    saved: int
    place: dict[str, object]

    @property
    def fault(self) -> dict[str, object]:
        """As sitecustomize takes it."""
        return {"do": "hold", **self.place}


@dataclass(frozen=True)
class Clock:
    """How many seconds the clock of a node is ahead until the node is released, and from then on."""

    ahead: tuple[float, float]

    @property
    def fault(self) -> dict[str, object]:
        """As sitecustomize takes it."""
        return {"do": "set_clock", "ahead": self.ahead}


TRAINING = Moment(20, {"beat": ("train", 25, 3)})


class Node(ContainerJob):
    """A container of the job. `fresh`: its disk was empty when it joined a job that was under way."""

    def __init__(self, container: Container, network: str, rank: int, disk: Path, fresh: bool) -> None:
        super().__init__(container)
        self.network, self.rank, self.disk, self.fresh = network, rank, disk, fresh
        self.name = container.name

    @property
    def run(self) -> Path:
        """Its run directory, seen from here."""
        [run] = self.disk.glob("gpt-*")
        return run

    @property
    def attempt(self) -> int:
        """The number of its newest attempt, as it said itself."""
        told = re.findall(r"run directory .*?(?:, attempt (\d+))?$", self.text, re.MULTILINE)
        return int(told[-1] or 1)

    def stacks(self) -> bool:
        """Whether its rank printed where it stood."""
        return "most recent call first" in (self.run / f"node-{self.rank}/logs/rank-{self.rank}.log").read_text()

    def hear(self, words: str, times: int) -> None:
        """Wait until it has said something so many times."""
        said = self.container.has_said
        wait_until(lambda: said(words, times), lambda: f"{words!r} again:\n{self.text}", PATIENCE, every=0.2)

    def wait_for_file(self, pattern: str) -> None:
        """Wait until its run directory holds such a file."""
        wait_until(
            lambda: list(self.disk.glob(f"gpt-*/{pattern}")), lambda: f"{pattern}:\n{self.text}", PATIENCE, every=0.05
        )

    def release(self) -> None:
        (self.disk / "go").touch()

    def kill(self) -> None:
        """SIGKILL to its first process: everything in the container ends without a word."""
        docker("kill", self.name)

    @property
    def worker(self) -> str:
        """The process id of its rank, in the container."""
        record = (self.run / f"node-{self.rank}/heartbeat/rank-{self.rank}.json").read_text()
        [pid] = re.findall(r'"pid": (\d+)', record)
        return str(pid)

    def kill_worker(self) -> None:
        self.kill_process(self.worker)

    def kill_process(self, pid: str) -> None:
        docker("exec", self.name, "bash", "-c", f"kill -KILL {pid}")

    def delete_run(self) -> None:
        """Its run directory is gone at once, however much is written there meanwhile."""
        self.run.rename(gone := self.disk / "gone")
        shutil.rmtree(gone)
        self.fresh = True

    def freeze(self) -> None:
        docker("pause", self.name)

    def thaw(self) -> None:
        docker("unpause", self.name)

    def cut_off(self) -> None:
        docker("network", "disconnect", self.network, self.name)

    def reconnect(self) -> None:
        docker("network", "connect", "--alias", f"node-{self.rank}", self.network, self.name)

    def stop(self) -> None:
        """`docker stop`, which waits for its end; we wait until its workers were told."""
        threading.Thread(target=docker, args=("stop", "-t", "60", self.name)).start()
        self.wait_for_file(f"node-{self.rank}/stop")

    def state(self, what: str) -> str:
        return self.container.state(what)


class Nodes:
    """The nodes of one job, in the order of their ranks, and what the table asks of any job."""

    network_options: tuple[str, ...] = ()

    def __init__(self, scene: Scene, *words: str, **settings: str) -> None:
        """`words` are the launcher's, or change the job; `settings` go into the environment of all nodes."""
        self.scene, self.words, self.settings = scene, words, {"WORLD_SIZE": "2"} | SETTINGS | settings
        self.network = fresh_name()
        docker("network", "create", *self.network_options, self.network)
        scene.stack.callback(docker, "network", "rm", self.network)
        self.nodes: list[Node] = []
        self.started = 0

    def start(self, rank: int, *harms: Moment | Clock, disk: Path | None = None) -> Node:
        """Start a node, which is held at a moment, or whose clock is wrong, with an empty disk unless one is given."""
        disk, fresh = disk or self.scene.folder / f"disk-{self.started}", self.started > 1
        disk.mkdir(exist_ok=True)
        disk.chmod(0o777)
        self.started += 1
        harm = json.dumps([{"rank": rank, "go": "/checkpoints/go", **harm.fault} for harm in harms])
        # The threads of a process spin while they wait for each other: with several, a step takes seconds on a busy machine.
        one_thread = {"OMP_NUM_THREADS": "1"}
        settings = one_thread | self.settings | {"RANK": str(rank), "PYTHONPATH": "/inside", "FAULTS": harm}
        variables = " ".join(f"--env {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
        volumes = f"--volume {disk}:/checkpoints --volume {INSIDE}:/inside:ro"
        job = shlex.join(("run", *JOB, *self.words))
        line = f"--shm-size 1g {as_oneself()} {self.place(rank)} {volumes} {variables} IMG {job}"
        node = Node(Containers(self.scene.stack).start(line), self.network, rank, disk, fresh)
        self.nodes = sorted([*self.nodes, node], key=lambda node: node.rank)
        return node

    def place(self, rank: int) -> str:
        """The options by which a container gets a node's name and address."""
        return f"--network {self.network} --network-alias node-{rank}"

    def hold(self, rank: int, moment: Moment = TRAINING, *harms: Clock) -> Node:
        """Start a node, and wait until it is held and the others have their snapshot."""
        victim = self.start(rank, moment, *harms)
        victim.wait_for("fault: hold")
        for node in self.nodes:
            if moment.saved and node is not victim:
                node.wait_for_file(f"snapshots/{snapshot_name(moment.saved)}")
        return victim

    def hold_one(self, rank: int, *harms: Clock) -> tuple[Node, Node]:
        """Start two nodes and hold one of them in the middle of step 26; return it, and the other."""
        other = self.start(1 - rank)
        return self.hold(rank, TRAINING, *harms), other

    def lose(self, node: Node) -> None:
        """It is killed, does not count any more, and another container gets its address."""
        node.kill()
        self.nodes.remove(node)
        Containers(self.scene.stack).start(f"--network {self.network} --entrypoint sleep IMG 600")

    def again(self) -> "Nodes":
        """Start all nodes again on their disks, to go on."""
        job = Nodes(self.scene, "--resume", "auto")
        job.started = len(self.nodes)
        for node in self.nodes:
            job.start(node.rank, disk=node.disk).fresh = node.fresh
        return job

    @property
    def text(self) -> str:
        return "\n".join(f"--- node {node.rank}, {node.name}\n{node.text}" for node in self.nodes)

    def end(self, timeout: float) -> tuple[int, ...]:
        """The exit codes of all nodes, in order."""
        return tuple(node.end(timeout) for node in self.nodes)
