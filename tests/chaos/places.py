"""Where the nodes of a job live: each start is a launcher in .venv or a container of the image, and a folder is its disk."""

import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import needs
from containers import as_oneself
from launchers import Launcher, start_launcher
from plans import Harm

from slipway.process.tree import send_signal, stat_fields

COURSE = ("--batch-size", "8", "--accumulate", "2", "--log-every", "20")
WORKLOADS = {
    "linear": ("linear", "--dataset-size", "256", "--steps", "800", "--save-every", "40", "--eval-every", "300", *COURSE),
    "gpt": (
        "gpt", "--layers", "1", "--heads", "2", "--embed", "32", "--context", "32", "--eval-samples", "16",
        "--sample-tokens", "0", "--precision", "fp32", "--steps", "200", "--save-every", "10", "--eval-every", "80", *COURSE,
    ),
}  # fmt: skip
STEPS = {name: int(words[words.index("--steps") + 1]) for name, words in WORKLOADS.items()}
# Short, and yet no machine under load seems to hang: setting up may take three times as long.
SETTINGS = {
    "SLIPWAY_HEARTBEAT_TIMEOUT": "6",
    "SLIPWAY_HANG_SECONDS": "30",
    "SLIPWAY_GRACE_SECONDS": "60",
    "SLIPWAY_RENDEZVOUS_TIMEOUT": "60",
    "OMP_NUM_THREADS": "1",
}
MARK = "CHAOS"  # in the environment of every process of a node: job, node, start


@dataclass(frozen=True)
class Process:
    """A process that carries a mark; `role` is launcher, reaper, torchrun, worker, standby, tini or its command."""

    pid: int
    mark: str
    role: str


def find_processes(mark: str) -> list[Process]:
    """The living processes whose mark begins so, containers' too, by age."""
    wanted, found = f"\0{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ, command = ((folder / name).read_bytes() for name in ("environ", "cmdline"))
            except OSError:  # it ended meanwhile, or is somebody else's
                continue
            if wanted in b"\0" + environ and command:
                own = (b"\0" + environ).partition(f"\0{MARK}=".encode())[2].partition(b"\0")[0].decode()
                found.append((int(folder.name), own, command.decode(errors="replace").split("\0")))
    agents = {pid for pid, _, words in found if "slipway.process.agent" in words}
    return [Process(pid, own, role_of(pid, words, agents)) for pid, own, words in sorted(found)]


def role_of(pid: int, words: list[str], agents: set[int]) -> str:
    """What a process with this command line is; the reaper is torchrun's parent and looks like it."""
    if pid in agents:
        parent = next(iter(stat_fields(pid)[1:2]), "")
        return "torchrun" if parent.isdigit() and int(parent) in agents else "reaper"
    roles = {
        "tini": "tini",
        "slipway.process.standby": "standby",
        "slipway.process.warm": "worker",
        "slipway.train": "worker",
        "slipway": "launcher",
    }
    line = " ".join(words)
    return next((role for part, role in roles.items() if part in line), line)


class Node:
    """One start of a node. It ends as its process does: the launcher, or `docker run` with the container's exit code."""

    def __init__(self, job: str, rank: int, start: int, disk: Path) -> None:
        """`job` marks all processes of the job; nothing is started yet."""
        self.job, self.rank, self.start, self.disk = job, rank, start, disk
        self.mark = f"{job}.{rank}.{start}"
        self.launcher: Launcher | None = None

    def begin(self, words: tuple[str, ...], settings: dict[str, str]) -> None:
        """Start the launcher with these words."""
        temporary = self.disk.parent / "tmp"
        temporary.mkdir(exist_ok=True)
        places = {"TMPDIR": str(temporary), "SLIPWAY_RUNS": str(self.disk)}
        self.launcher = start_launcher(self.disk.parent, *words, **settings, **places, **{MARK: self.mark})

    @property
    def code(self) -> int | None:
        """The exit code, None while it is there."""
        assert self.launcher
        return self.launcher.process.poll()

    def end(self) -> None:
        """Wait for its end, which has come or been brought about."""
        if self.launcher:
            self.launcher.end()

    @property
    def text(self) -> str:
        """What it said so far."""
        return self.launcher.text if self.launcher else ""

    @property
    def runs(self) -> list[Path]:
        """The run directories on its disk."""
        return [path for path in sorted(self.disk.iterdir()) if path.is_dir()]

    def find(self, target: str) -> int | None:
        """The process id of a target such as `launcher` or `worker 1`, None while there is none."""
        role, _, number = target.partition(" ")
        pids = [process.pid for process in find_processes(self.mark) if process.role == role]
        return pids[int(number or 0)] if len(pids) > int(number or 0) else None

    def harm(self, harm: Harm) -> int | None:
        """Do it; the process id that it was done to, None where nothing is there to be harmed yet."""
        pid = self.find(harm.target)
        if pid:
            send_signal([pid], signal.Signals[harm.act])
        return pid

    def undo(self, harm: Harm, pid: int) -> None:
        """Let it go on."""
        send_signal([pid], signal.SIGCONT)

    def kill(self) -> None:
        """End all of it, as a power cut does."""
        while left := find_processes(f"{self.mark}\0"):
            send_signal([process.pid for process in left], signal.SIGKILL)
            time.sleep(0.05)


class ContainedNode(Node):
    """The same in a container."""

    @property
    def name(self) -> str:
        return f"chaos-{self.mark}"

    def begin(self, words: tuple[str, ...], settings: dict[str, str]) -> None:
        """Start the container on the job's network, where its name is that of the node's rank."""
        variables = [word for pair in (settings | {MARK: self.mark}).items() for word in ("--env", "=".join(pair))]
        place = ("--name", self.name, "--network", f"chaos-{self.job}", "--network-alias", f"node-{self.rank}")
        self.disk.chmod(0o777)  # the image's user writes here
        options = ("--shm-size", "1g", "--volume", f"{self.disk}:/checkpoints", *shlex.split(as_oneself()))
        self.launcher = Launcher(
            subprocess.Popen(
                ["docker", "run", "--rm", *place, *options, *variables, needs.IMAGE, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        )

    def harm(self, harm: Harm) -> int | None:
        """Do it to the container or to a process in it."""
        first = self.find("tini")
        if harm.target != "container" or first is None:
            return super().harm(harm) if harm.target != "container" else None
        network = f"chaos-{self.job}"
        words = {"stop": ("stop", "--time", "40"), "cut": ("network", "disconnect", network)}.get(harm.act, (harm.act,))
        engine(*words, self.name)
        return first

    def undo(self, harm: Harm, pid: int) -> None:
        """Let it go on, with the name that it had in the network."""
        if harm.act == "pause":
            engine("unpause", self.name)
        elif harm.act == "cut":
            engine("network", "connect", "--alias", f"node-{self.rank}", f"chaos-{self.job}", self.name)
        else:
            super().undo(harm, pid)

    def kill(self) -> None:
        """End the container, frozen or not."""
        engine("kill", self.name).wait()
        engine("unpause", self.name).wait()


def engine(*words: str) -> subprocess.Popen[bytes]:
    """Start `docker …`, which fails where the container ended meanwhile; nobody waits for `docker stop`."""
    return subprocess.Popen(["docker", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def is_engine_here() -> bool:
    """Whether containers of the image can be started."""
    if needs.find_missing("engine"):
        return False
    return needs.works("docker", "image", "inspect", needs.IMAGE)


def remove_network(name: str) -> None:
    """Remove a network of which the engine may still be taking out a container that has ended. RuntimeError after a minute."""
    until = time.monotonic() + 60
    while engine("network", "rm", name).wait():
        if time.monotonic() > until:
            raise RuntimeError(f"docker network rm {name} fails for a minute")
        time.sleep(0.5)
