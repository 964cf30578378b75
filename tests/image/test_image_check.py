"""`slipway check` in containers: everything that is wrong is named in one table, and a healthy one leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from containers import Containers


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
