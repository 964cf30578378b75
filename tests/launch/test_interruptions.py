"""Real launchers whose cloud announces that it takes their machine back."""

import itertools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_clouds import FakeAws, FakeGcp, serve
from launchers import Launcher
from simulate import simulate
from stand_in_rules import Rule, Rules
from story import all_reclaimed, reclaimed
from test_store import JOB, weights

Run = Callable[..., Launcher]
HELD = Rule("hold")
DAY = 86_400.0  # s that a notice leaves: no test waits for its deadline
WORDS = ("linear", "--steps", "9", "--log-every", "1")


def on_ec2(address: str) -> dict[str, str]:
    """The environment of a launcher on an instance whose metadata service is at this address."""
    return {"SLIPWAY_SPOT": "aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT": address}


def on_gcp(address: str) -> dict[str, str]:
    """The same on a machine of Compute Engine."""
    return {"SLIPWAY_SPOT": "gcp", "GCE_METADATA_HOST": address}


def first_end(folder: Path) -> dict[str, Any]:
    """How the first attempt of the run in a folder ended."""
    outcome = json.loads(next(folder.glob("*/outcome.json")).read_text())
    return dict(outcome["attempts"][0]["outcome"])


def stopped(evidence: str) -> int:
    """The step at which all stopped."""
    found = re.search(r"stopped at step (\d+) of \d+, snapshot saved", evidence)
    assert found, evidence
    return int(found[1])


def resumed(job: Launcher) -> int:
    """The step from which a job resumed."""
    found = re.search(r"resuming from .*/step-0*(\d+)\n", job.text)
    assert found, job.text
    return int(found[1])


@pytest.mark.pull
def test_a_notice_saves_and_ends_a_single_node_with_75_and_is_named(
    start: Run, slipway: Run, rules: Rules, tmp_path: Path
) -> None:
    cloud = FakeAws(now=time.time(), left=DAY)
    with serve(cloud) as address:
        job = start(*WORDS, **rules.variables(HELD), **on_ec2(address))
        rules.wait_for(HELD, job)
        cloud.due = cloud.now
        job.wait_for("received: stopping, at most 110 s for the snapshot")
        status = slipway("status").text
        rules.let_go(HELD)
        assert job.end() == 75, job.text
    notice = (
        f"AWS interruption notice (spot instance action terminate, deadline {cloud.deadline:%Y-%m-%d %H:%M:%S} UTC)"
    )
    assert f"  stopping    node 0: {notice}\n" in status
    assert [path.name for path in tmp_path.glob("runs/*/snapshots/step-*")] == ["step-00000005"]
    end = first_end(tmp_path / "runs")
    assert (end["word"], end["cause"]) == ("stopped", "noticed")
    assert end["evidence"].startswith(f"{notice}: stopped at step 5 of 9")
    assert f"stopped by the system: node 0 ({end['host']}): {notice}" in slipway("status").text


def test_200_notices_of_three_clouds_cost_no_step_and_every_node_leaves_in_time(tmp_path: Path) -> None:
    """In the simulation of the launchers: their watches read fake metadata services, and 30 seconds or more are left."""
    notices = 0
    for seed in itertools.count():
        world, error = simulate(seed, tmp_path / str(seed), reclaimed, all_reclaimed)
        assert error is None, f"seed {seed}: {error}"
        notices += sum(what.startswith("NOTICE") for _, _, what in world.lines)
        if notices >= 200:
            break
    print(f"{notices} notices in {seed + 1} jobs")


def last_step(disk: Path) -> int:
    """The newest step in the metrics of a run."""
    return int(json.loads(next(disk.glob("*/metrics.jsonl")).read_text().splitlines()[-1])["step"])


@pytest.mark.timeout(600)
def test_with_real_workers_and_30_seconds_left_no_step_is_lost_on_any_node(
    node: Run, rules: Rules, tmp_path: Path
) -> None:
    """AWS takes the machine of node 1, then Google Cloud that of node 0; each is replaced by one with an empty disk."""
    words, store = (*JOB, "--steps", "30", "--runs"), tmp_path / "store"
    store.mkdir()
    calm = [node(rank, 2, *words, f"calm-{rank}") for rank in (0, 1)]
    assert [job.end() for job in calm] == [0, 0], calm[0].text
    aws, gcp = FakeAws(now=time.time(), left=30.0), FakeGcp(now=time.time(), left=30.0)
    first, second = Rule("hold", step=7), Rule("hold", step=17, attempt=2)
    with serve(aws) as of_aws, serve(gcp) as of_gcp:
        more = {**rules.variables(first, second, torch=True, pause=0.1), "SLIPWAY_STORE": f"file://{store}"}
        jobs = [
            node(0, 2, *words, "disk-0", **more, **on_gcp(of_gcp)),
            node(1, 2, *words, "disk-1", **more, **on_ec2(of_aws)),
        ]
        for taken, cloud, held in ((1, aws, first), (0, gcp, second)):
            rules.wait_for(held, jobs[0])
            [run] = (path.name for path in (tmp_path / "disk-0").iterdir())
            cloud.due = cloud.now = time.time()
            jobs[taken].wait_for("received: stopping, at most")
            rules.let_go(held)
            assert jobs[taken].end() == 75, jobs[taken].text
            jobs[1 - taken].wait_for(f"for attempt {held.attempt + 1}")
            told = [line for line in jobs[1 - taken].closing if line.startswith("stopped by the system: ")]
            assert f"node {taken} " in told[-1]
            assert told[-1].count("interruption notice") == 1
            saved = stopped(told[-1])
            assert saved == last_step(tmp_path / "disk-0"), "the last step that was taken is saved"
            copied = jobs[0].closing[-1] == f"file://{store}/{run} has step {saved}, the newest snapshot"
            assert copied or taken, "the node of rank 0 leaves when the store has the snapshot"
            jobs[taken] = node(taken, 2, *words, f"new-{taken}", **more)
            jobs[0].wait_for(f"/step-{saved:08d}\n")
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    [before], [after] = (tmp_path / "calm-0").iterdir(), (tmp_path / "new-0").iterdir()
    assert weights(after, 30) == weights(before, 30)


def test_a_launcher_that_starts_on_a_machine_that_is_about_to_go_does_not_join(node: Run, rules: Rules) -> None:
    """As an engine starts it again after its exit code 75."""
    with serve(FakeAws(now=time.time(), due=0.0, left=DAY)) as taken:
        job = node(1, 2, *WORDS, **rules.variables(), **on_ec2(taken))
        assert job.end() == 75, job.text
    assert "AWS interruption notice" in job.text


@pytest.mark.needs("network namespaces")
def test_no_request_leaves_a_machine_that_is_in_no_cloud(start: Run, rules: Rules, tmp_path: Path) -> None:
    """In a network namespace the link-local address is this machine's own, and whoever connects to it is counted."""
    listener = tmp_path / "listener.py"
    listener.write_text(
        "import socket, subprocess, sys, threading\n"
        "for words in (['link', 'set', 'lo', 'up'], ['addr', 'add', '169.254.169.254/32', 'dev', 'lo']):\n"
        "    subprocess.run(['ip', *words], check=True)\n"
        "server = socket.create_server(('169.254.169.254', 80))\n"
        "def count():\n"
        "    while True:\n"
        "        server.accept()\n"
        "        print('a request', flush=True)\n"
        "threading.Thread(target=count, daemon=True).start()\n"
        "sys.exit(subprocess.run(sys.argv[1:]).returncode)\n"
    )
    before = ("unshare", "--net", "python3", str(listener))
    seen = {}
    for choice in ("auto", "aws"):
        job = start("linear", "--steps", "3", before=before, **rules.variables(), SLIPWAY_SPOT=choice)
        assert job.end() == 0, job.text
        seen[choice] = job.text.count("a request")
    assert seen["auto"] == 0
    assert seen["aws"] > 0, "what is counted is seen where it is asked for"
