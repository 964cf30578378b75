"""Values that nobody chose, and addresses and interfaces that cannot be used, end before anything starts, with the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import Slipway, make_sources, resolve

from slipway.launch.resolve.interface_names import missing_interfaces
from slipway.protocol.errors import CONFIGURATION, LaunchError

SECOND = {"RANK": "1", "WORLD_SIZE": "2"}
TAKEN_AS_MEANT = {
    "node0": "node0",
    "node0.": "node0.",
    "n_0-a.ml.svc.cluster.local": "n_0-a.ml.svc.cluster.local",
    "käse": "käse",
    "10.0.0.1": "10.0.0.1",
    "127.1": "127.1",
    "::1": "::1",
    "[::1]": "::1",
    "[fd00::7]": "fd00::7",
    "fe80::1%eth0": "fe80::1%eth0",
    " localhost": "localhost",
    "localhost \t\n": "localhost",
    " [::1] ": "::1",
}
NO_ADDRESS = {
    "10.0.0.1 172.17.0.1 ": "these are 2 addresses. Give the one of node 0 that the others reach, 10.0.0.1 for example",
    "n0,n1,n2": "these are 3 addresses",
    "n0;n1": "these are 2 addresses",
    "fd00::1 fd00::2": "these are 2 addresses",
    "127.0.0.1:29500": "Set MASTER_ADDR=127.0.0.1 and MASTER_PORT=29500",
    "node0:1": "Set MASTER_ADDR=node0 and MASTER_PORT=1",
    "[::1]:29500": "Set MASTER_ADDR=[::1] and MASTER_PORT=29500",
    "tcp://127.0.0.1:29500": "it is a URL. Give the host alone, 127.0.0.1",
    "tcp://[fd00::7]:29500": "it is a URL. Give the host alone, fd00::7, and",
    "tcp://me@[fd00::7]": "it is a URL. Give the host alone, and",
    "node0:": "it ends with a colon. Give the name or address of node 0 alone",
    "node0:a": "':' cannot be part of a host's name",
    "node0,": "',' cannot be part of a host's name",
    ";node0": "';' cannot be part of a host's name",
    "http://node0/": "it is a URL. Give the host alone, node0",
    "env://": "it is a URL. Give the host alone, and",
    "[node0]x": "'[' cannot be part of a host's name",
    "[::1": "it is not an IPv6 address",
    "1::2::3": "it is not an IPv6 address",
    "10.0.0.256": "it is not an IPv4 address",
    "0": "it is a number",
    "29500": "it is a number",
    "-node0": "no part of a host's name begins or ends with a hyphen",
    "node0-": "no part of a host's name begins or ends with a hyphen",
    "node0.-ml.example": "no part of a host's name begins or ends with a hyphen",
    "10.0.0.1/24": "'/' cannot be part of a host's name",
    "me@node0": "'@' cannot be part of a host's name",
    '"node0"': "the quotes are part of the value: docker's --env-file keeps them. Write MASTER_ADDR=node0",
    "node0..ml": "each part of a host's name has 1 to 63 characters",
    "n" * 64: "each part of a host's name has 1 to 63 characters",
    "localhost\r": "it has a carriage return in it",
    "\r": "it has a carriage return in it",
    " ": "it is blank",
    "${MASTER_ADDR}": "this placeholder was not replaced",
    "$MASTER_ADDR": "this placeholder was not replaced",
    "$(scontrol show hostnames | head -n 1)": "this placeholder was not replaced",
    "`hostname`": "this placeholder was not replaced",
    "{{ master }}": "this placeholder was not replaced",
    "<node 0>": "this placeholder was not replaced",
    "%q{MASTER}": "this placeholder was not replaced",
}


@pytest.mark.parametrize("given", TAKEN_AS_MEANT)
def test_an_address_is_taken_as_it_is_meant(given: str) -> None:
    assert resolve(SECOND | {"MASTER_ADDR": given}).master_addr == TAKEN_AS_MEANT[given]


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("given", NO_ADDRESS)
def test_what_cannot_be_an_address_ends_with_78_and_the_cause(slipway: Slipway, given: str, command: str) -> None:
    answer = slipway(command, "linear", MASTER_ADDR=given, **SECOND)
    assert (answer.code, answer.out) == (78, "")
    assert NO_ADDRESS[given] in answer.err
    assert "(from the environment)" in answer.err


@pytest.mark.parametrize("name", ["PET_MASTER_ADDR", "MASTER_ADDR"])
def test_it_is_the_same_whoever_gave_the_address(name: str) -> None:
    with pytest.raises(LaunchError, match="these are 2 addresses") as caught:
        resolve({"PET_NNODES": "2", "PET_NODE_RANK": "1", name: "n0 n1"})
    assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize("given", ["10.0.0.1 172.17.0.1", "${MASTER_ADDR}", "n0:29500"])
def test_a_single_node_names_the_address_that_it_ignores(given: str) -> None:
    topology = resolve({"MASTER_ADDR": given})
    (note,) = [note for note in topology.notes if "ignored" in note]
    assert f"MASTER_ADDR={given} (from the environment)" in note
    assert topology.values["MASTER_ADDR"].source == "default"


NUMBERS = {
    ("RANK", "$(JOB_COMPLETION_INDEX)"): "this placeholder was not replaced",
    ("RANK", "${SLURM_NODEID}"): "this placeholder was not replaced",
    ("RANK", "1\r"): "carriage return",
    ("NODE_RANK", "$OMPI_COMM_WORLD_RANK"): "this placeholder was not replaced",
    ("WORLD_SIZE", "{{ nodes }}"): "this placeholder was not replaced",
    ("NNODES", "$(N)"): "this placeholder was not replaced",
    ("NPROC_PER_NODE", "$GPUS"): "this placeholder was not replaced",
    ("MASTER_PORT", "${PORT}"): "this placeholder was not replaced",
    ("MASTER_PORT", "tcp://10.96.0.12:29500"): 'a Kubernetes Service called "master" put it there',
    ("SLIPWAY_METRICS_PORT", "tcp://10.96.0.9:80"): 'a Kubernetes Service called "slipway-metrics" put it there',
    ("SLIPWAY_GRACE_SECONDS", "$GRACE"): "this placeholder was not replaced",
}


@pytest.mark.parametrize(("name", "given"), NUMBERS)
def test_what_stands_in_the_place_of_a_number_is_explained_and_no_example_is_typed(
    slipway: Slipway, name: str, given: str
) -> None:
    answer = slipway("plan", "linear", **({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"} | {name: given}))
    assert answer.code == 78
    assert NUMBERS[name, given] in answer.err
    assert "Type for example" not in answer.err, "--node-rank 0 on all pods"


def test_a_single_node_needs_no_port_and_names_the_one_of_a_service_that_it_ignores() -> None:
    topology = resolve({"MASTER_PORT": "tcp://10.96.0.12:29500"})
    assert topology.master_port == 40_001
    assert [note for note in topology.notes if 'a Kubernetes Service called "master"' in note]
    with pytest.raises(LaunchError, match="Service"):
        resolve({}, {"MASTER_PORT": "tcp://10.96.0.12:29500"})  # typed: it is meant


@pytest.mark.parametrize("option", ["--nproc-per-node", "--nnodes", "--runs", "--run-dir", "--master-addr", "--resume"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_an_option_without_a_value_is_said_to_be_empty(slipway: Slipway, option: str, command: str) -> None:
    answer = slipway(command, f"{option}=", "linear")
    assert answer.code == 78
    assert f"{option}: the value is empty. A shell variable that is not set leaves nothing." in answer.err


HERE = ("lo", "eth0", "eth1", "ibs10")
INTERFACES = {  # backend, whether the workload is ours, name, value -> what is said
    ("gloo", False, "GLOO", "eth0"): "",
    ("gloo", False, "GLOO", "eth0,eth1"): "",
    ("gloo", False, "GLOO", "eth0,"): "",
    ("gloo", False, "GLOO", "ib0"): "gloo finds no interface 'ib0' with an address",
    ("gloo", False, "GLOO", "eth0,ib0,ib1"): "gloo finds no interface 'ib0', 'ib1' with an address",
    ("gloo", False, "GLOO", "eth"): "gloo finds no interface 'eth'",
    ("gloo", False, "GLOO", "eth0, eth1"): "gloo finds no interface ' eth1'",
    ("gloo", False, "GLOO", "^docker0,lo"): "^ is supported only by NCCL; gloo",
    ("gloo", False, "GLOO", "=eth0"): "= is supported only by NCCL; gloo",
    ("gloo", False, "NCCL", "ib0"): "",
    ("nccl", False, "NCCL", "eth"): "",
    ("nccl", False, "NCCL", "=eth0"): "",
    ("nccl", False, "NCCL", "eth0:5000,eth1"): "",
    ("nccl", False, "NCCL", "ib0,ibs"): "",
    ("nccl", False, "NCCL", "^docker,lo"): "",
    ("nccl", False, "NCCL", "^=eth0"): "",
    ("nccl", False, "NCCL", "ib0"): "NCCL finds no interface with an address by that",
    ("nccl", False, "NCCL", "=eth"): "NCCL finds no interface with an address by that",
    ("nccl", False, "NCCL", "^lo,eth,ib"): "NCCL finds no interface with an address by that",
    ("nccl", False, "GLOO", "ib0"): "",
    ("nccl", True, "GLOO", "ib0"): "gloo finds no interface 'ib0'",
    ("mpi", False, "GLOO", "ib0"): "",
}


@pytest.mark.parametrize(("backend", "own", "name", "value"), INTERFACES)
def test_interfaces_are_looked_for_as_the_library_does(backend: str, own: bool, name: str, value: str) -> None:
    variable, said = f"{name}_SOCKET_IFNAME", INTERFACES[backend, own, name, value]
    problem = missing_interfaces(make_sources({}, env_file={variable: value}), backend, own, HERE)
    if not said:
        assert problem == ""
        return
    assert problem.startswith(f"{variable}={value} (from .env): {said}")
    assert problem.endswith(f"This node has eth0, eth1, ibs10, lo. Set {variable} to one of them, or unset it.")


@pytest.mark.parametrize(("processes", "warned"), [("1", False), ("2", True)])
def test_a_script_in_one_process_may_need_no_interface(slipway: Slipway, processes: str, warned: bool) -> None:
    Path("t.py").touch()
    planned = slipway("plan", "--nproc-per-node", processes, "t.py", GLOO_SOCKET_IFNAME="no-such0")
    assert planned.code == 0
    assert ("warning: `slipway run` ends with 78" in planned.out) == warned


def test_the_plan_warns_of_an_interface_that_is_not_there_and_run_refuses_it(slipway: Slipway) -> None:
    planned = slipway("plan", "linear", GLOO_SOCKET_IFNAME="no-such0")
    assert planned.code == 0
    assert "warning: `slipway run` ends with 78 here. GLOO_SOCKET_IFNAME=no-such0 (from the environment)" in planned.out
    ended = slipway("run", "linear", GLOO_SOCKET_IFNAME="no-such0")
    assert ended.code == 78
    assert "no-such0" in ended.err
    assert not Path("runs").exists()
