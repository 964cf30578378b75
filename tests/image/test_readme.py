"""The README's rehearsal of two nodes works as it stands, copied line by line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import IMAGE
from next_lines import next_commands

sys.path.append(str(Path(__file__).parents[1] / "launch"))

from emulator import Emulator
from terminals import Terminal

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COLUMNS = 80
# `make run`, but for its 1000 steps; as many lines are shown.
LESS = "--steps 60 --log-every 3 --eval-every 30 --save-every 30 --eval-samples 64"


@pytest.mark.timeout(600)
def test_its_first_command_is_calm_on_a_terminal_and_everything_that_it_tells_to_type_works() -> None:
    engine = {name: value for name, value in os.environ.items() if name == "IMAGE" or name.startswith("DOCKER_")}
    shown = Terminal(ROOT, "make", "--no-print-directory", "run", f"ARGS={LESS}", size=(24, COLUMNS), **engine)
    try:
        assert shown.process.wait(240) == shown.end() == 0, shown.text
    finally:
        shown.process.kill()
    lies = re.search(r"results are in /checkpoints/(\S+)", shown.text)
    assert lies, shown.text
    try:
        screen = Emulator(COLUMNS).show(shown.text)
        everything = "\n".join(screen.rows)
        assert screen.wrapped == [], "no line is longer than the screen"
        assert len(screen.lines) < 40, everything
        before = everything.partition("slipway: 1 node")[0].splitlines()  # all is at hand, so little is done and said
        assert len(before) <= 4, before
        assert "4.2 GB" not in everything
        report, sample, longer = next_commands(screen.rows)
        type_in(report)
        assert (ROOT / "runs" / lies[1] / "report.html").is_file()
        assert type_in(sample).startswith("def ")
        assert "step 120/120" in type_in(longer)
    finally:
        shutil.rmtree(ROOT / "runs" / lies[1])


def type_in(command: str) -> str:
    """What a shell in the checkout prints for a pasted command; it must be well."""
    words = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_two_nodes_can_be_rehearsed_with_the_lines_of_the_readme() -> None:
    block = re.search(r"<!-- tests/image/test_readme.py .*?```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert block
    words = ["bash", "-euo", "pipefail", "-c", block[1].replace("slipway:dev", IMAGE)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    finally:
        subprocess.run(["docker", "rm", "--force", "node0", "node1"], capture_output=True, check=False)
        subprocess.run(["docker", "network", "rm", "slipway"], capture_output=True, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert "2 nodes × 2 CPU processes = 4 processes" in shown
    assert shown.count("finished on 2 nodes") == 2, shown  # node 1 said it, and the logs of node 0
