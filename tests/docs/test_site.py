"""docs/ as a site: its front page is the README's beginning, and no link of any page leads nowhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import ROOT
from test_contributing import kept_files

pytestmark = pytest.mark.core

CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FRONT = re.compile(r"^<!-- front page -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--site-dir", site],
        cwd=checkout, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_it_builds_and_what_every_page_links_to_is_on_it(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    names = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for link in set(re.findall(r'\b(?:href|src)="(?![a-z]+:)([^"]*)"', text)):
            file, _, heading = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (heading and heading not in names[target]):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 100, "the code that the pages link to is there, too"
    assert dead == []


def test_programs_find_every_page_with_what_it_is_about(site: Path) -> None:
    lines = [line for line in (site / "llms.txt").read_text().splitlines() if line.startswith("- ")]
    found = [re.fullmatch(r"- \[([^]]+)\]\(([^)]+)\): (.{20,300})", line) for line in lines]
    assert all(found), lines
    assert all((site / link[2] / "index.html").is_file() for link in found if link)
    assert {link[2] for link in found if link} >= {"own-script/", "settings/", "programs/"}


def test_tables_show_values_without_backslashes_and_names_that_are_not_broken(site: Path) -> None:
    cells = [
        cell for page in site.rglob("*.html") for cell in re.findall(r"<td[^>]*>.*?</td>", page.read_text(), re.DOTALL)
    ]
    assert '<td><code class="name">N|MIN:MAX|N+SPARES</code></td>' in cells
    assert '<td><code class="name">--after-failure-seconds</code></td>' in cells
    assert [cell for cell in cells if "\\|" in cell] == []


def test_its_front_page_is_the_readmes_beginning_and_read_in_a_minute(site: Path) -> None:
    parts = FRONT.findall((ROOT / "README.md").read_text())
    shown = (site / "index.html").read_text()
    for words in ("docker run", "docker compose", "kubectl apply", "srun", "pip install", "make run", "make test"):
        assert any(words in part for part in parts)
        assert words.split()[0] in shown
    assert '<img alt="' in shown


def test_all_pages_are_on_it_so_that_the_build_looks_at_their_links() -> None:
    hooks = (ROOT / "docs/hooks.py").read_text()
    elsewhere = [
        name
        for name in kept_files()
        if name.endswith(".md") and not name.startswith(("docs/", ".github/", "entrypoint/"))
    ]
    assert len(elsewhere) > 5
    assert [name for name in elsewhere if f': "{name}",' not in hooks] == []
