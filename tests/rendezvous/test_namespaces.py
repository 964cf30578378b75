"""Launchers as hosts with networks of their own: network namespaces, veth pairs and bridges, as root on Linux."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stub_processes import Process
from waiting import wait_until

pytestmark = pytest.mark.needs("network namespaces")
PORT = 29500
# A hub that forwards one TCP port, as docker-proxy does for -p 29500:29500.
PROXY = """
import asyncio, sys
async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except OSError:
        pass
    writer.close()
async def serve(reader, writer):
    there = await asyncio.open_connection(sys.argv[1], 29500)
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
async def main():
    async with await asyncio.start_server(serve, sys.argv[2], 29500) as server:
        print("ready", flush=True)
        await server.serve_forever()
asyncio.run(main())
"""


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)


class Net:
    """Namespaces whose names are ours alone; all are gone at the end, with everything in them."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"sw{os.getpid()}"
        self._folder = folder
        self._stack = ExitStack()
        self._links = 0

    def __enter__(self) -> "Net":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def namespace(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        ip(f"netns add {full}")
        self._stack.callback(subprocess.run, ["ip", "netns", "del", full], capture_output=True)
        ip(f"-n {full} link set lo up")
        return full

    def bridge(self, hub: str, name: str, address: str) -> None:
        ip(f"-n {hub} link add {name} type bridge")
        ip(f"-n {hub} addr add {address} dev {name}")
        ip(f"-n {hub} link set {name} up")

    def plug(self, host: str, hub: str, bridge: str, address: str, interface: str = "eth0") -> None:
        """A cable from a host to a bridge; `address` with its prefix length."""
        self._links += 1
        end = f"v{self._links}"
        ip(f"-n {hub} link add {end} type veth peer name {interface} netns {host}")
        ip(f"-n {hub} link set {end} master {bridge} up")
        ip(f"-n {host} addr add {address} dev {interface}")
        ip(f"-n {host} link set {interface} up")

    def launch(self, namespace: str, node_rank: int, nodes: int, **options: Any) -> Process:
        folder = self._folder / str(node_rank)
        given = {"port": PORT, "folder": str(folder)} | options
        return self._stack.enter_context(Process(namespace, node_rank=node_rank, nodes=nodes, **given))

    def proxy(self, hub: str, target: str, source: str) -> None:
        command = ["ip", "netns", "exec", hub, sys.executable, "-c", PROXY, target, source]
        process = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self._stack.callback(process.kill)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with Net(tmp_path) as made:
        yield made


@pytest.fixture
def hosts(net: Net) -> list[str]:
    """Three hosts on one network, 10.77.0.2 to .4, each with a docker bridge of its own."""
    hub = net.namespace("hub")
    net.bridge(hub, "br0", "10.77.0.1/24")
    names = []
    for number in range(3):
        host = net.namespace(f"h{number}")
        net.plug(host, hub, "br0", f"10.77.0.{number + 2}/24", "fabric0")
        net.bridge(host, "docker0", "172.17.0.1/16")
        names.append(host)
    return names


def test_hosts_agree_and_use_the_interface_that_leads_to_the_others(net: Net, hosts: list[str]) -> None:
    launchers = [net.launch(host, rank, 3, address="10.77.0.2") for rank, host in enumerate(hosts)]
    starts = [process.wait_for_start() for process in launchers]
    assert [process.finish() for process in launchers] == [0, 0, 0]
    assert [start["interface"] for start in starts] == ["fabric0", "fabric0", "fabric0"]
    assert [start["shared"] for start in starts] == [False, False, False]


def test_two_launchers_on_node_0s_host_beside_one_elsewhere_never_use_loopback(net: Net, hosts: list[str]) -> None:
    places = [hosts[0], hosts[0], hosts[1]]
    launchers = [net.launch(host, rank, 3, address="10.77.0.2") for rank, host in enumerate(places)]
    starts = [process.wait_for_start() for process in launchers]
    assert [process.finish() for process in launchers] == [0, 0, 0]
    assert [start["interface"] for start in starts] == ["fabric0", "fabric0", "fabric0"]


def test_one_published_port_is_not_enough_and_all_are_told_what_is(net: Net) -> None:
    """Two bridges that share nothing but node 0's MASTER_PORT, as under docker run -p 29500:29500."""
    hub = net.namespace("hub")
    net.bridge(hub, "br0", "10.77.0.1/24")
    net.bridge(hub, "br1", "10.78.0.1/24")
    first, second = net.namespace("h0"), net.namespace("h1")
    net.plug(first, hub, "br0", "10.77.0.2/24")
    net.plug(second, hub, "br1", "10.78.0.2/24")
    net.proxy(hub, "10.77.0.2", "10.78.0.1")
    launchers = [
        net.launch(first, 0, 2, address="10.77.0.2", runtime="docker"),
        net.launch(second, 1, 2, address="10.78.0.1", runtime="docker"),
    ]
    assert [process.finish() for process in launchers] == [78, 78]
    for process in launchers:
        assert "node 0 (host0) cannot connect to node 1 (host1) at 10.77.0.1, port" in process.log
        assert "node 1 (host1) cannot connect to node 0 (host0) at MASTER_ADDR, port" in process.log
        assert "--network host" in process.log


def test_a_master_without_a_route_is_unreachable(net: Net, hosts: list[str]) -> None:
    process = net.launch(hosts[1], 1, 2, address="10.99.0.1", timeout=4)
    assert process.finish() == 76
    assert "10.99.0.1:29500 cannot be reached (network is unreachable)" in process.log


def test_a_master_that_answers_nothing_is_timed_out_or_unreachable(net: Net, hosts: list[str]) -> None:
    process = net.launch(hosts[1], 1, 2, address="10.77.0.99", timeout=5)
    assert process.finish() == 76
    assert "10.77.0.99:29500 cannot be reached (no route to host)" in process.log
    assert "missing node rank 0" in process.log


def test_a_firewall_that_drops_packets_is_a_time_out(net: Net, hosts: list[str]) -> None:
    """Node 0's answers find no way back: to node 1 that looks like dropped packets."""
    ip(f"-n {hosts[0]} route add blackhole 10.77.0.3/32")
    launchers = [net.launch(hosts[rank], rank, 2, address="10.77.0.2", timeout=9) for rank in range(2)]
    assert [process.finish() for process in launchers] == [76, 76]
    assert "10.77.0.2:29500 does not answer; usually: a firewall" in launchers[1].log
    assert "missing node rank 1" in launchers[0].log


@pytest.mark.parametrize(
    ("most", "says"),
    [(1400, "node 1 (host1) cannot connect to node 0"), (400, "accepts connections, but does not answer")],
)
def test_a_link_that_drops_large_packets_is_named_with_its_mtu(
    net: Net, hosts: list[str], most: int, says: str
) -> None:
    """The interfaces say 12000, a link between them carries less, and nobody says so."""
    for host in hosts[:2]:
        ip(
            f"-n {host} link set fabric0 mtu 12000"
        )  # one packet per message: the kernel passes on what it cut up itself
    hub = hosts[0].removesuffix("h0") + "hub"
    for link in ("v1", "v2"):
        ip(f"-n {hub} link set {link} mtu {most}")
    launchers = [net.launch(hosts[rank], rank, 2, address="10.77.0.2", timeout=15) for rank in range(2)]
    codes = [process.finish(60) for process in launchers]
    assert set(codes) <= {76, 78}, launchers[1].log
    assert says in launchers[1].log, launchers[1].log
    assert "MTU" in launchers[1].log


def test_a_host_that_is_cut_off_is_lost_on_all_after_the_silence_that_node_0_allows(net: Net, hosts: list[str]) -> None:
    more = [{"heartbeat": 3}, {"heartbeat": 900}, {"heartbeat": 900}]
    launchers = [
        net.launch(host, rank, 3, address="10.77.0.2", seconds=90, **more[rank]) for rank, host in enumerate(hosts)
    ]
    for process in launchers:
        process.wait_for_start()
    ip(f"-n {hosts[2]} link set fabric0 down")
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(lambda process: process.finish(30), launchers))
    assert codes == [76, 76, 76]
    assert "a node was lost: node 2 (host2): no heartbeat for 3 s" in launchers[0].log
    assert "a node was lost: node 2 (host2)" in launchers[1].log
    assert "a node was lost: node 0 (host0): no heartbeat for 3 s" in launchers[2].log


def test_the_listener_of_a_job_on_loopback_is_not_on_the_network(net: Net, hosts: list[str]) -> None:
    with net.launch(hosts[0], 0, 2, address="localhost", timeout=4) as process:
        look = ["ip", "netns", "exec", hosts[0], "ss", "--listening", "--tcp", "--numeric", "--no-header"]
        wait_until(lambda: f":{PORT} " in subprocess.run(look, capture_output=True, text=True).stdout, "the listener")
        command = f"import socket; socket.create_connection(('10.77.0.2', {PORT}), timeout=2)"
        visit = subprocess.run(
            ["ip", "netns", "exec", hosts[1], sys.executable, "-c", command], capture_output=True, text=True
        )
        assert "ConnectionRefusedError" in visit.stderr
        assert process.finish() == 76


@pytest.mark.needs("IPv6")
def test_ipv6_hosts_agree_too(net: Net, hosts: list[str]) -> None:
    for number, host in enumerate(hosts[:2]):
        ip(f"-n {host} addr add fd77::{number + 2}/64 dev fabric0 nodad")
    launchers = [net.launch(hosts[rank], rank, 2, address="fd77::2") for rank in range(2)]
    starts = [process.wait_for_start() for process in launchers]
    assert [process.finish() for process in launchers] == [0, 0]
    assert [start["interface"] for start in starts] == ["fabric0", "fabric0"]
