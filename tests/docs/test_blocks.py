"""Every shell block of the documentation runs as printed, page by page, in a folder that holds the examples alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import PAGES, ROOT, read_blocks

PROGRAMS = Path(sys.executable).parent


def run(command: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    named = {"USER": os.environ.get("USER", "root")}  # torch asks who this is
    environ = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **named, **environ}
    return subprocess.run(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=590,
    )  # fmt: skip


def run_script(script: str, folder: Path, factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Run it in bash, which shows each command; one at a time of those that meet at torchrun's usual port."""
    with (factory.getbasetemp().parent / "torchrun's port").open("w") as lock:
        if any(words in script for words in ("RANK=", "\ntorchrun ", "--rdzv-endpoint ")):
            fcntl.flock(lock, fcntl.LOCK_EX)
        return run(["bash", "-euo", "pipefail", "-x", "-c", script], folder, HOME=str(folder))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.alone for block in read_blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    script = "\n".join(block.script() for block in read_blocks(page) if block.alone)
    done = run_script(script, tmp_path, tmp_path_factory)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.core
@pytest.mark.timeout(600)
def test_the_first_command_of_the_readme_trains_without_a_docker_engine(tmp_path: Path) -> None:
    [block] = [block for block in read_blocks(ROOT / "README.md") if block.test == "tests/docs/test_blocks.py"]
    words = block.text.partition("#")[0].split()
    less = "ARGS=--steps 60 --eval-samples 64 --sample-tokens 40"
    elsewhere = {"DOCKER_HOST": f"unix://{tmp_path}/docker.sock", "SLIPWAY_RUNS": str(tmp_path)}
    done = run([*words, less], ROOT, HOME=os.environ["HOME"], **elsewhere)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "no Docker Engine answers" in done.stdout
    assert done.stdout.count("next: ") == 3, done.stdout[-4000:]
