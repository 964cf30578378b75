"""The page for monitoring systems: read by prometheus_client's own parser, of files as a job leaves them."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import take_port
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from stand_ins import Slipway, make_devices, make_host, make_sources, plan_for

from slipway import __version__
from slipway.launch.companions.metrics import Metrics, open_metrics
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.protocol.files import HEARTBEATS, LEDGER_FILE, METRICS_FILE, REPLICAS_FILE, rank_file, write_json
from slipway.protocol.outcomes import Word

STOPS: Any = None  # no companion here needs them
ENDED = judge([Outcome(0, "n0", Word.FAILED, 0.0)])
Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run under way: rank 0 trains, rank 1 saves, and numbers of two steps were written."""
    for rank, phase in ((0, "train"), (1, "save")):
        file = rank_file(tmp_path / "gpt-1/node-0", HEARTBEATS, rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"phase": phase, "step": 250 + rank, "steps": 1000, "monotonic": 1.0, "pid": 1, "beats": 9})
    lines = [
        {"time": 1.0, "step": 200, "loss": 2.5, "tokens_per_second": 4096.0, "memory_peak_gib": 0.5},
        {"time": 2.0, "step": 250, "loss": 2.25},
        {"time": 3.0, "step": 250, "val_loss": 2.0, "accuracy": 0.5},
    ]
    (tmp_path / "gpt-1" / METRICS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"loss": 1')
    return Run(tmp_path / "gpt-1", "none", 2)


def job(**environ: str) -> Job:
    return Job(plan_for(environ=environ), make_sources(environ), make_devices(), environ, None, make_host())


TOPOLOGY = job().plan.topology


def asked(port: int, address: str = "127.0.0.1") -> Samples:
    """What Prometheus reads."""
    request = urllib.request.Request(
        f"http://{address}:{port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    assert text.endswith("# EOF\n")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> Iterator[tuple[Metrics, int]]:
    port = take_port()
    with open_metrics(job(SLIPWAY_METRICS_PORT=str(port)), STOPS, pytest.fail) as opened:
        yield opened, port


def test_before_an_attempt_there_is_a_job(metrics: tuple[Metrics, int]) -> None:
    found = asked(metrics[1])
    assert found["slipway_processes", ()] == 2
    assert found["slipway_restarts_total", ()] == found["slipway_hangs_total", ()] == 0
    assert [labels for name, labels in found if name == "slipway_job_info"] == [("0", __version__, "linear")]


def test_the_page_says_where_the_ranks_and_the_training_are(metrics: tuple[Metrics, int], run: Run) -> None:
    opened, port = metrics
    opened.begin(run, TOPOLOGY)
    opened.hang(run, "rank 1")
    opened.restart(run, ENDED)
    opened.restart(run, ENDED)
    found = asked(port)
    assert {key: value for key, value in found.items() if key[0] != "slipway_job_info"} == {
        ("slipway_processes", ()): 2, ("slipway_restarts_total", ()): 2, ("slipway_hangs_total", ()): 1,
        ("slipway_attempt", ()): 2, ("slipway_replica_differences", ()): 0, ("slipway_wrong_arithmetic", ()): 0,
        ("slipway_step", ("0",)): 250, ("slipway_step", ("1",)): 251,
        ("slipway_steps", ("0",)): 1000, ("slipway_steps", ("1",)): 1000,
        ("slipway_phase", ("train", "0")): 1, ("slipway_phase", ("save", "1")): 1,
        ("slipway_loss", ()): 2.25, ("slipway_val_loss", ()): 2.0, ("slipway_tokens_per_second", ()): 4096,
        ("slipway_metric", ("memory_peak_gib",)): 0.5, ("slipway_metric", ("accuracy",)): 0.5,
    }  # fmt: skip


def test_the_page_says_what_the_time_went_into_and_who_is_slow(metrics: tuple[Metrics, int], run: Run) -> None:
    told = {"own": 0.25, "slow": [1, 0.2]}
    for rank in (0, 1):
        beat = {"phase": "train", "step": 9, "monotonic": 1.0, **told}
        write_json(rank_file(run.path / "node-0", HEARTBEATS, rank), beat)
    booked = {"seconds": {"training": 90.0, "starting": 10.0}, "attempts": 1, "until": 1.0}
    xids = [{"gpu": 5, "number": 79, "total": 1}, {"gpu": None, "number": 31, "total": 4}]
    write_json(run.path / "node-0" / LEDGER_FILE, {**booked, "xids": xids})
    row = {"time": 1.0, "step": 6, "nodes": ["node 1 (n1)"], "text": "rank 1 differs"}
    wrong = {**row, "text": "rank 1 computed wrongly", "kind": "arithmetic"}
    write_json(run.path / REPLICAS_FILE, {"differences": [row, wrong, wrong]})
    metrics[0].begin(run, TOPOLOGY)
    found = asked(metrics[1])
    assert found["slipway_goodput", ()] == 0.9
    assert (found["slipway_xid_errors_total", ("5", "79")], found["slipway_xid_errors_total", ("", "31")]) == (1, 4)
    assert found["slipway_seconds", ("training",)] == 90
    assert (found["slipway_replica_differences", ()], found["slipway_wrong_arithmetic", ()]) == (1, 2)
    assert (found["slipway_own_seconds", ("0",)], found["slipway_own_seconds", ("1",)]) == (0.25, 0.25)
    assert {key: value for key, value in found.items() if key[0] == "slipway_slower"} == {
        ("slipway_slower", ("1",)): 0.2
    }


def test_a_run_that_has_written_nothing_yet_is_no_mistake(metrics: tuple[Metrics, int], tmp_path: Path) -> None:
    metrics[0].begin(Run(tmp_path / "absent", "none", 1), TOPOLOGY)
    assert asked(metrics[1])["slipway_attempt", ()] == 1


def test_the_loss_is_the_newest_that_makes_sense(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).newest_numbers() == {}
    (tmp_path / METRICS_FILE).write_text('{"loss": 1.5}\n{"loss": NaN}\n{"val_loss": 2}\n[1]\n{"lo')
    assert RunDirectory(tmp_path).newest_numbers()["loss"] == 1.5


def test_a_port_that_is_taken_is_a_warning() -> None:
    said: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with open_metrics(job(SLIPWAY_METRICS_PORT=str(port)), STOPS, said.append):
            pass
    [line] = said
    assert line.startswith(f"warning: no metrics at 127.0.0.1:{port} (SLIPWAY_METRICS_PORT); the job continues: ")


def test_nobody_is_answered_unless_asked_and_afterwards() -> None:
    port = take_port()
    with open_metrics(job(), STOPS, pytest.fail):
        pass
    with open_metrics(job(SLIPWAY_METRICS_PORT=str(port)), STOPS, pytest.fail):
        asked(port)
    with pytest.raises(OSError):
        asked(port)


def test_it_listens_to_this_machine_alone_unless_told(metrics: tuple[Metrics, int]) -> None:
    with pytest.raises(OSError):
        asked(metrics[1], address="127.0.0.2")
    port = take_port()
    with open_metrics(job(SLIPWAY_METRICS_PORT=str(port), SLIPWAY_METRICS_ADDR="0.0.0.0"), STOPS, pytest.fail):
        assert asked(port, address="127.0.0.2")


def test_a_port_that_is_none_is_refused(slipway: Slipway) -> None:
    answer = slipway("plan", "linear", "--metrics-port", "http")
    assert answer.code == 78
    assert "--metrics-port http: a whole number is needed" in answer.err
