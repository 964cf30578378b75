"""The site's first page leads to every other page."""

import re

import pytest
from blocks import ROOT

PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md")


@pytest.mark.core
def test_the_index_names_every_page() -> None:
    text = (ROOT / "docs/index.md").read_text()
    linked = re.findall(r"\]\(([\w-]+\.md)\)", text)
    assert sorted(set(linked)) == PAGES
    assert sorted(linked) == sorted(set(linked)), "a page is named twice"


@pytest.mark.core
def test_the_first_page_says_why_not_torchrun_alone() -> None:
    front = re.findall(
        r"^<!-- front page -->\n(.*?)^<!-- end -->$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert any(part.startswith("## Why not torchrun alone?") for part in front)
