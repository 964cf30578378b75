"""`slipway logs` as typed: what it prints, how it is filtered, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from stand_ins import Slipway

from slipway.launch.attempt.worker_output import stamp
from slipway.launch.verdict.block import outcome_json
from slipway.launch.verdict.cause import said
from slipway.launch.verdict.restarts import AttemptHistory, Try
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.protocol.errors import CONFIGURATION, USAGE
from slipway.protocol.files import write_json

START = 1_795_276_800.0  # 2026-11-21 16:00:00 UTC


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> Path:
    """Two ranks, two attempts, on the first of two nodes."""
    path = tmp_path / "runs" / "gpt-1"
    logs = path / "node-0" / "logs"
    logs.mkdir(parents=True)
    write_json(path / "run.json", {"workload": "gpt", "started": 1.0, "attempt": 2, "nodes": 2})
    for rank in (0, 1):
        lines = []
        for attempt in (1, 2):
            moment = START + 10 * attempt
            lines.append(f"--- attempt {attempt}, 2026-11-21 16:00:{10 * attempt} UTC ---")
            for number, text in enumerate(
                ("hello", f"loss {rank}", "ValueError: bad" if rank and attempt == 2 else "end")
            ):
                lines.append(f"{stamp(moment + number + rank / 1000).decode()} {text}")
        (logs / f"rank-{rank}.log").write_text("\n".join(lines) + "\n")
    return path


SHOWN = """\
--- attempt 1 ---
2026-11-21T16:00:10.000Z ranks 0, 1: hello
2026-11-21T16:00:11.000Z rank 0: loss 0
2026-11-21T16:00:11.001Z rank 1: loss 1
2026-11-21T16:00:12.000Z ranks 0, 1: end
--- attempt 2 ---
2026-11-21T16:00:20.000Z ranks 0, 1: hello
2026-11-21T16:00:21.000Z rank 0: loss 0
2026-11-21T16:00:21.001Z rank 1: loss 1
2026-11-21T16:00:22.000Z rank 0: end
2026-11-21T16:00:22.001Z rank 1: ValueError: bad
"""


def test_the_logs_of_the_newest_run_are_merged_and_absent_nodes_named(slipway: Slipway) -> None:
    answer = slipway("logs")
    assert (answer.code, answer.out) == (0, SHOWN)
    assert answer.err.startswith("slipway: the logs of node 1 are not here.")
    assert "\033" not in answer.out


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--rank", "1", "--attempt", "1"], ["rank 1: hello", "rank 1: loss 1", "rank 1: end"]),
        (["--node", "1"], []),
        (["--grep", "^loss", "--attempt", "2"], ["rank 0: loss 0", "rank 1: loss 1"]),
        (["--errors"], ["rank 1: ValueError: bad"]),
        (["--since", "2026-11-21T16:00:22"], ["rank 0: end", "rank 1: ValueError: bad"]),
        (["--until", "2026-11-21T16:00:10.500Z"], ["ranks 0, 1: hello"]),
        (["--tail", "2"], ["rank 0: end", "rank 1: ValueError: bad"]),
        (["--tail", "1", "--follow"], ["rank 1: ValueError: bad"]),
    ],
)
def test_what_is_chosen(slipway: Slipway, words: list[str], lines: list[str]) -> None:
    answer = slipway("logs", "gpt-1", *words)
    assert [line[25:] for line in answer.out.splitlines() if not line.startswith("---")] == lines


def test_json_has_a_line_per_line_of_each_rank(slipway: Slipway) -> None:
    rows = [json.loads(line) for line in slipway("logs", "--json").out.splitlines()]
    assert len(rows) == 12
    assert rows[0] == {"time": "2026-11-21T16:00:10.000Z", "node": 0, "rank": 0, "attempt": 1, "text": "hello"}


@pytest.mark.parametrize("words", [["--rank", "9"], ["--attempt", "7"], ["--grep", "zzz"], ["--json", "--rank", "9"]])
def test_a_choice_that_fits_no_line_says_what_there_is(slipway: Slipway, words: list[str]) -> None:
    answer = slipway("logs", *words)
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.endswith("slipway: No log lines match. The run has ranks 0, 1 and attempts 1, 2.\n")


def test_where_a_line_fits_nothing_is_said_of_it(slipway: Slipway) -> None:
    assert "No log lines match" not in slipway("logs", "--rank", "1", "--tail", "1").err


def ended(run: Path, *attempts: Outcome, newest: int) -> None:
    """Let the launcher write its verdict on these attempts; `newest` is the number of the last."""
    first = newest - len(attempts) + 1
    tries = tuple(Try(number, outcome) for number, outcome in enumerate(attempts, first))
    write_json(run / "outcome.json", outcome_json(judge([attempts[-1]]), 0, AttemptHistory(tries)))


LOST = Outcome(1, "gpu08", "lost", START, cause=said("no heartbeat for 30 s"))
FAILED = Outcome(0, "gpu07", "failed", START, rank=1, cause=said("ValueError: bad\033[2J"))


def test_headings_say_why_the_attempt_before_ended_and_the_last_line_how_the_run_did(
    slipway: Slipway, run: Path
) -> None:
    ended(run, LOST, FAILED, newest=2)
    lines = slipway("logs").out.splitlines()
    told = [line for line in lines if line.startswith("---")]
    assert told == [
        "--- attempt 1 ---",
        "--- attempt 2 (attempt 1 ended: node 1 (gpu08): no heartbeat for 30 s) ---",
        "--- attempt 2 ended: node 0 (gpu07), rank 1: ValueError: bad ---",
    ]
    assert lines[-1] == told[-1]
    assert slipway("logs", "--attempt", "1").out.splitlines()[-1] == lines[4], "the other attempt was the last"
    assert slipway("logs", "--tail", "1").out.splitlines() == lines[-2:]
    assert len(slipway("logs", "--json").out.splitlines()) == 12


def test_a_run_that_ended_well_says_so(slipway: Slipway, run: Path) -> None:
    ended(run, Outcome(0, "gpu07", "finished", START, cause=said("20 steps")), newest=2)
    assert slipway("logs").out == f"{SHOWN}--- attempt 2 ended: finished: 20 steps ---\n"


@pytest.mark.parametrize(
    "outcome", ['{"attempts": [7, {"number": 1, "outcome": {"word": []}}], "attempt": 2}', "{", "[]"]
)
def test_what_outcome_json_does_not_know_is_not_told(slipway: Slipway, run: Path, outcome: str) -> None:
    (run / "outcome.json").write_text(outcome)
    assert slipway("logs").out == SHOWN


def test_while_a_further_attempt_runs_no_verdict_is_told(slipway: Slipway, run: Path) -> None:
    ended(run, LOST, newest=1)
    told = slipway("logs").out.splitlines()
    assert told[5] == "--- attempt 2 (attempt 1 ended: node 1 (gpu08): no heartbeat for 30 s) ---"
    assert told[-1].endswith("ValueError: bad")


def test_a_run_without_logs_says_so(slipway: Slipway, tmp_path: Path) -> None:
    write_json(tmp_path / "runs" / "run.json", {})
    answer = slipway("logs", "runs")
    assert (answer.code, answer.out) == (0, "")
    assert "there are no logs" in answer.err


def test_the_folder_of_a_node_with_a_disk_of_its_own_is_a_run(slipway: Slipway, run: Path) -> None:
    (run / "run.json").unlink()
    assert slipway("logs", "runs/gpt-1").out == SHOWN
    assert slipway("logs", "runs/gpt-2").code == CONFIGURATION


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rank", "x"], "write for example 0,3-5"),
        (["--grep", "("], "is not a regular expression"),
        (["--since", "12:00"], "'12:00' is not a time; write for example 2026-01-01T12:00:00"),
        (["--until", "now"], "'now' is not a time"),
        (["--bundle", "gpt-1"], "slipway logs gpt-1 --bundle"),
        (["--bundle", "--tail", "3"], "--bundle packs everything"),
    ],
)
def test_what_is_refused(slipway: Slipway, words: list[str], says: str) -> None:
    answer = slipway("logs", *words)
    assert answer.code == USAGE
    assert says in " ".join(answer.err.split())


def test_a_bundle_tells_where_it_is_and_what_it_lacks(slipway: Slipway, tmp_path: Path, run: Path) -> None:
    (run / "model.pth").write_bytes(b"12345")
    (tmp_path / ".env").write_text("HF_TOKEN=hello\n")
    answer = slipway("logs", "gpt-1", "--bundle", "x.tar.gz")
    assert answer.code == 0
    size = (tmp_path / "x.tar.gz").stat().st_size
    assert answer.out.startswith(f"x.tar.gz  {size:,} bytes\n")
    assert "left out  model.pth (1 file, 5 bytes)" in answer.out
    with tarfile.open("x.tar.gz") as packed:
        member = packed.extractfile("x/node-0/logs/rank-0.log")
        assert member
        assert b"hello" not in member.read(), "the .env file says that it is a secret"
    slipway("logs", "--bundle")
    assert len(list(tmp_path.glob("slipway-gpt-1-*.tar.gz"))) == 1


def test_a_bundle_that_goes_with_the_container_is_warned_of(
    slipway: Slipway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.launch.resolve.host.read_mounts", lambda: {Path("/"): "overlay"})
    inside = slipway("logs", "runs/gpt-1", "--bundle", "x.tar.gz", SLIPWAY_IMAGE="0.1")
    assert inside.code == 0
    assert "slipway: warning: x.tar.gz is in this container alone, and is lost with it." in inside.err
    assert f'add -v "$PWD:{tmp_path}" to docker run' in inside.err
    assert "is lost with it" not in slipway("logs", "--bundle", "y.tar.gz").err


def test_a_reader_that_goes_away_is_no_error(run: Path) -> None:
    (run / "node-0" / "logs" / "rank-1.log").write_text("".join(f"line {number}\n" for number in range(50_000)))
    command = f"{sys.executable} -m slipway logs {run}; echo code $? >&2"
    done = subprocess.run(f"({command}) | head -n 1", shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "--- attempt 1 ---\n"
    assert done.stderr.splitlines()[-1] == "code 0"
    assert len(done.stderr.splitlines()) == 2, done.stderr
