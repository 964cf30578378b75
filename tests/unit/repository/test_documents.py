"""What the documents say is what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from slipway import options
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.protocol.errors import EXITS

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "entrypoint/slipway"
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for part in ("docs", "compose", "images", "k8s", "slurm") for page in (ROOT / part).rglob("*.md")),
    ]
)
# Python files that pages name and that are not in the repository: a user's, Python's, and those that the reader makes.
ELSEWHERE = {
    *("path/to/script.py", "train.py", "begin.py", "bad.py", "follow.py", "tell.py"),
    *("__main__.py", "click.py", "json.py", "types.py", "sitecustomize.py"),
    *("options/NAME.py", "train/workloads/NAME.py", "tests/train/test_sine.py"),
    *("entrypoint/slipway/options/sine.py", "entrypoint/slipway/train/workloads/sine.py"),
}

# Modules that say at their top how to add what they are about.
RECIPES = (
    "launch/resolve/scheduler.py",
    "store/objects.py",
    "train/observe/sinks.py",
    "check/quick.py",
    "protocol/errors.py",
)


def test_the_readme_lists_the_exit_codes_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", README, re.MULTILINE)
    assert rows == [(str(code), row.meaning, row.then) for code, row in EXITS.items()]


def test_the_readme_lists_the_workloads() -> None:
    table = README.partition("## Workloads")[2].partition("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(WORKLOADS)


def test_the_page_on_workloads_has_a_section_for_each() -> None:
    page = (ROOT / "docs/workloads.md").read_text()
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == set(WORKLOADS)
    assert set(re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \|", page, re.MULTILINE)) == set(WORKLOADS)


def test_launcher_and_workers_know_the_same_workloads() -> None:
    assert set(options.WORKLOADS) == set(WORKLOADS)


def test_the_readme_opens_with_the_two_commands() -> None:
    block = re.search(r"```sh\n(.*?)```", README, re.DOTALL)
    assert block
    assert [line.partition("#")[0].strip() for line in block[1].splitlines()] == ["make run", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_with_the_name_of_a_file_leads_to_that_file(page: Path) -> None:
    links = re.findall(r"\[`?([\w./-]+\.(?:py|sh|sbatch))`?\]\(([^)#]+)", page.read_text())
    assert [link for link in links if Path(link[0]).name != Path(link[1]).name] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_name_that_links_to_code_is_in_that_file(page: Path) -> None:
    links = re.findall(r"\[`([\w.]+)(?:\(\))?`\]\(([^)#]+\.py)\)", page.read_text())
    names = [(name.rpartition(".")[2], page.parent / file) for name, file in links if not name.endswith(".py")]
    assert [name for name, file in names if not re.search(rf"\b{name}\b", file.read_text())] == []


def find(path: str) -> Path | None:
    """The file or folder that a page means: from the repository's root, from the package's, or anywhere by its bare name."""
    if "/" not in path:
        return next((found for part in ("entrypoint", "tests", "docs") for found in (ROOT / part).rglob(path)), None)
    return next((root / path for root in (PACKAGE, ROOT) if (root / path).exists()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_code_that_a_page_names_exist(page: Path) -> None:
    files = set(re.findall(r"`([\w./-]+\.py)`", page.read_text())) - ELSEWHERE
    parts = "|".join(["entrypoint", "tests", *(path.name for path in PACKAGE.iterdir() if path.is_dir())])
    folders = set(re.findall(rf"`((?:{parts})/[a-z_/]+)`", page.read_text()))
    assert sorted(path for path in files | folders if find(path) is None) == []


@pytest.mark.parametrize("module", RECIPES)
def test_files_that_the_steps_at_the_top_of_a_module_name_exist(module: str) -> None:
    text = ast.get_docstring(ast.parse((PACKAGE / module).read_text())) or ""
    paths = re.findall(r"`([\w./-]+\.py)`", text) + re.findall(
        r"(?:docs|k8s|slurm|compose)/[\w/.-]+\.(?:md|yaml|sbatch)", text
    )
    assert len(paths) > 4
    assert sorted(path for path in paths if find(path) is None) == []


def test_names_that_the_map_of_the_code_mentions_are_in_their_files() -> None:
    text = (ROOT / "docs/design.md").read_text() + (ROOT / "docs/internals.md").read_text()
    found = re.findall(r"((?:`\w+`(?:,| and)? )+)(?:in|of) `([\w/]+\.py)`", text)
    found += [(names, path) for path, names in re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:,| and)? ?)+)", text)]
    assert len(found) > 10
    named = [(name, path) for names, path in found for name in re.findall(r"`(\w+)`", names)]
    code = {path: file.read_text() for _, path in named if (file := find(path))}
    assert [(name, path) for name, path in named if not re.search(rf"\b{name}\b", code[path])] == []


def test_every_make_target_is_described() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: ([\w-]+)$", makefile, re.MULTILINE)
    described = re.findall(r"^([\w-]+):.*## \S", makefile, re.MULTILINE)
    assert sorted(targets) == sorted(described)
