"""What keeps NCCL from a host's InfiniBand is a warning with what to add; a host without has no such row."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stand_ins import write_files

from slipway.check.devices import look_at_infiniband

PORT, FILE = "sys/class/infiniband/mlx5_0/ports/1/state", "dev/infiniband/uverbs0"
GOOD = {PORT: "4: ACTIVE\n", FILE: "", "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n"}


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in GOOD.items() if name not in names}


def missing(name: str) -> object:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_host_without_adapters_has_no_row(tmp_path: Path) -> None:
    assert list(look_at_infiniband("docker", write_files(tmp_path, {FILE: ""}))) == []


def test_adapters_that_can_be_used_are_named(tmp_path: Path) -> None:
    (row,) = look_at_infiniband("docker", write_files(tmp_path, GOOD), str)
    assert (row.what, row.level, row.found) == (
        "InfiniBand",
        "ok",
        "mlx5_0, mlx5_1: device files and library are available; ports: not active: mlx5_1",
    )


@pytest.mark.parametrize(
    ("files", "runtime", "found", "advice"),
    [
        (without(FILE), "docker", "/dev/infiniband does not exist here", "--device /dev/infiniband --ulimit memlock=-1"),
        (without(FILE), "kubernetes", "/dev/infiniband does not exist here", "k8s/components/rdma"),
        (without(FILE), "slurm", "/dev/infiniband does not exist here", "MELLANOX_VISIBLE_DEVICES=all"),
        (without(FILE), "host", "/dev/infiniband does not exist here", "modprobe ib_uverbs"),
        (GOOD | {PORT: "1: DOWN\n"}, "docker", "no port is active", "ibstat"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_with_what_to_add(
    tmp_path: Path, files: dict[str, str], runtime: str, found: str, advice: str
) -> None:
    (row,) = look_at_infiniband(runtime, write_files(tmp_path, files), str)
    assert (row.level, row.code) == ("warning", 0)
    assert found in row.found
    assert "NCCL uses TCP" in row.found
    assert advice in row.advice


def test_a_missing_library_is_told(tmp_path: Path) -> None:
    (row,) = look_at_infiniband("host", write_files(tmp_path, GOOD), missing)
    assert "libibverbs.so.1 is missing" in row.found
    assert "apt-get install libibverbs1" in row.advice


def test_files_that_may_not_be_opened_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    (row,) = look_at_infiniband("docker", write_files(tmp_path, GOOD), str)
    assert "may not open uverbs0" in row.found
