"""Hosts of a cluster on this machine, each with namespaces of its own: network, mounts, host name, processes.

So each has its own name and address, and killing the first process of one is what a power failure is. One of them, the hub, holds
the bridge: one in this machine's own network would be filtered by a container engine's firewall.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from needs import FREEZER

HUB, NODES = "hub", ("node1", "node2", "node3", "node4")
ADDRESSES = {HUB: "10.77.0.1", **{name: f"10.77.0.{11 + index}" for index, name in enumerate(NODES)}}
SPACES = {"mount": "mnt", "uts": "uts", "net": "net", "pid": "pid"}  # nsenter's options, and names in /proc
# The first process of a host reaps what is left to it, as an init does. A host sees its own part of the freezer's cgroups.
INIT = """
set -e
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/passwd /etc/passwd
if [[ -d {freezer} ]]; then mount --bind {freezer} /sys/fs/cgroup/freezer; fi
hostname {name}
ip link set lo up
trap : TERM
echo ready
while :; do sleep 3600 & wait $!; done
"""


class Hosts:
    """The hosts that are on. `folder` holds their files `hosts` and `passwd`; `freezes`: Slurm tracks processes by cgroups."""

    def __init__(self, folder: Path, *, freezes: bool) -> None:
        self._folder, self._freezes = folder, freezes
        self._inits: dict[str, int] = {}
        self._started: list[subprocess.Popen[str]] = []

    def is_on(self, host: str) -> bool:
        """Whether a host is there."""
        return host in self._inits

    def joining(self, host: str, folder: Path, *words: str) -> list[str]:
        """The command that runs a program on a host, in a folder."""
        spaces = [f"--{option}=/proc/{self._inits[host]}/ns/{name}" for option, name in SPACES.items()]
        return ["nsenter", *spaces, f"--wd={folder}", "--", *words]

    def power_on(self, host: str) -> None:
        """Give a host its namespaces, name and network."""
        # However the tests end, the hosts end with them.
        bound = ("setpriv", "--pdeathsig=KILL")
        kinds = ("--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
        freezer = FREEZER / f"{self._folder.name}-{host}"
        if self._freezes:
            freezer.mkdir(exist_ok=True)
        init = INIT.format(folder=self._folder, freezer=freezer, name=host)
        outer = subprocess.Popen(
            [*bound, "unshare", *kinds, "bash", "-c", init],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._started.append(outer)
        assert outer.stdout
        with outer.stdout as told:
            assert told.readline() == "ready\n", f"{host} has no namespaces"
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        self._inits[host] = int(children[0])
        if host == HUB:
            self._ip(HUB, "link add bridge type bridge")
            port = "bridge"
        else:
            port = "port"
            self._ip(HUB, f"link add {host} type veth peer name {port} netns {self._inits[host]}")
            self._ip(HUB, f"link set {host} master bridge up")
        # The same card whenever it is on, as a machine has: else the others send to the one before until they forget it.
        card = ":".join(f"{int(part):02x}" for part in ADDRESSES[host].split("."))
        self._ip(host, f"link set {port} address 02:00:{card}")
        self._ip(host, f"address add {ADDRESSES[host]}/24 dev {port}")
        self._ip(host, f"link set {port} up")

    def power_off(self, host: str) -> None:
        """Kill a host with all that runs there, at once."""
        with suppress(ProcessLookupError):
            os.kill(self._inits.pop(host), signal.SIGKILL)

    def end(self) -> None:
        """Power off all hosts, and remove what is left of them."""
        for host in list(self._inits):
            self.power_off(host)
        for process in self._started:
            process.wait()
        for top in FREEZER.glob(f"{self._folder.name}-*"):
            for cgroup in (*sorted(top.rglob("*/"), reverse=True), top):
                with suppress(NotADirectoryError):
                    cgroup.rmdir()

    def _ip(self, host: str, words: str) -> None:
        # Only the network is the host's: `ip` has to know the process ids by which it is given other networks.
        subprocess.run(["nsenter", f"--net=/proc/{self._inits[host]}/ns/net", "ip", *words.split()], check=True)
