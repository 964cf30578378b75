"""The table of a check, its JSON and exit code; what nodes exchanged becomes their rows; children's ends become rows."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from participants import make_info
from stand_ins import make_devices, make_host, make_sources, resolve

from slipway.check import nodes as meeting
from slipway.check import quick
from slipway.check.finding import (
    WIDTH,
    NodeReport,
    exit_code,
    findings_lines,
    misconfigured,
    ok,
    probe,
    sick,
    skipped,
    summary,
    warning,
)
from slipway.check.nodes import InterruptedCheckError, assemble, judge_outcome, passing, start
from slipway.check.products import ProbeEnding, judge_product, last_json
from slipway.check.quick import quick_check
from slipway.launch.rendezvous.codec import LINE_BYTES, decode, encode
from slipway.launch.rendezvous.messages import Finding, Peer
from slipway.launch.resolve.catalog import CHECK
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import make_plan
from slipway.launch.run_directory.records import NodeEnd
from slipway.protocol.decoding import MalformedError
from slipway.protocol.errors import CANCELLED, CONFIGURATION, PEER, UNHEALTHY, LaunchError
from slipway.protocol.files import write_json
from slipway.train.measure.bandwidth import SlowestRank

ROWS = (
    ok("memory", "much"),
    warning("/dev/shm", "64 MB", "add --shm-size 1g to docker run"),
    misconfigured("run directory", " ".join(["read-only"] * 40), "mount it"),
    skipped("driver", "no NVIDIA driver"),
)


def test_the_table_has_a_row_for_each_finding_with_its_advice_below() -> None:
    lines = findings_lines(ROWS)
    assert lines[0] == "  ok       memory         much"
    assert lines[1:3] == ["  warning  /dev/shm       64 MB", f"{'':26}→ add --shm-size 1g to docker run"]
    assert max(map(len, lines)) <= WIDTH
    assert sum("read-only" in line for line in lines) > 3, "a long text goes on below its own column"
    assert not any("\033" in line for line in lines)
    assert findings_lines([]) == []


def test_on_a_terminal_levels_are_coloured() -> None:
    assert findings_lines(ROWS[:1], colour=True)[0].startswith("  \033[32mok ")


def test_a_table_within_a_row_keeps_its_columns() -> None:
    lines = findings_lines([warning("differences", "they differ:\n  driver    550  0\n            560  1")])
    assert [line[24:] for line in lines] == ["they differ:", "  driver    550  0", "            560  1"]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (ROWS[:2], 0),
        (ROWS, CONFIGURATION),
        ((*ROWS, sick("GPU 0", "lost")), UNHEALTHY),
        ((sick("GPU 0", "lost"), *ROWS), UNHEALTHY),
        ((), 0),
    ],
)
def test_an_unhealthy_node_wins_over_wrong_configuration(rows: Any, code: int) -> None:
    assert exit_code(rows) == code


def test_the_summary_counts_errors_and_warnings() -> None:
    assert summary(ROWS) == "1 error, 1 warning"
    assert summary((*ROWS, *ROWS)) == "2 errors, 2 warnings"
    assert summary(ROWS[:1]) == "no errors or warnings"


def test_a_probe_that_breaks_says_so_and_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("no such thing")

    (row,) = probe("memory", broken)
    assert (row.what, row.level) == ("memory", "skipped")
    assert "RuntimeError: no such thing" in row.found
    for name in ("look_at_gpus", "look_at_shm", "look_at_memory", "look_at_cpus", "look_at_limits", "look_at_disks"):
        monkeypatch.setattr(quick, name, broken)
    rows = quick_check({"HOME": str(tmp_path)}, make_host(), make_devices(), tmp_path, None)
    assert [row.level for row in rows] == ["skipped"] * 6 + ["ok"]
    assert rows[-1].what == "host name"


def test_the_quick_check_looks_at_everything(tmp_path: Path) -> None:
    found = {row.what for row in quick_check({"HOME": str(tmp_path)}, make_host(), make_devices(), tmp_path, None)}
    assert {
        "driver",
        "/dev/shm",
        "memory",
        "CPUs",
        "open files",
        "locked memory",
        "run directory",
        "host name",
    } <= found


# -- what nodes exchange


def peer(rank: int, *rows: Finding, offset: float = 0.0, **more: Any) -> Peer:
    """A launcher among two, with its findings."""
    return Peer(make_info(rank, 2, gpus=("NVIDIA H100",), findings=rows, **{"driver": "550", **more}), offset)


EXCHANGE = {"text": "9 GB/s, 4 processes, nccl", "links": ["1 GB/s", "2 GB/s"], "slow": None}
OWN = NodeReport(0, "host0", ROWS)


def test_every_node_gets_its_own_findings_and_its_bandwidth() -> None:
    reports = assemble(OWN, [peer(1, sick("GPU 0", "lost")), peer(0, *ROWS)], EXCHANGE, None)
    assert [report.host for report in reports] == ["host0", "host1"]
    assert reports[0].findings[: len(ROWS)] == ROWS
    assert [row.what for row in reports[0].findings[len(ROWS) :]] == ["other nodes", "all-reduce"]
    assert [row.what for row in reports[1].findings] == ["GPU 0", "all-reduce"]
    assert "1 GB/s to and from" in reports[0].findings[-1].found
    assert exit_code(reports[0].findings) == CONFIGURATION
    assert exit_code(reports[1].findings) == UNHEALTHY


def test_a_node_that_is_slow_is_warned_of() -> None:
    slow = {"slow": {"node": 1, "text": "rank 3: 9 s"}}
    reports = assemble(OWN, [peer(0), peer(1)], EXCHANGE | slow, None)
    assert [report.findings[-1].level for report in reports] == ["ok", "warning"]
    assert "rank 3: 9 s" in reports[1].findings[-1].found


@pytest.mark.parametrize(("what", "advice"), [("own", "its clocks"), ("link", "its network card")])
def test_what_to_look_at_follows_from_what_is_slow(what: str, advice: str) -> None:
    slow = {"node": 1, "what": what, "text": f"rank 3: {SlowestRank(3, what, 9.0, 1.0).text}"}
    row = assemble(OWN, [peer(0), peer(1)], EXCHANGE | {"slow": slow}, None)[1].findings[-1]
    assert advice in row.advice
    assert ("network" in row.advice) == (what == "link")


def test_what_should_be_alike_and_is_not_is_a_warning() -> None:
    reports = assemble(OWN, [peer(0), peer(1, driver="560", offset=9.0)], EXCHANGE, None)
    (row,) = [row for row in reports[0].findings if row.what == "differences"]
    assert row.level == "warning"
    assert "560" in row.found
    assert "+9.0 s" in row.found
    alike = assemble(OWN, [peer(0), peer(1)], EXCHANGE, None)
    assert "differences" not in [row.what for row in alike[0].findings]


def test_findings_stay_where_the_exchange_failed() -> None:
    trouble = misconfigured("other nodes", "node 1 (n1): gone")
    reports = assemble(OWN, [peer(0, *ROWS), peer(1, *ROWS)], {}, trouble)
    assert reports[0].findings[-1] == trouble
    assert reports[1].findings == ROWS
    assert assemble(OWN, [], {}, trouble)[0].findings == (*OWN.findings, trouble)


def test_texts_of_other_nodes_are_made_safe_to_print_and_impossible_levels_are_none() -> None:
    line = encode(peer(1, ok("a\033[2J", "b\a"), host="\033c"))
    info = decode(line).info
    assert info.host == "\ufffdc"
    assert (info.findings[0].what, info.findings[0].found) == ("a", "b\ufffd")
    for wrong in (line.replace(b'"level":"ok"', b'"level":"fine"'), line.replace(b'"code":0}', b'"code":99}')):
        assert wrong != line
        with pytest.raises(MalformedError, match="impossible level or code"):
            decode(wrong)


def test_a_node_info_has_room_for_all_errors_however_many_findings_there_are() -> None:
    rows = (*[ok(f"disk {number}", "f" * 300) for number in range(100)], sick("GPU 7", "lost " * 1000))
    info = peer(0, *rows).info
    assert len(encode(info)) < LINE_BYTES / 2
    assert (info.findings[-1].what, info.findings[-1].code) == ("GPU 7", UNHEALTHY)
    assert 20 < len(info.findings) < 60
    assert [row.what for row in info.findings[:-1]] == [f"disk {number}" for number in range(len(info.findings) - 1)]


# -- the job in which they meet


@pytest.fixture(autouse=True)
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher of a test opens a port."""
    monkeypatch.setattr(meeting, "SeveralNodes", lambda *_, **__: contextlib.nullcontext(SimpleNamespace(peers=[])))


def make_job(tmp_path: Path) -> Job:
    sources = make_sources({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n0", "SLIPWAY_RUN_DIR": "mine"})
    topology = resolve(sources.environ)
    plan = make_plan(topology, CHECK, (), sources)
    return Job(plan=plan, sources=sources, devices=make_devices(), environ={}, data=None, host=make_host())


def test_the_job_leaves_everything_in_its_temporary_folder(tmp_path: Path) -> None:
    job = passing(make_job(tmp_path), tmp_path)
    assert job.sources.value("SLIPWAY_RUN_DIR") == str(tmp_path / "run")
    assert job.sources.value("SLIPWAY_RUNS") == str(tmp_path)
    assert job.plan.argv[-1] == "slipway.train.workloads.check"


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (LaunchError("missing node rank 1", PEER), CONFIGURATION, "--rendezvous-timeout"),
        (LaunchError("differ in torch"), CONFIGURATION, ""),
        (LaunchError("No space left", UNHEALTHY), UNHEALTHY, ""),
    ],
)
def test_nodes_that_cannot_meet_are_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: LaunchError, code: int, advice: str
) -> None:
    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(meeting.Attempts, "run", refuse)
    peers, row, _ = start(make_job(tmp_path), tmp_path, 60.0, OWN)
    assert not peers
    assert row
    assert (row.level, row.code, row.found) == ("error", code, str(error))
    assert advice in row.advice


def test_a_job_that_ends_badly_is_a_row_from_its_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meeting.Attempts, "run", lambda *_: PEER)
    _, row, _ = start(make_job(tmp_path), tmp_path, 60.0, OWN)
    assert row
    assert "its output says why" in row.found
    first = {"node_rank": 1, "host": "n1", "word": "lost", "evidence": "gone", "advice": "look"}
    write_json(tmp_path / "outcome.json", {"first": first})
    _, row, _ = start(make_job(tmp_path), tmp_path, 60.0, OWN)
    assert row
    assert (row.found, row.advice, row.code) == ("node 1 (n1): gone", "look", CONFIGURATION)
    monkeypatch.setattr(meeting.Attempts, "run", lambda *_: 0)
    assert start(make_job(tmp_path), tmp_path, 60.0, OWN) == ([], None, 0)


@pytest.mark.parametrize(("rank", "code"), [(0, CONFIGURATION), (1, UNHEALTHY)])
def test_only_the_node_with_the_wrong_result_is_unhealthy(rank: int, code: int) -> None:
    first = NodeEnd(node_rank=1, host="n1", word="unhealthy", evidence="all-reduce: rank 1 got a wrong result")
    assert judge_outcome(first, rank).code == code
    assert judge_outcome(first._replace(word="failed"), rank).code == CONFIGURATION


def test_a_job_that_never_ends_is_stopped_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wait(*_: object) -> int:
        assert signal.sigtimedwait({signal.SIGTERM}, 30)
        return 75

    monkeypatch.setattr(meeting.Attempts, "run", wait)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        _, row, _ = start(make_job(tmp_path), tmp_path, 0.2, OWN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert row
    assert "had not exchanged their findings within 0 s" in row.found


def test_a_stop_ends_the_check_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meeting.Attempts, "run", lambda *_: CANCELLED)
    with pytest.raises(InterruptedCheckError) as caught:
        start(make_job(tmp_path), tmp_path, 60.0, OWN)
    assert caught.value.code == CANCELLED


def test_what_workers_print_is_no_part_of_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    with meeting.stdout_to_stderr():
        os.write(1, b"NCCL version\n")
    os.write(1, b"table\n")
    assert capfd.readouterr() == ("table\n", "NCCL version\n")


# -- the products of matrices


@pytest.mark.parametrize(
    ("ending", "level", "says"),
    [
        (ProbeEnding({"right": "60 products correct"}, 0), "ok", "60 products correct"),
        (ProbeEnding({"wrong": "bf16, product 3: 1 of 9 numbers"}, 1), "error", "wrong: bf16, product 3"),
        (ProbeEnding({"failed": "AcceleratorError: CUDA error: unspecified launch failure"}, 1), "error", "launch failure"),
        (ProbeEnding({"failed": "OutOfMemoryError: CUDA out of memory"}, 1), "warning", "it has no free memory"),
        (ProbeEnding({}, 1, "ImportError: libcuda.so.1"), "error", "failed: ImportError"),
        (ProbeEnding({}, -11), "error", "SIGSEGV"),
        (ProbeEnding({}, None), "error", "no result within 120 s"),
        (ProbeEnding({}, 0), "error", "failed"),
    ],
)  # fmt: skip
def test_how_a_child_ended_says_what_is_wrong_with_its_device(ending: ProbeEnding, level: str, says: str) -> None:
    row = judge_product("GPU 1 product", ending, 120.0)
    assert (row.level, row.code) == (level, UNHEALTHY if level == "error" else 0)
    assert says in row.found


def test_the_report_is_the_last_line_of_json() -> None:
    assert last_json(["NCCL INFO", '{"right": "1"}', "bye", "7"]) == {"right": "1"}
    assert last_json([]) == {}
