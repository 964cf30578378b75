"""`slipway logs` on real runs: what ranks share is shown once, one follows a run to its end, and no secret gets into a bundle."""

import json
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules

Run = Callable[..., Launcher]
SECRETS = {"TRACKER_TOKEN": "canary-of-the-job", "HF_TOKEN": "canary of the hub"}
PRINTS = """
import os
print("hello from all of us", flush=True)
print("I am", os.environ["RANK"], flush=True)
print("secrets:", os.environ["TRACKER_TOKEN"], os.environ["HF_TOKEN"], dict(os.environ), flush=True)
print("https://me:canary@host hf_canaryCANARY1234", flush=True)
"""


def read_log(run: Path, rank: int) -> list[str]:
    """What a rank printed in the first attempt, without the times."""
    return [line[25:] for line in (run / f"node-0/logs/rank-{rank}.log").read_text().splitlines()[1:]]


@pytest.mark.core
def test_a_training_is_shown_and_packed(slipway: Run, rules: Rules, tmp_path: Path) -> None:
    job = slipway("linear", "--run-dir", "runs/one", "--steps", "20", NPROC_PER_NODE="2", **rules.variables())
    assert job.end() == 0, job.text
    shown = slipway("logs", "one")
    assert shown.end() == 0
    assert shown.lines[0] == "--- attempt 1 ---\n"
    said = read_log(tmp_path / "runs/one", 0)
    assert any("step" in text for text in said)
    assert [
        text for text in said if f"rank 0: {text}\n" not in shown.text and f"ranks 0, 1: {text}\n" not in shown.text
    ] == []
    packed = slipway("logs", "one", "--bundle", "one.tar.gz")
    assert packed.end() == 0, packed.text
    assert "left out  snapshots/" in packed.text
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        names = {name.removeprefix("one/") for name in archive.getnames()}
    logs = {f"node-0/logs/{name}.log" for name in ("rank-0", "rank-1", "torchrun")}
    ranks = {f"node-0/{folder}/rank-{rank}.json" for folder in ("outcome", "heartbeat") for rank in (0, 1)}
    top = {"README.txt", "check.txt", "versions.json", "run.json", "outcome.json", "metrics.jsonl"}
    assert names - {"node-0/plan.json"} == top | logs | ranks | {"node-0/ledger.json"}


@pytest.mark.pull
def test_what_ranks_share_is_shown_once_and_no_secret_gets_into_a_bundle(
    slipway: Run, rules: Rules, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(PRINTS)
    job = slipway(
        "run",
        "--run-dir",
        "runs/own",
        "own.py",
        "--api-key",
        "canary",
        NPROC_PER_NODE="2",
        **SECRETS,
        **rules.variables(),
    )
    assert job.end() == 0, job.text
    shown = slipway("logs", "own").text
    assert shown.count("hello from all of us") == shown.count(" ranks 0, 1: hello from all of us\n") == 1
    assert all(f" rank {rank}: I am {rank}\n" in shown for rank in (0, 1))
    only = slipway("logs", "own", "--rank", "1", "--json").lines
    assert [(json.loads(line)["rank"], json.loads(line)["text"]) for line in only] == [
        (1, text) for text in read_log(tmp_path / "runs/own", 1)
    ]
    assert "canary" in (tmp_path / "runs/own/node-0/logs/rank-0.log").read_text()
    packed = slipway("logs", "own", "--bundle", "own.tar.gz", **SECRETS)
    assert packed.end() == 0, packed.text
    with tarfile.open(tmp_path / "own.tar.gz") as archive:
        texts = {member.name: archive.extractfile(member) for member in archive}
        leaks = [name for name, file in texts.items() if file and b"canary" in file.read().lower()]
    assert leaks == []
    assert "own/node-0/logs/rank-1.log" in texts


@pytest.mark.pull
def test_one_follows_a_run_until_it_ends(start: Run, rules: Rules, tmp_path: Path) -> None:
    held, later = Rule("hold", step=4), Rule("hold", step=54)
    words = ("linear", "--run-dir", "runs/long", "--steps", "1000000", "--log-every", "1")
    job = start(*words, NPROC_PER_NODE="2", **rules.variables(held, later))
    rules.wait_for(held, job)
    follower = start("logs", "long", "--follow")
    follower.wait_for("step 3/")
    assert "step 4/" not in follower.text
    rules.let_go(held)
    follower.wait_for("step 53/")
    assert follower.process.poll() is None
    job.signal(signal.SIGINT)
    job.wait_for("SIGINT received")
    rules.let_go(later)
    assert job.end() == 79, job.text
    assert follower.end() == 0, follower.text
    last = (tmp_path / "runs/long/node-0/logs/rank-0.log").read_text().splitlines()[-1]
    assert last[25:] in follower.text
    assert "Traceback" not in follower.text
