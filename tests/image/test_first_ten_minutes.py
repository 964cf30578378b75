"""A newcomer's first ten minutes: a shell in a container of the image, as an ordinary user in an empty folder.

On the host they are in test_first_use.py, with Compose in tests/compose/test_documented_lines.py, without an engine in tests/machine.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from person import Person

sys.path.append(str(Path(__file__).parents[1] / "docs"))

from blocks import ROOT, read_blocks

SHELL = 'docker run --rm --shm-size 1g --user "$(id -u):0" -v "$PWD:/workspace" slipway:dev bash -euo pipefail -x -c'
TYPED = """
slipway --help
slipway plan gpt
echo 'import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])' >train.py
slipway train.py
slipway gpt --preset tiny --steps 20 --eval-samples 16 --sample-tokens 20 --run-dir runs/first
slipway runs
slipway status runs/first
slipway logs runs/first --rank 1
slipway report runs/first
slipway sample runs/first --prompt "def " --tokens 20
slipway gpt --steps 30 --eval-samples 16 --sample-tokens 0 --resume auto --run-dir runs/first
"""


@pytest.mark.timeout(600)
def test_what_a_newcomer_types_in_a_shell_of_the_image_works(person: Person) -> None:
    shown = person.types(f"{SHELL} {shlex.quote(TYPED)}")
    assert "rank 1 of 2" in shown
    assert "finished on 1 node: 20 steps" in shown
    assert "finished on 1 node: 30 steps" in shown
    assert (person.folder / "runs/first/report.html").is_file()
    assert {path.stat().st_uid for path in person.folder.rglob("*")} == {person.folder.stat().st_uid}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["docs/one-to-many.md", "docs/own-script.md"])
def test_so_do_the_blocks_of_the_pages_for_beginners(person: Person, page: str) -> None:
    person.copies(ROOT / "examples", "examples")
    script = "\n".join(block.script() for block in read_blocks(ROOT / page) if block.alone)
    person.types(f"{SHELL} {shlex.quote(script)}")
