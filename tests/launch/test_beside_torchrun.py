"""What programs find and compute under `slipway run` and under `torchrun`: all that differs stands in docs/own-script.md.

The programs are in programs/, of the kinds that people bring. Each runs under both at once, in a copy of that folder for each.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import needs
import pytest
from launchers import PYTHON

PROGRAMS = Path(__file__).with_name("programs")
DOCUMENTED = (Path(__file__).parents[2] / "docs/own-script.md").read_text(encoding="utf-8")
LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--master-port", "0", "--standalone"),
    "slipway": ("slipway", "run"),
}
# What --standalone brings with its c10d rendezvous, in place of static.
OF_ELASTIC = {"MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_MAX_RESTARTS"}
ELSEWHERE = {"environ", "modules", "files", "input"}  # compared name by name, or by the rows in words


@dataclass(frozen=True)
class Side:
    """What came of a program under one launcher: by rank what it found and computed, and the files that it left."""

    code: int
    text: str
    found: list[dict[str, object]]
    computed: list[dict[str, object]]
    files: set[str]


def run_in(folder: Path, words: Sequence[str]) -> Side:
    """Run a Python with a program and its words under the launcher that the folder is called after."""
    python, *program = words
    for path in [*folder.glob("found-*"), *folder.glob("computed-*")]:
        path.unlink()  # of the start before
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    done = subprocess.run(
        [python, "-m", *LAUNCHERS[folder.name], "--nproc-per-node", "2", *program],
        cwd=folder,
        env={**kept, "OWN": "kept as it is"},
        input="typed\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return Side(done.returncode, done.stdout, read(folder, "found"), read(folder, "computed"), files)


def read(folder: Path, name: str) -> list[dict[str, object]]:
    """What the ranks wrote, with the same name for the folder on both sides."""
    texts = [path.read_text().replace(str(folder), "FOLDER") for path in sorted(folder.glob(f"{name}-*.json"))]
    return [json.loads(text) for text in texts]


def names_in_the_table() -> set[str]:
    section = DOCUMENTED.partition("### What differs from torchrun")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| ([^|]+) \|", section, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@dataclass(frozen=True)
class Start:
    """Words behind the program's name, and how torchrun and slipway end then."""

    words: str = ""
    codes: tuple[int, int] = (0, 0)
    says: str = ""


TRAINER = (
    "--output_dir out --use_cpu --ddp_backend gloo --report_to none --max_steps 4 --save_steps 2 --disable_tqdm true"
)
CASES = {
    "plain.py": [Start("'a b' --flag"), Start("3", (1, 1))],
    "gpt.py": [Start("smaller.json --backend=gloo --max_iters=4")],
    # It breaks, and goes on from its snapshot.
    "multigpu.py": [Start("4 1 --breaks_in 2", (1, 1), "ValueError: as asked"), Start("4 1", says="at Epoch 2")],
    "fsdp2.py": [Start()],
}
ON_FRAMEWORKS = {
    "hydra_app.py": [Start("optimizer.lr=0.2 steps=3 hydra.job.chdir=true hydra.run.dir=out")],
    "hf_trainer.py": [Start(TRAINER)],
    "accelerated.py": [Start()],
    "lightning_fit.py": [Start()],
}


FRAMEWORKS = pytest.mark.needs("frameworks")


@pytest.mark.parametrize(
    ("python", "program", "starts"),
    [
        *[pytest.param(PYTHON, *case, id=case[0], marks=pytest.mark.any_torch) for case in CASES.items()],
        *[pytest.param(str(needs.FRAMEWORKS), *case, id=case[0], marks=FRAMEWORKS) for case in ON_FRAMEWORKS.items()],
    ],
)
def test_a_program_finds_and_computes_what_it_would_under_torchrun(
    tmp_path: Path, python: str, program: str, starts: list[Start]
) -> None:
    folders = [tmp_path / launcher for launcher in LAUNCHERS]
    for folder in folders:
        shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for start in starts:
        with ThreadPoolExecutor() as pool:
            theirs, ours = pool.map(run_in, folders, repeat((python, program, *shlex.split(start.words))))
        said = f"{theirs.text}\n== and here\n{ours.text}"
        assert (theirs.code, ours.code) == start.codes, said
        assert start.says in theirs.text, said
        assert start.says in ours.text, said
        assert len(theirs.found) == len(ours.found) == 2
        for rank, (there, here) in enumerate(zip(theirs.found, ours.found, strict=True)):
            compare_found(rank, there, here)
        assert theirs.computed == ours.computed, said
        assert len(ours.computed) == 2 or start.codes != (0, 0), said
        assert theirs.files == {name for name in ours.files if not name.startswith("runs/")}


def compare_found(rank: int, there: dict[str, object], here: dict[str, object]) -> None:
    known = names_in_the_table()
    assert {key: value for key, value in there.items() if key not in ELSEWHERE} == {
        key: value for key, value in here.items() if key not in ELSEWHERE
    }
    before, after = there["environ"], here["environ"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {"SLIPWAY_…" if name.startswith("SLIPWAY_") else name for name in differ} - known <= OF_ELASTIC
    assert after["OWN"] == "kept as it is"
    assert (there["input"], here["input"]) == (("typed\n", "typed\n") if rank == 0 else (False, True))
    assert isinstance(here["modules"], list)
    assert isinstance(there["modules"], list)
    assert {*here["modules"]} - {*there["modules"]} - {*sys.builtin_module_names} == {
        "slipway",
        "slipway.process",
        "slipway.process.imports",
        "slipway.process.watcher",
    }
    # A socket, once it is connected, and a pipe.
    assert int(str(here["files"])) - int(str(there["files"])) in range(4)
