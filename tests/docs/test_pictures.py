"""The pictures of the pages: drawn by hand, readable on light and dark pages, and what they quote is what the code says."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from blocks import PAGES, ROOT
from test_troubleshooting import VALUE, in_a_line, unknown_words

from slipway.launch.rendezvous.messages import KINDS

pytestmark = pytest.mark.core

SVG = "{http://www.w3.org/2000/svg}"
MADE = ROOT / "docs/diagrams/run.svg"  # by docs/picture.py, from what a terminal shows
PICTURES = sorted([*(ROOT / "docs/diagrams").glob("*.svg"), ROOT / "bench/results.svg"])
DRAWN = [picture for picture in PICTURES if picture != MADE]


@pytest.mark.parametrize("picture", DRAWN, ids=lambda path: path.stem)
def test_a_picture_says_what_it_shows_and_has_colours_for_dark_pages(picture: Path) -> None:
    text = picture.read_text()
    root = ElementTree.fromstring(text)
    title, told = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text
    assert told is not None
    assert told.text
    assert root.get("aria-labelledby") == f"{title.get('id')} {told.get('id')}"
    light, dark = text.split("prefers-color-scheme: dark")
    colours = set(re.findall(r"\.(\w+) \{[^}]*(?:fill|stroke): #", light))
    assert colours
    assert colours == set(re.findall(r"\.(\w+) \{", dark))
    assert not re.search(r'(?:fill|stroke)="#', text), "a colour that does not change"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_on_a_page(picture: Path) -> None:
    assert any(
        f"{picture.parent.name}/{picture.name})" in page.read_text() or f"({picture.name})" in page.read_text()
        for page in PAGES
    )


@pytest.mark.parametrize("picture", DRAWN, ids=lambda path: path.stem)
def test_what_a_picture_quotes_is_what_the_code_says(picture: Path) -> None:
    """In what is quoted a `tspan` is a value."""
    root = ElementTree.fromstring(picture.read_text())
    quoted = [text for group in root.iter(f"{SVG}g") if "said" in str(group.get("class")) for text in group]
    for text in quoted:
        said = "".join([text.text or "", *(f"{VALUE}{span.tail or ''}" for span in text)])
        assert unknown_words(in_a_line(re.sub(r"^(slipway:|\[0:0\]) ", "", said))) == [], said


def test_the_messages_of_a_meeting_are_those_that_there_are() -> None:
    named = re.findall(r'message"[^>]*>([^<]+)<', (ROOT / "docs/diagrams/meeting.svg").read_text())
    assert len(named) > 8
    assert set(named) <= set(KINDS)
