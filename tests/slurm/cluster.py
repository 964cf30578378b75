"""A real Slurm cluster on this machine: munge, slurmctld and a slurmd per node, from Debian's packages; and its jobs."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hosts import ADDRESSES, HUB, NODES, Hosts
from waiting import Found, wait_until

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 180.0  # s; two imports of torch on each node, on a machine under load
GPUS = 4  # device nodes that look like GPUs, on each node
DRIVER = Path(__file__).parent / "gpus"  # Python modules
PATH = f"{os.environ['PATH']}:/usr/sbin"
USER, UID = "trainer", 12_345
# A requeued job waits until the credentials of its last start have expired, a second longer than cred_expire; 120 s by default.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={hub}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=12
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmctldTimeout=10
SlurmdTimeout=10
ReturnToService=2
MinJobAge=3600
KillWait=30
GresTypes=gpu
SchedulerParameters=sched_interval=1,bf_interval=1,requeue_delay=1
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=node1,node2 Default=YES PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=node1,node2 PriorityTier=10 PreemptMode=OFF
PartitionName=slow Nodes=node3,node4
PartitionName=three Nodes=node1,node2,node3
"""


@dataclass(frozen=True)
class Job:
    """A job of the cluster's. `output` is the file that sbatch was told to write to."""

    cluster: "Cluster"
    number: str
    output: Path

    def task(self, number: int) -> "Job":
        """One task of an array, which is a job of its own."""
        jobs: list[str] = []

        def begun() -> list[str]:  # until then the tasks share one record
            shown = self.cluster.command("scontrol", "show", "--oneliner", "job", self.number).stdout
            jobs[:] = re.findall(rf"^JobId=(\d+) .*\bArrayTaskId={number} ", shown, re.MULTILINE)
            return jobs

        self.cluster.wait(begun, f"task {number}")
        return Job(self.cluster, jobs[0], self.output.with_name(self.output.name.replace("%a", str(number))))

    @property
    def text(self) -> str:
        """All that it has written so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait_for(self, words: str, patience: float = PATIENCE) -> None:
        """Wait until its output matches this pattern."""
        self.cluster.wait(lambda: re.search(words, self.text), f"the words {words!r}", self, patience)

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT …, as Slurm says."""
        return self.fact("JobState")

    def fact(self, name: str) -> str:
        """What `scontrol show job` says, such as Restarts or ExitCode."""
        shown = self.cluster.command("scontrol", "show", "--oneliner", "job", self.number).stdout
        found = re.search(rf"^JobId={self.number} .*\b{name}=(\S*)", shown, re.MULTILINE)
        assert found, f"no {name} in {shown}"
        return found[1]

    def wait_until(self, *states: str, patience: float = PATIENCE) -> str:
        """Wait until it is in one of these states, and return it."""
        self.cluster.wait(lambda: self.state in states, f"the state {' or '.join(states)}", self, patience)
        return self.state

    def end(self, patience: float = PATIENCE) -> str:
        """Wait until it is over for good, and return the state it ended with."""
        return self.wait_until("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", patience=patience)


class Cluster:
    """A running cluster. `shared` is the folder that all nodes and users share; jobs are submitted from `shared/work`."""

    def __init__(self, folder: Path, tracking: str) -> None:
        self.folder, self.tracking = folder, tracking
        self.shared = folder / "shared"
        self.hosts = Hosts(folder, freezes=tracking == "cgroup")
        self._started: list[subprocess.Popen[str]] = []
        self._stack = ExitStack()

    def command(
        self, *words: str, user: int = 0, check: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the controller's host, in the folder of submissions, with a clean environment."""
        done = subprocess.run(
            self._joining(HUB, *_as(user), *words),
            env=self.environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert not check or not done.returncode, f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def type_in(self, command: str, user: int = 0, **variables: str) -> str:
        """What a user's shell prints for a command as it was told; it must be well."""
        done = self.command("bash", "-euo", "pipefail", "-c", command, user=user, **variables)
        return done.stdout + done.stderr

    def sbatch(self, *words: str, user: int = 0, **variables: str) -> Job:
        """Submit a job: options of sbatch, the file, its words."""
        array = "-%a" if any(word.startswith("--array") for word in words) else ""
        output = self.shared / "work" / f"out-{time.monotonic_ns()}{array}.txt"
        told = self.command("sbatch", "--parsable", f"--output={output}", *words, user=user, **variables).stdout
        return Job(self, told.strip(), output)

    @property
    def version(self) -> tuple[int, ...]:
        """Slurm's release, such as (24, 11)."""
        [release] = re.findall(r"(\d+)\.(\d+)\.", self.command("scontrol", "--version").stdout)
        return tuple(map(int, release))

    @property
    def driver(self) -> dict[str, str]:
        """Variables with which a launcher finds GPUS on its node: NVML's library, which it looks for, and its module."""
        return {
            "LD_LIBRARY_PATH": str(self.folder / "lib"),
            "PYTHONPATH": str(DRIVER),
            "NVIDIA_VISIBLE_DEVICES": "all",
        }

    def environment(self, **variables: str) -> dict[str, str]:
        """What a user's shell has on this cluster."""
        return {
            "PATH": PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "NVIDIA_VISIBLE_DEVICES": "void",  # its GPUs are but device nodes, and the CPU is meant
            **variables,
        }

    def wait(
        self, happened: Callable[[], Found], what: str, job: Job | None = None, patience: float = PATIENCE
    ) -> Found:
        """Wait until something happened, and return it."""

        def seen() -> str:
            return "\n".join([f"{what}, but", *((job.state, job.text) if job else ()), self._tail()])

        return wait_until(happened, seen, patience, every=0.5)

    def _tail(self) -> str:
        return "\n".join((self.folder / "slurmctld.log").read_text(errors="replace").splitlines()[-20:])

    def _joining(self, host: str, *words: str) -> list[str]:
        return self.hosts.joining(host, self.shared / "work", *words)

    def __enter__(self) -> "Cluster":
        """Bring it up. AssertionError with what its daemons said where it does not come up."""
        with ExitStack() as stack:
            for name in ("state", "shared/work", "dev", "lib"):
                (self.folder / name).mkdir(parents=True)
            self.folder.chmod(0o755)
            for name in ("shared", "shared/work"):
                (self.folder / name).chmod(0o1777)
            self._write_files()
            stack.callback(self._end_daemons)
            for host in (HUB, *NODES):
                self.hosts.power_on(host)
            self._start_munge()
            self._daemon(HUB, "slurmctld", "-D", "-f", f"{self.folder}/slurm.conf")
            for node in NODES:
                self.start_slurmd(node)
            self.wait(lambda: self.states() == dict.fromkeys(NODES, "idle"), "the nodes")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End every process of it."""
        self._stack.close()

    def states(self) -> dict[str, str]:
        """What Slurm says of each node, such as idle or down."""
        done = self.command("sinfo", "--noheader", "--Node", "--format=%N %t", check=False)
        return dict(line.split() for line in sorted(set(done.stdout.splitlines())))

    def _write_files(self) -> None:
        names = "\n".join(f"{address} {name}" for name, address in ADDRESSES.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}\n")
        known = Path("/etc/passwd").read_text()
        (self.folder / "passwd").write_text(f"{known.rstrip()}\n{USER}:x:{UID}:{UID}::/home/{USER}:/bin/bash\n")
        for number in range(GPUS):
            os.mknod(self.folder / f"dev/nvidia{number}", 0o20666, os.makedev(1, 3))
        [libc] = set(re.findall(r"/\S*/libc[.-]\S*", Path("/proc/self/maps").read_text()))
        (self.folder / "lib/libnvidia-ml.so.1").symlink_to(libc)  # any library: gpus/pynvml.py asks nothing of it
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={ADDRESSES[name]} CPUs=4 RealMemory=4000 Gres=gpu:{GPUS} State=UNKNOWN"
            for name in NODES
        )
        text = CONFIGURATION.format(
            hub=f"{HUB}({ADDRESSES[HUB]})", folder=self.folder, tracking=self.tracking, nodes=nodes
        )
        (self.folder / "slurm.conf").write_text(text)
        devices = f"{self.folder}/dev/nvidia[0-{GPUS - 1}]"
        (self.folder / "gres.conf").write_text(f"NodeName={','.join(NODES)} Name=gpu File={devices}\n")
        # Newer daemons load it for linuxproc too, and v2 does not come up without systemd.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainDevices=no\n")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed", "socket": "socket"}
        named = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        self._daemon(HUB, "munged", "--foreground", "--force", *named)
        self.wait((self.folder / "munge.socket").exists, "munge's socket")

    def start_slurmd(self, node: str) -> None:
        """Start the daemon of a node."""
        self._daemon(node, "slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf")

    @contextmanager
    def without(self, node: str, lose: Callable[[], object]) -> Iterator[None]:
        """Lose a node's daemon or all of it; afterwards it is there again, for the next case."""
        lose()
        try:
            yield
        finally:
            if not self.hosts.is_on(node):
                self.hosts.power_on(node)
            self.start_slurmd(node)
            self.wait(lambda: self.states().get(node) == "idle", f"{node}, idle")

    def on(self, host: str, *words: str) -> None:
        """Run a program on a node, as root."""
        subprocess.run(self._joining(host, *words), check=True)

    def _daemon(self, host: str, *words: str) -> None:
        log = (self.folder / f"{host}-{words[0]}.out").open("ab")
        with log:
            daemon = subprocess.Popen(
                self._joining(host, *words),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self._started.append(daemon)

    def _end_daemons(self) -> None:
        self.hosts.end()
        for process in self._started:
            process.wait()


def _as(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
