"""Ports, interfaces, and the words for failed connections."""

import asyncio
import errno
import ipaddress
import socket
import threading
from pathlib import Path

import pytest
from ports import take_port

from slipway.launch.rendezvous.connection_errors import (
    CAUSES,
    TryLaterError,
    connection_failure,
    explain_connection,
    explain_ring,
)
from slipway.launch.rendezvous.link import resolve
from slipway.launch.resolve.connectivity import (
    free_port,
    interface_towards,
    is_loopback,
    listen,
    loopback_address,
    own_names,
    port_holder,
    without_link_local,
)
from slipway.launch.resolve.runtimes import RUNTIMES, detect_runtime
from slipway.protocol.errors import CONFIGURATION, LaunchError


@pytest.mark.needs("IPv6")
def test_a_listener_takes_both_families() -> None:
    with listen(0) as door:
        port = door.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        if socket.has_dualstack_ipv6():
            socket.create_connection(("::1", port), timeout=5).close()


@pytest.mark.needs("IPv6")
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "127.0.1.1", "::1"])
def test_whoever_is_told_an_address_of_loopback_finds_the_listener_there(address: str) -> None:
    with listen(0, loopback=loopback_address(address)) as door:
        assert ipaddress.ip_address(door.getsockname()[0]).is_loopback
        socket.create_connection((address, door.getsockname()[1]), timeout=5).close()
    assert loopback_address("10.0.0.1") == loopback_address("node-0") == ""


def test_a_port_in_use_is_a_wrong_configuration_that_names_its_holder() -> None:
    with listen(0) as door, pytest.raises(LaunchError, match=r"is in use on this node by process \d+ \(") as caught:
        listen(door.getsockname()[1])
    assert caught.value.code == CONFIGURATION


def test_a_holder_that_cannot_be_seen_is_none(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("header\n 0: 00000000:733C 00000000:0000 0A 0:0 0:0 0 0 0 4242 1\n")
    assert port_holder(29500, tmp_path) is None
    (tmp_path / "17" / "fd").mkdir(parents=True)
    (tmp_path / "17" / "fd" / "3").symlink_to("socket:[4242]")
    assert port_holder(29500, tmp_path) is None, "it ended while we looked"
    (tmp_path / "17" / "cmdline").write_bytes(b"python\0-m\0http.server\0")
    assert port_holder(29500, tmp_path) == "process 17 (python -m http.server)"
    assert port_holder(29501, tmp_path) is None


def test_the_preferred_port_is_taken_only_where_it_is_free() -> None:
    port = take_port()
    with listen(port):
        assert free_port(port) != port
    assert free_port(port) == port
    assert 0 < free_port(65_536) < 65_536


@pytest.mark.parametrize(
    ("addresses", "kept"),
    [
        (("fe80::1%eth0", "fd00::1"), ("fd00::1",)),
        (("fe80::1", "10.0.0.1"), ("10.0.0.1",)),
        (("169.254.7.7",), ("169.254.7.7",)),
        ((), ()),
    ],
)
def test_link_local_addresses_of_ipv6_are_passed_over(addresses: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert without_link_local(addresses, "n0") == kept


@pytest.mark.parametrize("address", ["fe80::1%eth0", "fe80::1"])
def test_a_name_with_link_local_addresses_alone_is_refused(address: str) -> None:
    with pytest.raises(LaunchError, match=rf"MASTER_ADDR=n0 leads to {address}, a link-local address") as refused:
        without_link_local((address,), "n0")
    assert refused.value.code == CONFIGURATION


@pytest.mark.parametrize(
    ("address", "one_machine", "interface"),
    [("127.0.0.1", True, "lo"), ("127.0.0.1", False, None), ("localhost", True, "lo"), ("256.0.0.1", True, None)],
)
def test_loopback_is_an_interface_for_one_machine_only(address: str, one_machine: bool, interface: str | None) -> None:
    assert interface_towards(address, one_machine=one_machine) == interface


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("gpu07", False),
    ],
)
def test_what_means_this_machine_alone(address: str, answer: bool) -> None:
    assert is_loopback(address) == answer


@pytest.mark.parametrize(
    ("environment", "marks", "runtime"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, (), "kubernetes"),
        ({"SLURM_JOB_ID": "7"}, (".dockerenv",), "slurm"),
        ({}, (".dockerenv",), "docker"),
        ({"COMPOSE_SERVICE": "train"}, (".dockerenv",), "compose"),
        ({"COMPOSE_SERVICE": "train"}, (), "host"),
        ({}, ("run/.containerenv",), "docker"),
        ({}, (), "host"),
    ],
)
def test_the_runtime_is_known(
    environment: dict[str, str], marks: tuple[str, ...], runtime: str, tmp_path: Path
) -> None:
    for mark in marks:
        (tmp_path / mark).parent.mkdir(exist_ok=True)
        (tmp_path / mark).touch()
    assert detect_runtime(environment, tmp_path) == runtime


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "does not resolve"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "no DNS"),
        (ConnectionRefusedError(), "refused"),
        (TimeoutError(), "timed out"),
        (OSError(errno.ETIMEDOUT, "x"), "timed out"),
        (OSError(errno.EHOSTUNREACH, "x"), "unreachable"),
        (OSError(errno.ENETUNREACH, "x"), "unreachable"),
        (ConnectionResetError(), "hung up"),
        (ValueError("odd"), "hung up"),
        (TryLaterError("later"), "not now"),
    ],
)
def test_failed_connections_have_kinds(error: BaseException, kind: str) -> None:
    assert connection_failure(error)[0] == kind


@pytest.mark.parametrize("runtime", ["docker", "kubernetes", "slurm", "host", "a new one"])
def test_every_kind_is_explained_for_every_runtime(runtime: str) -> None:
    for kind in CAUSES:
        line = explain_connection(kind, "words", "gpu07", 29500, runtime)
        assert "gpu07" in line
        assert "; usually: " in line
        assert "\n" not in line
    assert "every node must reach every other" in explain_ring(runtime)
    assert set(CAUSES["refused"]) == RUNTIMES.keys()


OWN = ("gpu01", "10.0.0.5")


@pytest.mark.parametrize(
    ("kind", "address", "runtime", "own", "cause"),
    [
        (
            "does not resolve",
            "n0",
            "docker",
            OWN,
            "leads to no machine; type a name or an address of this machine: gpu01, 10.0.0.5.",
        ),
        ("no DNS", "n0", "host", OWN, "leads to no machine; type a name or an address of this machine: gpu01, 10.0.0.5."),
        ("does not resolve", "lm-0.lm", "kubernetes", OWN, "node 0's pod has no address yet"),
        ("timed out", "n0", "host", OWN, "leads to another machine; type a name or an address of this machine: gpu01,"),
        ("does not resolve", "n0", "docker", (), "containers know each other's names only on a user-defined network"),
        ("refused", "localhost", "docker", (), "localhost is this container, and node 0 runs in another one; give the name"),
        ("refused", "127.0.0.1", "docker", (), "127.0.0.1 is this container"),
        ("unreachable", "localhost", "docker", (), "localhost is this container"),  # ::1, where IPv6 is off
        ("refused", "localhost", "host", (), "node 0 has not started yet"),
        ("refused", "n0", "docker", (), "node 0 has not started yet"),
        ("hung up", "lm-0.lm", "kubernetes", (), 'sidecar.istio.io/inject: "false"'),
        ("relayed", "lm-0.lm", "kubernetes", (), 'sidecar.istio.io/inject: "false"'),
    ],
)  # fmt: skip
def test_what_an_address_means_where_this_is_node_0_or_a_container(
    kind: str, address: str, runtime: str, own: tuple[str, ...], cause: str
) -> None:
    assert f"{cause}" in explain_connection(kind, "words", address, 29500, runtime, own=own)


def test_a_machine_knows_its_name_and_addresses_in_networks() -> None:
    name, *addresses = own_names()
    assert name == socket.gethostname()
    assert not any(ipaddress.ip_address(address).is_loopback for address in addresses)


@pytest.mark.parametrize(
    ("address", "service"),
    [
        ("lm-0.lm.research.svc.cluster.local", "lm --namespace research"),  # an Indexed Job's pod
        ("set-node-0-0.set.default.svc.cluster.local", "set --namespace default"),  # a JobSet's
        ("mnist-node-0-0.mnist", "mnist"),  # Kubeflow Trainer's
        ("mnist-master-0", "mnist-master-0"),  # PyTorchJob: the Service is called as the pod is
        ("lm.research.svc", "lm --namespace research"),
    ],
)
@pytest.mark.parametrize("kind", ["does not resolve", "no DNS"])
def test_under_kubernetes_a_name_without_an_address_is_explained_with_its_service(
    kind: str, address: str, service: str
) -> None:
    line = explain_connection(kind, "words", address, 29500, "kubernetes")
    assert f"kubectl get service {service}" in line
    assert f"the Service {service.split()[0]} " in line
    told = ("port 53",) if kind == "no DNS" else ("clusterIP: None", "publishNotReadyAddresses: true")
    assert all(words in line for words in told)


def test_a_resolver_that_does_not_answer_is_not_taken_for_node_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.launch.rendezvous.link.DIAL_SECONDS", 0.2)
    silent = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: silent.wait(10))
    try:
        with pytest.raises(socket.gaierror) as error:
            asyncio.run(resolve("lm-0.lm"))
    finally:
        silent.set()
    assert connection_failure(error.value) == ("no DNS", "no answer within 0 s")
