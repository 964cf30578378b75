"""A job from its start to its end: it is harmed as planned, and its nodes are started again as a scheduler would."""

import getpass
import math
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from checks import find_odd_ending, find_odd_result
from containers import docker
from places import SETTINGS, STEPS, WORKLOADS, ContainedNode, Node, find_processes, remove_network
from plans import STARTS, Again, Harm, Plan
from ports import take_port

from slipway.protocol.files import read_json
from slipway.protocol.snapshots import newest_step

TICK = 0.2  # s
OPERATOR = 12.0  # s until somebody replaces a node that is frozen for good
INDUCTOR = f"torchinductor_{getpass.getuser()}"  # torch's own cache
CLEAR = 10.0  # s that processes may take to end after their launcher


@dataclass
class Report:
    """What became of a job. `done` says when each harm was done, in seconds from the job's start, None where it came too late."""

    plan: Plan
    done: list[float | None] = field(default_factory=list)
    codes: list[list[int]] = field(default_factory=list)  # of each node's starts
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    kept: Path | None = None


class Course:
    """A job under way in a folder of its own."""

    def __init__(self, plan: Plan, folder: Path, contained: bool, patience: float) -> None:
        """`contained`: its nodes are containers; `patience` in seconds."""
        self.plan, self.folder, self.contained, self.patience = plan, folder, contained, patience
        self.mark = folder.name
        self.report = Report(plan, codes=[[] for _ in range(plan.nodes)])
        self.nodes: list[Node] = []
        self.started: list[Node] = []
        self.due: dict[int, tuple[float, Again]] = {}  # when and how a node that ended is started again
        self.undone: list[tuple[float, Node, Harm, int]] = []  # what is undone, when
        self.again = iter(plan.again)
        self.began = self.last = time.monotonic()  # `last`: the newest harm or, before it, the beginning
        self.last_wall = time.time()
        self.trains_since: float | None = None

    def run(self) -> Report:
        """From the start to the end; whatever was started has ended then."""
        with ExitStack() as stack:
            if self.contained:
                docker("network", "create", f"chaos-{self.mark}")
                stack.callback(remove_network, f"chaos-{self.mark}")
            stack.callback(self.clear)
            self.settings = SETTINGS | {"NPROC_PER_NODE": str(2 // self.plan.nodes)}
            if self.plan.nodes > 1:
                address = "node-0" if self.contained else "127.0.0.1"
                self.settings |= {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(take_port())}
            for rank in range(self.plan.nodes):
                self.nodes.append(self.start(rank, 0, self.folder / f"disk-{rank}-0"))
            while not self.is_over():
                time.sleep(TICK)
                self.harm()
                self.undo(time.monotonic())
                self.start_again()
            if not self.report.wrong:
                self.undo(math.inf)
                self.find_left()
        self.report.done += [None] * (len(self.plan.harms) - len(self.report.done))
        self.report.seconds = time.monotonic() - self.began
        return self.report

    def start(self, rank: int, number: int, disk: Path) -> Node:
        """Start a node for the first time or again."""
        disk.mkdir(exist_ok=True)
        node = (ContainedNode if self.contained else Node)(self.mark, rank, number, disk)
        resume = ("--resume", "auto") if number else ()
        ranks = {"RANK": str(rank)} if self.plan.nodes > 1 else {}
        self.started.append(node)
        node.begin(("run", *resume, *WORKLOADS[self.plan.workload]), self.settings | ranks)
        return node

    def is_over(self) -> bool:
        """Whether all nodes have finished, or something went so wrong that nothing is waited for any more."""
        if time.monotonic() - self.began > self.patience:
            states = [f"{process.role} {process.pid} of {process.mark}" for process in find_processes(f"{self.mark}.")]
            self.report.wrong.append(f"hang: not over after {self.patience:.0f} s; there are {', '.join(states)}")
        for node in self.nodes:
            if node.code is not None and node.rank not in self.due:
                self.ended(node, node.code)
        return bool(self.report.wrong) or all(node.code == 0 for node in self.nodes)

    def ended(self, node: Node, code: int) -> None:
        """Note how a node ended, and when it is started again."""
        self.report.codes[node.rank].append(code)
        done = self.plan.harms[: len(self.report.done)]
        self.report.wrong += find_odd_ending(node, code, done, STEPS[self.plan.workload])
        again = next(self.again, Again(0, False))
        self.due[node.rank] = time.monotonic() + again.pause, again

    def harm(self) -> None:
        """Do the next harm when its moment has come and its target is there."""
        if len(self.report.done) == len(self.plan.harms):
            return
        harm = self.plan.harms[len(self.report.done)]
        node = self.nodes[harm.node]
        if harm.training and not self.is_training(node):
            return
        now = time.monotonic()
        if harm.training and self.trains_since is None:
            self.trains_since = now
        if now - (self.trains_since or self.last) < harm.after:
            return
        if pid := node.harm(harm):
            self.last, self.last_wall, self.trains_since = now, time.time(), None
            self.report.done.append(now - self.began)
            if harm.lasts is not None:
                self.undone.append((now + harm.lasts, node, harm, pid))
            elif harm.act == "pause" or (harm.act == "SIGSTOP" and harm.target in ("launcher", "tini")):
                self.undone.append((now + OPERATOR, node, harm, 0))

    def is_training(self, node: Node) -> bool:
        """Whether a worker of the node has trained since the newest harm."""
        if self.trains_since is not None:
            return True
        with suppress(FileNotFoundError):  # a new attempt removes them
            for beat in node.disk.glob("*/node-*/heartbeat/rank-*.json"):
                if beat.stat().st_mtime > self.last_wall and read_json(beat).get("phase") == "train":
                    return True
        return False

    def undo(self, now: float) -> None:
        """Undo what was to last until now; where it was for good, end the node, as whoever looks after it would."""
        for row in [row for row in self.undone if row[0] <= now]:
            self.undone.remove(row)
            _, node, harm, pid = row
            if pid and (node.code is None or harm.act == "SIGSTOP"):  # a frozen process outlives its launcher
                node.undo(harm, pid)
            elif node.code is None:
                node.kill()

    def start_again(self) -> None:
        """Start nodes again that ended: those that did not finish, or all where none is left."""
        if any(node.code is not None and node.rank not in self.due for node in self.nodes):
            return  # it ended this moment, and is noted first
        none_left = len(self.due) == len(self.nodes)
        for rank, again in [(rank, again) for rank, (when, again) in self.due.items() if when <= time.monotonic()]:
            node = self.nodes[rank]
            if node.code == 0 and not none_left:
                continue
            if node.start + 1 == STARTS:
                self.report.wrong.append(f"node {rank} was started {STARTS} times")
                return
            fresh = again.empty and node.code != 0 and self.is_copied(node)
            disk = self.folder / f"disk-{rank}-{node.start + 1}" if fresh else node.disk
            del self.due[rank]
            self.nodes[rank] = self.start(rank, node.start + 1, disk)

    def is_copied(self, node: Node) -> bool:
        """Whether another node's disk holds all that this one's does."""
        steps = [[newest_step(run) or 0 for run in other.runs] for other in self.nodes if other is not node]
        own = max([newest_step(run) or 0 for run in node.runs], default=0)
        return bool(steps) and 0 < own <= max(map(max, filter(None, steps)), default=0)

    def find_left(self) -> None:
        """Processes and listeners that are still there when all nodes have ended, and files in the temporary folder."""
        until = time.monotonic() + CLEAR
        while (left := find_processes(f"{self.mark}.")) and time.monotonic() < until:
            time.sleep(TICK)
        self.report.wrong += [f"left: {process.role} {process.pid} of {process.mark}" for process in left]
        temporary = sorted(path for path in self.folder.glob("tmp/*") if path.name != INDUCTOR)
        self.report.wrong += [f"left: {path}" for path in temporary]
        if self.contained:
            names = docker("ps", "--all", "--quiet", "--filter", f"name=chaos-{self.mark}").split()
            self.report.wrong += [f"left: container {name}" for name in names]
        elif self.plan.nodes > 1 and not is_free(int(self.settings["MASTER_PORT"])):
            self.report.wrong.append("left: a listener at MASTER_PORT")

    def judge(self, undisturbed: Path) -> None:
        """What is not as in an undisturbed run, on each node's disk."""
        for node in self.nodes:
            if len(node.runs) != 1:
                self.report.wrong.append(f"node {node.rank} has {len(node.runs)} runs on its disk")
            for run in node.runs[-1:]:
                self.report.wrong += find_odd_result(run, undisturbed, STEPS[self.plan.workload])

    def clear(self) -> None:
        """End whatever is left, and write down what each start of a node said."""
        for node in self.started:
            if node.code is None:
                node.kill()
            node.end()
            (self.folder / f"node-{node.rank}-{node.start}.log").write_text(node.text)


def is_free(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True
