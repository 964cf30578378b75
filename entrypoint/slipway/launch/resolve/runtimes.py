"""What may run a launcher: a machine of one's own, a container engine, a pod or a Slurm step. Each is a record that holds
everything the code asks about it; no other module compares its name. The sentences of advice are in advice.py, the commands to
try next in next_lines.py, both by this name. Pure but for `detect_runtime`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple


class Runtime(NamedTuple):
    """One runtime, by the name that launchers send each other."""

    name: str
    # What to do if nodes cannot connect to each other.
    ports: str = "Open all TCP ports between the nodes; in containers use docker run --network host on every node."
    # What gives this many processes more cores than the few that the launcher may run on.
    widen: Callable[[int], str] = lambda processes: "start it with a wider affinity (taskset --cpu-list)"
    by_hand: bool = True  # somebody types the command that starts a launcher, and can add options to it
    is_engine: bool = False  # and that command is the one of a container engine
    starts_checkouts: bool = False  # its command also starts a checkout
    grants_gpus: bool = True  # a launcher sees no GPU that it was not given
    own_tmp: bool = False  # /tmp is the machine's, and what may be executed there is somebody's policy
    # Node 0's pod is found by the name of a Service, and a pod that ended is replaced by its controller.
    has_services: bool = False
    # Seconds until the network reaches a new node: Kubernetes tells a new pod's address to every machine's NetworkPolicy.
    opening: float = 0.0
    command: str = "docker run"  # what takes the options that advice names
    # What is typed before a command, from outside, while it runs.
    inside: str = ""
    other_image: str = ""  # why a container may be made from another image than the one that was named, and what to do


HOST = Runtime("host", starts_checkouts=True, grants_gpus=False, own_tmp=True)
DOCKER = Runtime(
    "docker",
    ports="Start every node with --network host; publishing one port (-p 29500:29500) is not enough.",
    widen=lambda processes: "give docker run a wider --cpuset-cpus",
    is_engine=True,
    inside="docker exec {container} ",
)
COMPOSE = DOCKER._replace(
    name="compose",
    ports="Put all nodes into one network of one compose file; on several machines use docker run --network host.",
    widen=lambda processes: "set a wider cpuset in the compose file",
    command="docker compose run (up has no such option)",
)
KUBERNETES = Runtime(
    "kubernetes",
    ports="Allow all TCP ports between the job's pods in the NetworkPolicy, or set hostNetwork: true.",
    by_hand=False,
    has_services=True,
    inside="kubectl exec {pod} -- ",
    opening=60.0,
)
SLURM = Runtime(
    "slurm",
    ports="Open all TCP ports between the compute nodes, at least net.ipv4.ip_local_port_range.",
    widen=lambda processes: f"add --cpus-per-task={processes} or --cpu-bind=none to srun",
    by_hand=False,
    starts_checkouts=True,
    own_tmp=True,
    other_image=" With --container-name=NAME, pyxis starts what an earlier job unpacked under this name: leave it out, or type "
    '--container-name="slipway-$SLURM_JOB_ID".',
)
RUNTIMES: Mapping[str, Runtime] = MappingProxyType(
    {each.name: each for each in (HOST, DOCKER, COMPOSE, KUBERNETES, SLURM)}
)


def runtime_of(name: str) -> Runtime:
    """The runtime of this name; of one that only a newer launcher knows, what holds for any machine."""
    return RUNTIMES.get(name, HOST)


def detect_runtime(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """The name of the runtime that runs this launcher."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return KUBERNETES.name
    if "SLURM_JOB_ID" in environ:
        return SLURM.name
    marks = (".dockerenv", "run/.containerenv")
    engine = COMPOSE if "COMPOSE_SERVICE" in environ else DOCKER  # compose/*.yaml set it
    return (engine if any((root / mark).exists() for mark in marks) else HOST).name
