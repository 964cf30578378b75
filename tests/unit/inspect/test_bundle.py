"""The archive for a bug report: what is in it, what is not, and that no secret is."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import Slipway, make_sources, plan_for

from slipway.inspect import bundle
from slipway.inspect.bundle import bundle_run
from slipway.inspect.report import NotOursError, write_page
from slipway.launch.run_directory.run import write_plan
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.protocol.files import read_metrics, read_metrics_lines, write_json

CANARIES = {"SLIPWAY_TOKEN": "canary-one", "HF_TOKEN": "canary two"}
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/", "SLIPWAY_TOKEN": CANARIES["SLIPWAY_TOKEN"]}
FROM_FILE = {"HF_TOKEN": CANARIES["HF_TOKEN"]}
LEAK = "typed canary-one canary two https://u:canary@host hf_canaryCANARY1234\n"
NOW = 1_795_276_800.0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a secret in each of its files, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    node = tmp_path / "runs" / "gpt-1" / "node-0"
    for name in ("logs/rank-0.log", "logs/torchrun.log", "heartbeat/rank-0.json", "outcome/rank-0.json"):
        (node / name).parent.mkdir(parents=True, exist_ok=True)
        (node / name).write_text(LEAK)
    for name in ("run.json", "outcome.json", "options.json"):
        write_json(node.parent / name, {"arguments": ["--api-key", "typed", LEAK], "evidence": LEAK, "nodes": 2})
    (node.parent / "metrics.jsonl").write_text(LEAK)
    sources = make_sources(ENVIRON, env_file=FROM_FILE)
    write_plan(node, plan_for(("linear", "--hub-token", "canary"), ENVIRON, env_file=FROM_FILE), sources)
    (node.parent / "snapshots" / "step-1").mkdir(parents=True)
    (node.parent / "snapshots" / "step-1" / "model.safetensors").write_bytes(b"canary" * 100)
    (node.parent / "model.pth").write_bytes(b"canary")
    (node / "logs" / "nccl-attempt-1-rank-0").write_bytes(b"canary")
    return node.parent


def pack(run: Path, name: str = "x.tar.gz") -> dict[str, str]:
    """The members of its archive by name below the archive's own folder."""
    made = bundle_run(run, name, ENVIRON, FROM_FILE, NOW)
    assert made.size == made.path.stat().st_size
    with tarfile.open(made.path) as packed:
        top = made.path.name.removesuffix(".tar.gz")
        found = {member.name: packed.extractfile(member) for member in packed}
        return {name.removeprefix(f"{top}/"): file.read().decode() for name, file in found.items() if file}


def test_it_holds_what_tells_about_the_run_and_no_secret(run: Path) -> None:
    members = pack(run)
    assert set(members) == {
        "README.txt", "check.txt", "versions.json", "run.json", "outcome.json", "options.json", "metrics.jsonl",
        "node-0/plan.json", "node-0/logs/rank-0.log", "node-0/logs/torchrun.log", "node-0/heartbeat/rank-0.json",
        "node-0/outcome/rank-0.json",
    }  # fmt: skip
    assert {name: text for name, text in members.items() if "canary" in text.lower() or "typed" in text} == {}
    assert members["node-0/logs/rank-0.log"] == "*** *** *** https://u:***@host ***\n"
    versions = json.loads(members["versions.json"])
    assert {"slipway", "torch", "nccl", "driver", "python", "kernel", "image"} <= set(versions)
    assert "/dev/shm" in members["check.txt"]


def test_its_page_lists_the_contents_and_what_is_left_out(run: Path) -> None:
    page = pack(run)["README.txt"]
    for line in (
        "run.json  ",
        "node-*/logs/*.log",
        "(2 files)",
        "check.txt",
        "snapshots/ (1 file, 600 bytes)",
        "model.pth",
    ):
        assert line in page
    assert "node-0/logs/ (1 file, 6 bytes)" in page, "NCCL's dumps are no text"
    assert "HF_TOKEN, SLIPWAY_TOKEN" in page
    assert "the logs of node 1 are not here" in page
    (run / "node-0" / "plan.json").unlink()
    assert "torchrun command: none here" in pack(run, "y.tar.gz")["README.txt"]


def test_it_lies_here_under_the_runs_name_and_the_time_and_nothing_is_overwritten(run: Path, tmp_path: Path) -> None:
    made = bundle_run(run, "", ENVIRON, {}, NOW)
    assert made.path == Path("slipway-gpt-1-20261121-160000.tar.gz")
    before = made.path.read_bytes()
    with pytest.raises(LaunchError, match="exists already") as caught:
        bundle_run(run, "", ENVIRON, {}, NOW)
    assert caught.value.code == CONFIGURATION
    assert made.path.read_bytes() == before
    with pytest.raises(
        LaunchError, match=f"cannot be written to {tmp_path}/nowhere: No such file or directory"
    ) as lost:
        bundle_run(run, "nowhere/x.tar.gz", ENVIRON, {}, NOW)
    assert "/.x.tar.gz" not in str(lost.value)
    with pytest.raises(LaunchError, match=f"cannot be written to {tmp_path}/{made.path}: Not a directory"):
        bundle_run(run, f"{made.path}/x.tar.gz", ENVIRON, {}, NOW)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs", made.path.name]


def test_half_an_archive_is_never_left(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "readme", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        pack(run)
    assert [file.name for file in Path().iterdir()] == ["runs"]


@pytest.mark.parametrize("secret", ["", "-----BEGIN PRIVATE KEY-----\n" + "canary\n" * 30])
def test_of_a_large_log_head_and_tail_are_kept(run: Path, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setattr(bundle, "SMALLEST", 2000)
    monkeypatch.setattr(bundle, "SMALLEST", 2000)
    monkeypatch.setattr(bundle, "LARGEST", 2000)
    lines = [f"line {number}" for number in range(2000)]
    content = "\n".join([*lines[:40], secret, *lines[40:], "-----END PRIVATE KEY-----" if secret else "end"])
    (run / "node-0" / "logs" / "rank-0.log").write_text(content)
    members = pack(run)
    text = members["node-0/logs/rank-0.log"]
    assert len(text) < 2200
    assert text.startswith("line 0\nline 1\n")
    assert "canary" not in text
    note = next(line for line in members["README.txt"].splitlines() if "rank-0.log was truncated" in line)
    if not secret:
        head, _, tail = text.partition("\n--- ")
        left_out, _, tail = tail.partition(" were left out here ---\n")
        assert set(head.splitlines()) | set(tail.splitlines()) <= {*lines, "", "end"}, "only whole lines"
        assert tail.endswith("line 1999\nend")
        assert left_out == f"{len(content) - len(head) - len(tail):,} bytes of {len(content):,}"
        assert f"{len(content) - len(head) - len(tail):,} bytes" in note


def test_a_line_that_is_larger_than_all_is_left_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGEST", 1000)
    monkeypatch.setattr(bundle, "SMALLEST", 1000)
    (run / "node-0" / "logs" / "rank-0.log").write_text("x" * 5000)
    assert pack(run)["node-0/logs/rank-0.log"] == "\n--- 5,000 bytes of 5,000 were left out here ---\n"


def test_what_a_process_died_while_writing_is_not_packed(run: Path) -> None:
    (run / "node-0" / "heartbeat" / ".rank-0.json").write_text("{")
    assert "node-0/heartbeat/.rank-0.json" not in pack(run)


def test_no_link_leads_out_of_the_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "rank-9.log").write_text("outside")
    (run / "node-0" / "logs" / "rank-8.log").symlink_to(tmp_path / "outside" / "rank-9.log")
    (run / "node-9").mkdir()
    (run / "node-9" / "logs").symlink_to(tmp_path / "outside")
    os.mkfifo(run / "node-0" / "logs" / "rank-7.log")
    members = pack(run)
    assert not [name for name in members if name.endswith(("rank-7.log", "rank-8.log", "rank-9.log"))]


def test_what_is_damaged_is_packed_as_it_is(run: Path) -> None:
    (run / "outcome.json").write_bytes(b'{"HF_TOKEN": "canary", \xff')
    assert pack(run)["outcome.json"] == '{"HF_TOKEN": ***, \ufffd'


def test_a_check_that_fails_does_not_prevent_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the driver fell over")

    monkeypatch.setattr(bundle, "quick_check", fail)
    members = pack(run)
    assert members["check.txt"] == "RuntimeError: the driver fell over\n"
    assert "slipway" in json.loads(members["versions.json"])


def test_the_plan_is_kept_with_its_notes_and_without_secrets(run: Path) -> None:
    text = (run / "node-0" / "plan.json").read_text()
    assert "canary" not in text
    kept = json.loads(text)
    assert set(kept) == {"topology", "values", "torchrun", "notes", "container", "host"}
    assert kept["torchrun"]["argv"][-2:] == ["--hub-token", "***"]
    assert kept["values"]["SLIPWAY_TOKEN"]["value"] == "***"


def test_it_is_for_its_owner_alone_and_goes_through_no_link_that_others_put_there(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".x.tar.gz.{os.getpid()}").symlink_to(victim)
    pack(run)
    assert victim.read_text() == "mine"
    assert Path("x.tar.gz").stat().st_mode & 0o777 == 0o600
    assert not Path("x.tar.gz").is_symlink()
    Path("y.tar.gz").symlink_to("nowhere")
    with pytest.raises(LaunchError, match=r"y\.tar\.gz exists already"):
        pack(run, "y.tar.gz")


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("nowhere")]
)
def test_a_report_replaces_nothing_that_others_put_in_its_place_and_does_not_wait_for_it(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "report.html")
    with pytest.raises(NotOursError, match="is not overwritten"):
        write_page(tmp_path / "report.html", "page")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a link"),
        (lambda path: (path.touch(), os.truncate(path, 1 << 40)), "has more than 1024 MiB"),
    ],
)
def test_a_report_reads_no_more_metrics_than_a_job_writes_and_says_so(
    slipway: Slipway, run: Path, make: Callable[[Path], object], says: str
) -> None:
    (run / "metrics.jsonl").unlink()
    make(run / "metrics.jsonl")
    answer = slipway("report", str(run), "--out", "page.html")
    assert answer.code == 0, answer.err
    assert f"metrics.jsonl {says}" in answer.err


def test_a_line_of_metrics_without_an_end_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{"x" * 3_000_000}\n{{"step": 2}}\n')
    assert [values for _, values in read_metrics(tmp_path / "metrics.jsonl")] == [{"step": 1}, {"step": 2}]
    assert max(map(len, read_metrics_lines(tmp_path / "metrics.jsonl"))) <= 1 << 20
