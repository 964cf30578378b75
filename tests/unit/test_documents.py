"""What the documents say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slipway import options
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.protocol.errors import EXITS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


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


@pytest.mark.parametrize(
    "page",
    sorted(
        [
            *ROOT.glob("*.md"),
            *(page for part in ("docs", "compose", "images", "k8s", "slurm") for page in (ROOT / part).rglob("*.md")),
        ]
    ),
    ids=lambda page: page.name,
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_make_target_is_described() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: ([\w-]+)$", makefile, re.MULTILINE)
    described = re.findall(r"^([\w-]+):.*## \S", makefile, re.MULTILINE)
    assert sorted(targets) == sorted(described)
