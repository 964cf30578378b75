"""`slipway selftest` as a command: which rows, what it prints, what it leaves. The rows are made up."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins import Slipway, make_devices, make_host

from slipway.check import selftest
from slipway.check.finding import broken, ok
from slipway.check.selftest import SelftestRow
from slipway.check.selftest_trial import Sandbox
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve import devices, host


def good(name: str, sandbox: Sandbox) -> Iterator[Finding]:
    (sandbox.folder / "left").touch()
    yield ok(name, "right")


def bad(name: str, sandbox: Sandbox) -> Iterator[Finding]:
    yield broken(name, "wrong numbers", 77, "take it out")


def breaks(name: str, sandbox: Sandbox) -> Iterator[Finding]:
    yield ok(name, "the first half")
    raise ValueError("no such thing")


@pytest.fixture(autouse=True)
def _stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = (
        SelftestRow("good", "", good),
        SelftestRow("bad", "", bad),
        SelftestRow("breaks", "", breaks),
        SelftestRow("gpu", "", bad, selftest.no_gpu),
    )
    monkeypatch.setattr(selftest, "ROWS", made)
    monkeypatch.setattr(devices, "read_devices", lambda environ: make_devices())
    monkeypatch.setattr(host, "read_host", lambda environ: make_host())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def left(folder: Path) -> list[Path]:
    return list(folder.glob("slipway-selftest-*"))


def test_what_works_and_what_is_skipped_end_with_0_and_leave_nothing(slipway: Slipway, tmp_path: Path) -> None:
    answer = slipway("selftest", "--only", "gpu, good")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].split() == ["ok", "good", "right", "(0", "s)"]
    assert lines[1].split()[:5] == ["skipped", "gpu", "needs", "a", "GPU:"]
    assert lines[2] == "1 ok, 1 skipped, in 0 s"
    assert lines[3].startswith("no GPU (no NVIDIA driver), ")
    assert "slipway: selftest 2/2: gpu" in answer.err
    assert left(tmp_path) == []


def names_the_host(name: str, sandbox: Sandbox) -> Iterator[Finding]:
    yield ok(name, f"{socket.gethostname()}: a|b\n in {sandbox.folder}/x, {socket.gethostname()}-like")


def test_a_report_for_an_issue_names_no_host_and_no_folder(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-17")
    monkeypatch.setattr(selftest, "ROWS", (SelftestRow("host", "", names_the_host), SelftestRow("good", "", good)))
    answer = slipway("selftest", "--report")
    head, line, machine, code, host, last = answer.out.splitlines()
    assert (head, line) == ("| row | result |", "| --- | --- |")
    assert machine.startswith("| machine | no GPU (no NVIDIA driver), ")
    assert code == "| exit code | 0 |"
    assert host == "| host | ok: …: a\\|b in …/x, gpu-17-like (0 s) |"
    assert last == "| good | ok: right (0 s) |"


def test_a_report_is_not_json(slipway: Slipway) -> None:
    answer = slipway("selftest", "--report", "--json")
    assert answer.code == 2
    assert "--json is for programs and --report for an issue" in answer.err


def test_rows_that_fail_hide_no_others_and_what_they_left_is_named(slipway: Slipway, tmp_path: Path) -> None:
    answer = slipway("selftest", "--json")
    report = json.loads(answer.out)
    assert answer.code == report["code"] == 77
    assert {row["what"]: row["level"] for row in report["rows"]} == {
        "good": "ok", "bad": "failed", "breaks": "failed", "gpu": "skipped",
    }  # fmt: skip
    assert report["rows"][2]["found"] == "ValueError: no such thing"
    assert set(report["rows"][1]) == {"what", "level", "found", "advice", "code", "seconds"}
    assert {"slipway", "image", "torch", "cuda", "nccl", "driver", "gpus", "kernel", "links"} <= set(report["machine"])
    [folder] = left(tmp_path)
    assert f"the run directories of the jobs are in {folder}" in answer.err


def test_what_is_no_nodes_fault_is_the_images(slipway: Slipway) -> None:
    answer = slipway("selftest", "--only", "breaks")
    assert answer.code == 1
    assert "exit code 1: the image, or this checkout, is broken" in answer.out


def test_a_row_that_is_not_there_is_a_mistake(slipway: Slipway) -> None:
    answer = slipway("selftest", "--only", "good,gppu")
    assert answer.code == 2
    assert "'gppu' is not a row; type some of good,bad,breaks,gpu. Did you mean gpu?" in answer.err
