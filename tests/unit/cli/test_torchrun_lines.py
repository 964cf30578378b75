"""Lines for torchrun as READMEs and job files have them, with `slipway run` in place of the word: what they become, or which message."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Slipway, make_devices

from slipway.cli import arguments

NODE_1 = {"SLURM_JOB_ID": "77", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[1-2]"}
SLURM = {**NODE_1, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
PET = {
    "PET_NNODES": "2:4",
    "PET_NPROC_PER_NODE": "4",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "lm-worker-0:23456",
}
ELASTIC = {**PET, "PET_RDZV_ID": "lm"}

# The words before the script; the environment; nodes (fewest to most), rank, processes per node, address, port.
LINES: list[tuple[str, dict[str, str], tuple[Any, ...]]] = [
    # One node: all of the rendezvous is without effect.
    ("--standalone --nproc_per_node=8", {}, (1, 0, 8, "127.0.0.1", "free")),
    ("--standalone --nnodes=1 --nproc-per-node=gpu", {}, (1, 0, 8, "127.0.0.1", "free")),
    ("--nproc_per_node 4 --master_port 29501", {}, (1, 0, 4, "127.0.0.1", 29501)),
    ("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=4", {}, (1, 0, 4, "127.0.0.1", "free")),
    ("--nnodes=1 --nproc_per_node=2 --rdzv_id=100 --rdzv_backend=c10d --rdzv_endpoint=localhost:29400", {}, (1, 0, 2, "127.0.0.1", "free")),
    ("--nnodes 1:1 --nproc-per-node 2 --rdzv-endpoint head:29400 --max-restarts 3", {}, (1, 0, 2, "127.0.0.1", "free")),
    ("--nnodes 1 --nproc-per-node 2 --rdzv-backend etcd --rdzv-endpoint etcd:2379", {}, (1, 0, 2, "127.0.0.1", "free")),
    # Several nodes with ranks.
    ("--nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=10.0.0.1 --master_port=1234", {}, (2, 0, 8, "10.0.0.1", 1234)),
    ("--nnodes=2 --node_rank=1 --nproc_per_node=8 --master_addr=10.0.0.1 --master_port=1234", {}, (2, 1, 8, "10.0.0.1", 1234)),
    ("--nnodes 4 --node-rank 3 --nproc-per-node 8 --master-addr node0", {}, (4, 3, 8, "node0", 29500)),
    ("--nnodes 2 --node-rank 1 --nproc-per-node 8 --rdzv-id 1 --rdzv-backend static --rdzv-endpoint node0:29600", {}, (2, 1, 8, "node0", 29600)),
    ("--nnodes 2 --node-rank 1 --nproc-per-node 4 --rdzv-id 456 --rdzv-backend c10d --rdzv-endpoint h1:29500", {}, (2, 1, 4, "h1", 29500)),
    ("--nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint h1:29500 --rdzv_id 9", {"NODE_RANK": "1"}, (2, 1, 8, "h1", 29500)),
    ("--nnodes 2 --nproc_per_node 8 --rdzv_endpoint h1:29500 --rdzv_id 9 --max_restarts=0", {"RANK": "1"}, (2, 1, 8, "h1", 29500)),
    ("--nnodes 2 --nproc_per_node 8 --rdzv_id 77 --rdzv_backend c10d --rdzv_endpoint gpu1:29500", SLURM, (2, 1, 8, "gpu1", 29500)),
    ("--nnodes 2 --nproc_per_node 8 --rdzv_id 5 --rdzv_endpoint gpu1 --rdzv_conf is_host=true", {}, (2, 0, 8, "gpu1", 29500)),
    # Several nodes without ranks.
    ("--nnodes 2 --nproc-per-node 8 --rdzv-id J --rdzv-backend c10d --rdzv-endpoint node0:29500", {}, (2, None, 8, "node0", 29500)),
    ("--nnodes=4 --nproc_per_node=8 --rdzv_id=101 --rdzv_backend=c10d --rdzv_endpoint=10.1.2.3:29400", {}, (4, None, 8, "10.1.2.3", 29400)),
    ("--nnodes 2 --nproc-per-node 1 --rdzv-id=J --rdzv-backend=c10d --rdzv-endpoint=node0.example.com", {}, (2, None, 1, "node0.example.com", 29500)),
    ("--nnodes 2 --nproc-per-node 1 --rdzv-id=J --rdzv-endpoint=[fd00::7]:29400", {}, (2, None, 1, "fd00::7", 29400)),
    ("--nnodes 2 --nproc-per-node 1 --rdzv-id=J --rdzv-endpoint=fd00::7", {}, (2, None, 1, "fd00::7", 29500)),
    ("--nnodes=1:4 --nproc-per-node=8 --max-restarts=3 --rdzv-id=J --rdzv-backend=c10d --rdzv-endpoint=node0:29400", {}, ("1:4", None, 8, "node0", 29400)),
    ("--nnodes 2:3 --nproc-per-node 2 --rdzv-id J --rdzv-endpoint node0 --rdzv-conf join_timeout=900,last_call_timeout=10", {}, ("2:3", None, 2, "node0", 29500)),
    ("--nnodes 2 --nproc-per-node 8 --rdzv-endpoint node0:29500 --rdzv-conf timeout=900,read_timeout=60", {"SLIPWAY_TOKEN": "0123456789abcdef"}, (2, None, 8, "node0", 29500)),
    ("--nnodes 2 --nproc-per-node 8 --rdzv-endpoint node0:29500 --run-dir runs/exp1", {}, (2, None, 8, "node0", 29500)),
    ("--nnodes 2 --nproc-per-node 8 --node-rank auto --master-addr node0 --rdzv-id J", {}, (2, None, 8, "node0", 29500)),
    # A PyTorchJob with an elasticPolicy, and a starter that counts nodes by the names that torchrun gives to processes.
    ("", ELASTIC, ("2:4", None, 4, "lm-worker-0", 23456)),
    ("--nnodes 2 --node-rank 1", ELASTIC, (2, 1, 4, "lm-worker-0", 23456)),
    ("--master-addr node0 --node-rank 1", ELASTIC, ("2:4", 1, 4, "node0", 29500)),
    ("", ELASTIC | {"PET_NNODES": "1"}, (1, 0, 4, "127.0.0.1", "free")),
    ("", {"RANK": "1", "WORLD_SIZE": "2", "NPROC_PER_NODE": "8", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}, (2, 1, 8, "job-master-0", 23456)),
    ("--nnodes 2+1 --nproc-per-node 8 --rdzv-id J --rdzv-endpoint node0", {}, ("2+1", None, 8, "node0", 29500)),
    ("--nproc-per-node auto --rdzv-id J --rdzv-endpoint node0:29500", {"NNODES": "2"}, (2, None, 8, "node0", 29500)),
    ("--node-rank auto --nproc-per-node 8", {}, (1, 0, 8, "127.0.0.1", "free")),
]  # fmt: skip


@pytest.mark.parametrize(("words", "environ", "planned"), LINES, ids=[words for words, *_ in LINES])
def test_a_line_for_torchrun_is_planned_as_its_user_means_it(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, words: str, environ: dict[str, str], planned: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(arguments, "listen", lambda *_, **__: socket.socket())  # another program may have node 0's port
    Path("train.py").touch()
    answer = slipway("plan", "--json", *words.split(), "train.py", "--lr", "1", devices=make_devices(8), **environ)
    assert answer.code == 0, answer.err
    topology = json.loads(answer.out)["topology"]
    nodes, rank, processes, address, port = planned
    least, most, spares = topology["least_nodes"], topology["nodes"], topology["spare_nodes"]
    assert str(nodes) == (f"{least}:{most}" if least < most else f"{most}+{spares}" if spares else str(most))
    assert (topology["node_rank"], topology["processes_per_node"]) == (rank, processes)
    assert topology["master_addr"] == address
    assert topology["master_port"] == port or port == "free"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29500", "--rdzv-id NAME, --run-dir DIR, or a SLIPWAY_TOKEN"),
        ("--nnodes 2 --node-rank auto --master-addr node0", "--node-rank auto takes a free rank"),
        ("--nnodes 2 --node-rank auto --rdzv-id J", "2 nodes need MASTER_ADDR"),
        ("--nnodes 2 --rdzv-id J --rdzv-backend etcd-v2 --rdzv-endpoint etcd:2379", "--rdzv-backend c10d --rdzv-endpoint HOST:29500"),
        ("--nnodes 2 --rdzv-id J --rdzv-endpoint node0:port", "HOST or HOST:PORT"),
        ("--nnodes 2 --rdzv-id J --rdzv-endpoint node0:29500 --master-addr node1", "Leave one of them out"),
        ("--nnodes 2 --rdzv-id J --rdzv-endpoint node0 --rdzv-conf join_timeot=5", "join_timeout"),
        ("--nnodes 2 --rdzv-id J --rdzv-endpoint node0 --rdzv-conf is_host=perhaps", "true or false"),
        ("--nnodes 2 --rdzv-id J --rdzv-endpoint node0 --rdzv-conf join_timeout=soon", "whole number"),
        ("--nnodes 2 --rdzv-id J --rdzv-endpoint 0.0.0.0:29500", "an address to listen on"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_work_is_78_with_what_to_type(slipway: Slipway, words: str, says: str) -> None:
    answer = slipway("plan", *words.split(), "linear")
    assert answer.code == 78, answer.out
    assert says in answer.err


def test_a_pytorchjob_without_a_rank_needs_an_identity(slipway: Slipway) -> None:
    answer = slipway("plan", "linear", **PET)
    assert answer.code == 78
    assert "--rdzv-id NAME" in answer.err


def test_the_plan_says_where_ranks_and_times_come_from(slipway: Slipway) -> None:
    words = "--nnodes 2:3 --rdzv-id J --rdzv-endpoint node0 --rdzv-conf join_timeout=900,last_call_timeout=10,close_timeout=5"
    answer = slipway("plan", *words.split(), "linear")
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert "RANK auto the rendezvous endpoint, since no rank is given" in lines
    assert "MASTER_ADDR node0 command line (--rdzv-endpoint)" in lines
    assert "SLIPWAY_RENDEZVOUS_TIMEOUT 900 command line (--rdzv-conf join_timeout)" in lines
    assert "SLIPWAY_ELASTIC_WINDOW 10 command line (--rdzv-conf last_call_timeout)" in lines
    assert "--rdzv-conf close_timeout has no effect here: a job ends on all nodes at once" in answer.out
    assert "(--rdzv-id J)" in answer.out
    assert "PLACE is what this node learns at the start" in answer.out


def test_what_is_typed_under_slipways_own_name_counts_before_torchruns(slipway: Slipway) -> None:
    words = "--nnodes 2 --node-rank 1 --rdzv-id J --rdzv-endpoint node0 --rdzv-conf join_timeout=900,is_host=true"
    answer = slipway("plan", "--json", "--rendezvous-timeout", "5", *words.split(), "linear")
    plan = json.loads(answer.out)
    assert plan["topology"]["node_rank"] == 1
    assert plan["values"]["SLIPWAY_RENDEZVOUS_TIMEOUT"]["value"] == "5"
