"""Several nodes as containers: they find each other by name, train the same weights, and say what keeps them apart."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from containers import Container, Containers, docker, fresh_name
from ports import take_port

# One process a node. With the same number of threads two containers add up what one with two processes does.
OPTIONS = (
    "--shm-size 1g --stop-timeout 120 -e NPROC_PER_NODE={processes} -e OMP_NUM_THREADS=1 --volume {runs}:/checkpoints"
)


def end_state(runs: Path) -> tuple[str, float]:
    """The checksum of the newest snapshot's weights, and the validation loss over all processes, from one run."""
    manifest = json.loads(next(runs.glob("*/snapshots/*/manifest.json")).read_text())
    last = next(runs.glob("*/metrics.jsonl")).read_text().splitlines()[-1]
    return manifest["files"]["model.safetensors"]["sha256"], json.loads(last)["val_loss"]


@pytest.mark.parametrize(
    ("first", "workload"),
    [(0, "linear --epochs 1"), (1, "gpt --steps 4 --eval-samples 64 --sample-tokens 0")],
    ids=["linear, node 0 first", "gpt, node 1 first"],
)
def test_two_containers_reach_the_weights_that_one_with_two_processes_reaches(
    container: Containers, network: str, tmp_path: Path, first: int, workload: str
) -> None:
    def options(processes: int, name: str) -> str:
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name).chmod(0o777)
        return OPTIONS.format(processes=processes, runs=tmp_path / name)

    job = fresh_name()
    nodes = [
        container.start(
            f"{options(1, f'node-{rank}')} --network {network} -e RANK={rank} -e WORLD_SIZE=2 "
            f"-e MASTER_ADDR={job}-0 IMG {workload}",
            name=f"{job}-{rank}",
        )
        for rank in (first, 1 - first)
    ]
    endings = [[line for line in node.wait(0).closing if line.startswith("finished on 2 nodes")] for node in nodes]
    assert len(endings[0]) == 1
    assert endings[0] == endings[1]
    assert "2 nodes × 1 CPU process = 2 processes" in nodes[0].text
    container(f"{options(2, 'alone')} IMG {workload}")
    # The loss is summed over the samples of both nodes, each with the weights that it ended with.
    assert end_state(tmp_path / "node-0") == end_state(tmp_path / "alone")


def node(network: str, rank: int, master: str, *, words: str = "linear", options: str = "") -> str:
    """The line of a node with one process that waits a few seconds for the others."""
    return (
        f"--shm-size 1g --volume /checkpoints --network {network} -e RANK={rank} -e WORLD_SIZE=2 -e MASTER_ADDR={master} "
        f"-e SLIPWAY_RENDEZVOUS_TIMEOUT=20 {options} IMG {words}"
    )


def test_containers_on_the_network_of_the_host_find_each_other(container: Containers) -> None:
    port = f"-e MASTER_PORT={take_port()}"
    lines = [node("host", rank, "localhost", words=f"linear --epochs {rank + 1}", options=port) for rank in (0, 1)]
    for each in [container.start(line) for line in lines]:
        said(each.wait(78), "differ in arguments")  # which only those know that have met


def test_one_published_port_between_two_bridges_ends_with_the_advice_of_network_host(
    container: Containers, network: str, undo: ExitStack
) -> None:
    other = fresh_name()
    docker("network", "create", other)
    undo.callback(docker, "network", "rm", other)
    # Another bridge's gateway is this machine, as another machine's address would be.
    machine = docker("network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", other).strip()
    port = take_port()
    options = f"-e MASTER_PORT={port}"
    zero = container.start(node(network, 0, machine, options=f"{options} --publish {port}:{port}"))
    one = container.start(node(other, 1, machine, options=options))
    for each in (zero, one):
        advice = said(each.wait(78), "cannot connect to node")
        assert "--network host" in advice
        assert "publishing one port" in advice
        assert "run directory" not in each.text, "nothing was started"


def said(container: Container, words: str) -> str:
    """What the launcher said from the line with these words on."""
    lines = container.closing
    start = next((number for number, line in enumerate(lines) if words in line), None)
    assert start is not None, container.text
    return "\n".join(lines[start:])
