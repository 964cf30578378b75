"""docs/extending.md, step by step in a copy of the checkout; and CONTRIBUTING.md and the forms say what the code says.

The blocks of a section are taken in their order: a file that is named above a block is written, a diff is applied, a shell
block is run, and a block of text is what was to be seen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import slipway

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
STEPS = (ROOT / "docs/extending.md").read_text()
BLOCK = re.compile(r"^(?:`(?P<file>\S+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir() if path.name != "config.yml")
PRE_COMMIT = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
HOOKS = [hook for repository in PRE_COMMIT["repos"] for hook in repository["hooks"]]


def section(page: str, title: str) -> str:
    """The text below a heading of a page."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def kept_files() -> list[str]:
    """The files of the checkout that git keeps or would keep."""
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    # .venv may be a link, which .gitignore lets through
    return [name for name in listed if name not in ("", ".venv") and os.path.lexists(ROOT / name)]


def words(text: str) -> set[str]:
    """The lines, whatever the width of their columns."""
    return {" ".join(line.split()) for line in text.splitlines()}


class Checkout:
    """A copy of the checkout, with the same .venv but its own code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in kept_files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        (folder / ".venv").symlink_to(sys.prefix)
        self.environ = {
            "PATH": os.environ["PATH"],
            "USER": os.environ.get("USER", "root"),  # torch asks who this is
            "HOME": str(folder.parent),
            "PYTHONPATH": str(folder / "entrypoint"),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
        }

    def run(self, *words: str, text: str = "") -> str:
        """What a command prints; fails where it fails."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.environ, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout[-4000:]}"
        return done.stdout

    def follow(self, title: str) -> str:
        """Do what a section of the page says; what its commands printed. The code is as `make lint` wants it."""
        printed, code = "", list[str]()
        for block in BLOCK.finditer(section(STEPS, title)):
            if block["file"]:
                code.append(block["file"])
                assert not (self.folder / block["file"]).exists()
                (self.folder / block["file"]).write_text(block["text"])
            elif block["kind"] == "diff":
                code += re.findall(r"^\+\+\+ b/(\S+\.py)$", block["text"], re.MULTILINE)
                self.run("git", "apply", "-", text=block["text"])
            elif block["kind"] == "sh":
                printed += self.run("bash", "-euxo", "pipefail", "-c", block["text"])
            else:
                assert block["kind"] == "text", "a block of code says to which file it belongs"
                assert words(block["text"]) <= words(printed), printed
        self.run(".venv/bin/ruff", "check", *code)
        self.run(".venv/bin/ruff", "format", "--check", *code)
        return printed


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A copy of its own for each test."""
    return Checkout(tmp_path / "slipway")


def test_a_workload_takes_four_steps(checkout: Checkout) -> None:
    assert len(re.findall(r"^### ", section(STEPS, "A workload in four steps"), re.MULTILINE)) == 4
    checkout.follow("A workload in four steps")
    run = checkout.folder / "runs/sine"
    record = json.loads((run / "run.json").read_text())
    assert (record["workload"], record["processes_per_node"]) == ("sine", 2)
    assert (run / "snapshots/step-00000020/manifest.json").is_file()
    assert "\nsine " in checkout.run(".venv/bin/slipway", "workloads")
    assert "sine, a small network" in " ".join(checkout.run(".venv/bin/slipway", "--help").split())
    assert "--width" in checkout.run(".venv/bin/slipway", "sine", "--help")
    assert "--width" in (checkout.folder / "docs/cli.md").read_text()


def test_a_scheduler_takes_three_steps(checkout: Checkout) -> None:
    assert len(re.findall(r"^### ", section(STEPS, "A scheduler in three steps"), re.MULTILINE)) == 3
    assert "2 nodes × 2 CPU processes" in checkout.follow("A scheduler in three steps")


@pytest.mark.core
def test_the_table_names_every_folder() -> None:
    named = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|([^|]+)\|", section(PAGE, "Folders"), re.MULTILINE))))
    assert [name for name in named if not (ROOT / name).is_dir()] == []
    parts = [Path(name).parts for name in kept_files()]
    wanted = {part[0] for part in parts if len(part) > 1} - {"entrypoint", "tests"}
    wanted |= {f"tests/{part[1]}" for part in parts if part[0] == "tests" and len(part) > 2}
    wanted |= {f"entrypoint/slipway/{part[2]}" for part in parts if part[0] == "entrypoint" and len(part) > 3}
    assert named == wanted | {"entrypoint/slipway"}


@pytest.mark.core
def test_the_citation_names_the_version_of_the_code() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"] == slipway.__version__
    assert (citation["cff-version"], citation["license"]) == ("1.2.0", project["license"])
    assert citation["authors"] == [{"name": "Slipway contributors"}]
    assert {"message", "title"} <= set(citation)


@pytest.mark.core
@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_what_there_is(form: Path) -> None:
    made = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(made)
    fields: list[dict[str, Any]] = [field for field in made["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    reference = (ROOT / "docs/cli.md").read_text()
    for command, words in re.findall(r"`slipway (\w+)([^`]*)`", form.read_text()):
        helped = reference.partition(f"\n## slipway {command}\n")[2].partition("\n## ")[0]
        assert helped, command
        assert [option for option in re.findall(r"--[\w-]+", words) if option not in helped] == []


@pytest.mark.core
@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_runs_what_make_lint_runs(hook: dict[str, Any]) -> None:
    program, *words = hook["entry"].split()
    assert program in (ROOT / "Makefile").read_text()
    file = next(name for name in kept_files() if re.search(hook["files"], name))
    if hook.get("pass_filenames", True):
        done = subprocess.run([Path(sys.prefix, "bin", Path(program).name), *words, file], cwd=ROOT)
        assert done.returncode == 0
