"""`slipway check` in containers: everything that is wrong is named in one table, and a healthy one leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from containers import Containers, fresh_name


def test_small_shared_memory_a_read_only_volume_and_an_unresolvable_peer_are_named_in_one_table(
    container: Containers, runs: Path
) -> None:
    nowhere = "-e RANK=1 -e WORLD_SIZE=2 -e MASTER_ADDR=no-such-host.invalid"
    table = container(f"--shm-size 64m --volume {runs}:/checkpoints:ro {nowhere} IMG check", code=78).stdout
    rows = {line[11:].partition("  ")[0]: line.split()[0] for line in table.splitlines() if line.startswith("  ")}
    assert rows["/dev/shm"] == "warning"
    assert rows["run directory"] == "error"
    assert rows["MASTER_ADDR"] == "error"
    assert rows["CPU product"] == "ok"
    assert rows["other nodes"] == "skipped"
    for words in (
        "--shm-size 1g",
        "mount it without :ro",
        "no-such-host.invalid does not resolve",
        "a user-defined network",
    ):
        assert words in " ".join(table.split())


def test_a_healthy_container_ends_with_0_and_leaves_nothing(container: Containers, runs: Path) -> None:
    done = container(f"--shm-size 1g --volume {runs}:/checkpoints IMG check --json")
    (node,) = json.loads(done.stdout)
    assert {row["level"] for row in node["findings"]} <= {"ok", "skipped"}, node
    assert list(runs.iterdir()) == []


def test_without_any_folder_that_can_be_written_the_rest_is_still_looked_at(container: Containers) -> None:
    table = container("--read-only --shm-size 1g IMG check --local", code=78).stdout
    assert "--tmpfs /tmp:exec,mode=1777" in " ".join(table.split())
    assert "CPU product" in table


def test_two_containers_show_each_others_findings(container: Containers, network: str) -> None:
    job = fresh_name()
    nodes = [
        container.start(
            f"{size} --volume /checkpoints --network {network} -e NPROC_PER_NODE=1 -e RANK={rank} -e WORLD_SIZE=2 "
            f"-e MASTER_ADDR={job}-0 IMG check",
            name=f"{job}-{rank}",
        )
        for rank, size in enumerate(("--shm-size 1g", "--shm-size 64m"))
    ]
    for node in nodes:
        table = node.wait(0).stdout
        assert "64 MB, 64 MB free" in table
        assert table.count("bus bandwidth at 8 MiB, 2 processes, gloo") == 2
