"""What proves a row of `slipway selftest`, and what breaks it: made-up ends of jobs, read as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import make_devices, make_host

from slipway.check.finding import misconfigured, ok, sick, warning
from slipway.check.products import ProbeEnding
from slipway.check.selftest_trial import (
    STACK,
    Ended,
    code_of_all,
    count_processes,
    environment_of_jobs,
    judge_bandwidth,
    judge_fault,
    judge_finding,
    judge_node,
    judge_probe,
    judge_resume,
    judge_stacks,
    judge_training,
)
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.devices import Devices

RAISED = {"rank": 1, "cause": "said", "evidence": "RuntimeError: this rank raises an exception on purpose"}


def ended(folder: Path, code: int | None = 0, metrics: dict[str, float] | None = None, **first: Any) -> Ended:
    """A job with this end, its verdict's first cause, and a line of metrics."""
    folder.mkdir(exist_ok=True)
    (folder / "outcome.json").write_text(json.dumps({"first": first or None}))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 50, **(metrics or {})}))
    return Ended(code, "a line\nthe last line\n", folder)


@pytest.mark.parametrize(
    ("fault", "device", "code", "first", "level", "stands_for"),
    [
        ("raise", "cpu", 1, RAISED, "ok", 0),
        ("raise", "cpu", 1, {**RAISED, "rank": 0}, "failed", 1),
        ("raise", "cpu", 76, RAISED, "failed", 1),
        ("raise", "cpu", 0, {}, "failed", 1),
        ("raise", "cpu", None, {}, "failed", 1),
        ("raise", "cpu", 1, {"rank": 1, "evidence": "ValueError: another"}, "failed", 1),
        ("raise", "cuda", 77, {"rank": 1, "evidence": "CUDA error: uncorrectable ECC"}, "failed", 77),
        ("kill", "cpu", 1, {"rank": 1, "cause": "killed", "evidence": "SIGKILL: somebody killed it (kill -9)"}, "ok", 0),
        ("kill", "cpu", 1, {"rank": 1, "cause": "said", "evidence": "SIGKILL, as it printed"}, "failed", 1),
        ("hang", "cuda", 76, {"rank": 1, "cause": "hang", "evidence": "hang: behind: rank 1 (train, step 2)"}, "ok", 0),
        ("memory", "cuda", 1, {"rank": 1, "cause": "said", "evidence": "OutOfMemoryError: CUDA out of memory."}, "ok", 0),
        ("memory", "cpu", 1, {"rank": 1, "cause": "said", "evidence": "OutOfMemoryError: CUDA out of memory."}, "failed", 1),
        ("memory", "cpu", 1, {"rank": 1, "cause": "said", "evidence": "RuntimeError: can't allocate memory: you tried"}, "ok", 0),
    ],
)  # fmt: skip
def test_a_fault_is_proved_by_its_exit_code_its_rank_and_its_words(
    tmp_path: Path, fault: str, device: str, code: int | None, first: dict[str, Any], level: str, stands_for: int
) -> None:
    row = judge_fault("row", fault, device, 1, ended(tmp_path, code, **first))
    assert (row.level, row.code) == (level, stands_for), row


def test_a_hang_leaves_the_stacks_of_all_ranks(tmp_path: Path) -> None:
    job, row = ended(tmp_path), Finding("hang", "ok", "exit code 76")
    logs = tmp_path / "node-0" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_text(f"Thread 0x1 ({STACK}):\n")
    assert judge_stacks(row, 2, 0, job).found == "rank 1 left no stacks: exit code 76"
    (logs / "rank-1.log").write_text(f"Thread 0x1 ({STACK}):\n")
    assert judge_stacks(row, 2, 0, job).found == "exit code 76; stacks of all ranks"
    assert judge_stacks(row, 2, 8, job).found.endswith(", 8 files of the flight recorder")
    wrong = Finding("hang", "failed", "ended with 0", code=1)
    assert judge_stacks(wrong, 2, 0, job) == wrong


@pytest.mark.parametrize(
    ("metrics", "level", "words"),
    [
        ({"loss": 3.2, "tokens_per_second": 812_345.6, "mfu": 0.412}, "ok", "loss 3.20 of 5.55, 812,346 tokens/s, 41.2% MFU"),
        ({"loss": 3.2, "tokens_per_second": 900}, "ok", "900 tokens/s"),
        ({"loss": 5.6}, "failed", "an untrained model has 5.55"),
        ({}, "failed", "a loss of nan"),
    ],
)  # fmt: skip
def test_a_training_has_to_learn(tmp_path: Path, metrics: dict[str, float], level: str, words: str) -> None:
    row = judge_training("gpt", ended(tmp_path, metrics=metrics))
    assert row.level == level
    assert words in row.found


def test_a_job_that_should_have_finished_tells_its_verdict_and_whose_fault_it_is(tmp_path: Path) -> None:
    row = judge_training("gpt", ended(tmp_path, 77, evidence="/dev/shm is full", advice="--shm-size 1g"))
    assert row == Finding("gpt", "failed", "ended with 77: /dev/shm is full", "--shm-size 1g", 77)
    assert judge_training("gpt", ended(tmp_path, 76)) == Finding("gpt", "failed", "ended with 76: the last line", "", 1)
    assert judge_training("gpt", ended(tmp_path, 78)).code == 78
    assert "had not ended after" in judge_training("gpt", ended(tmp_path, None)).found


def test_the_bus_bandwidth_stands_beside_what_the_links_carry(tmp_path: Path) -> None:
    report = {"complete": True, "processes": 8, "backend": "nccl"}
    report["results"] = [{"bus_gb_per_second": rate} for rate in (1.0, 361.2)]
    row = judge_bandwidth("all-reduce", ended(tmp_path), report, "18 NVLinks, 478 GB/s each way")
    assert row.found == (
        "8 processes, nccl: sums right, bus bandwidth up to 361 GB/s beside 18 NVLinks, 478 GB/s each way"
    )
    assert judge_bandwidth("all-reduce", ended(tmp_path), {**report, "complete": False}, "").level == "failed"
    assert judge_bandwidth("all-reduce", ended(tmp_path), {}, "").level == "failed"
    wrong = ended(tmp_path, 77, evidence="all-reduce of 1 KiB: rank 0 got a wrong result")
    assert judge_bandwidth("all-reduce", wrong, report, "").code == 77
    assert judge_bandwidth("all-reduce", ended(tmp_path, 1, evidence="TypeError: x"), report, "").code == 1


def test_a_resumed_run_has_to_end_with_the_same_files(tmp_path: Path) -> None:
    job = ended(tmp_path)
    files = {"model.safetensors": {"sha256": "a"}, "state.json": {"sha256": "b"}}
    assert judge_resume("resume", job, job, (files, dict(files))).level == "ok"
    other = {**files, "model.safetensors": {"sha256": "c"}}
    assert judge_resume("resume", job, job, (files, other)).found.endswith("without an interruption: model.safetensors")
    assert judge_resume("resume", job, job, ({}, {})).found.endswith("no snapshot")
    assert judge_resume("resume", job, ended(tmp_path / "b", 93), (files, files)).found.startswith("ended with 93")


@pytest.mark.parametrize(
    ("ending", "level", "found"),
    [
        (ProbeEnding({"right": "all"}, 0), "ok", "all"),
        (ProbeEnding({"skipped": "no g++"}, 0), "skipped", "no g++"),
        (ProbeEnding({"wrong": "3 sums"}, 1), "failed", "3 sums"),
        (ProbeEnding({"failed": "OSError: x"}, 1), "failed", "OSError: x"),
        (ProbeEnding({}, -11), "failed", "ended with -11"),
        (ProbeEnding({}, None), "failed", "no result within 300 s"),
    ],
)
def test_what_a_probe_answers(ending: ProbeEnding, level: str, found: str) -> None:
    row = judge_probe("compile", ending)
    assert (row.level, row.found, row.code) == (level, found, int(level == "failed"))


def test_rows_of_a_check_keep_whose_fault_they_are() -> None:
    assert judge_finding(sick("GPU 0 product", "wrong: bf16")) == Finding(
        "GPU 0 product", "failed", "wrong: bf16", "", 77
    )
    assert judge_finding(warning("GPU 0 product", "it has no free memory")).level == "skipped"
    rows = (ok("memory", "enough"), warning("/dev/shm", "64 MB", "--shm-size 1g"))
    assert judge_node("node", rows) == Finding("node", "ok", "fit for a job; /dev/shm: 64 MB", "--shm-size 1g")
    assert judge_node("node", (*rows, sick("driver", "broken"))) == Finding("node", "failed", "driver: broken", "", 77)
    assert judge_node("node", (misconfigured("cache", "read-only"),)).code == 78
    assert judge_node("node", rows[:1]) == Finding("node", "ok", "fit for a job")


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((1, 0), 1), ((1, 77), 77), ((78, 0), 78), ((78, 1), 1), ((78, 77), 77)]
)
def test_a_sick_node_comes_before_the_image_and_that_before_a_setting(codes: tuple[int, ...], code: int) -> None:
    rows = tuple(Finding("row", "failed" if each else "ok", "", code=each) for each in codes)
    assert code_of_all(rows) == code


@pytest.mark.parametrize(
    ("devices", "processes"),
    [(make_devices(8), 8), (make_devices(cpus=64.0), 2), (make_devices(cpus=1.0), 1), (make_devices(problem="Xid"), 1)],
)
def test_a_job_has_a_process_per_gpu_or_two_on_the_cpu(devices: Devices, processes: int) -> None:
    assert count_processes({}, devices, make_host()) == processes


def test_jobs_have_the_settings_that_they_are_given_and_all_else_of_the_environment() -> None:
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "SLIPWAY_IMAGE": "1.0-abc", "SLURM_GPUS_ON_NODE": "8"}
    dropped = {
        "RANK": "1",
        "NNODES": "2",
        "MASTER_PORT": "29500",
        "NPROC_PER_NODE": "4",
        "SLIPWAY_RUNS": "/x",
        "WORKLOAD": "a",
    }
    assert environment_of_jobs({**kept, **dropped}) == kept
