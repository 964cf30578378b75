"""The README's rehearsal of two nodes works as it stands, copied line by line."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_its_first_command_trains_in_a_container_and_tells_commands_that_can_be_pasted() -> None:
    less = "ARGS=--steps 60 --eval-samples 64 --sample-tokens 40"
    job = subprocess.run(
        ["make", "run", less],
        cwd=ROOT,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=240,
        check=False,
    )
    shown = job.stdout + job.stderr
    assert job.returncode == 0, shown
    before = job.stderr.partition("run: docker run")[
        0
    ].splitlines()  # all is at hand already, so little is done and said
    assert len(before) <= 4, before
    assert "4.2 GB" not in shown
    lies = re.search(r"results are in /checkpoints/(\S+)", shown)
    assert lies, shown
    try:
        commands = re.findall(r"next: (docker run .*)", shown)
        assert len(commands) == 3, shown
        [sample] = [command for command in commands if " sample " in command]
        done = subprocess.run(sample, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("def ")
    finally:
        shutil.rmtree(ROOT / "runs" / lies[1])


def test_two_nodes_can_be_rehearsed_with_the_lines_of_the_readme() -> None:
    block = re.search(r"<!-- tests/image/test_readme.py .*?```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert block
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block[1]], capture_output=True, text=True, timeout=240, check=False
        )
    finally:
        subprocess.run(["docker", "rm", "--force", "node0", "node1"], capture_output=True, check=False)
        subprocess.run(["docker", "network", "rm", "slipway"], capture_output=True, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert "2 nodes × 2 CPU processes = 4 processes" in shown
    assert shown.count("finished on 2 nodes") == 2, shown  # node 1 said it, and the logs of node 0
