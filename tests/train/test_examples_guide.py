"""What the guide for own scripts says is in the examples and in the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipway
import slipway.train

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "own-script.md"


def snippets() -> Iterator[str]:
    """The guide's Python, except what says that it needs a task of the reader's own."""
    found = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return (text for text in found if not text.startswith("# needs:"))


def test_what_the_guide_quotes_stands_in_an_example() -> None:
    examples = [file.read_text() for file in EXAMPLES.glob("*.py")]
    assert len(list(snippets())) > 5
    assert [part for part in snippets() if not any(f"\n{part}" in example for example in examples)] == []


def test_the_guide_or_an_example_names_every_public_name() -> None:
    text = GUIDE.read_text() + "".join(file.read_text() for file in EXAMPLES.glob("*.py"))
    names = [name for names in slipway.train.PUBLIC.values() for name in names]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_type_checkers_see_the_public_names_that_there_are() -> None:
    tree = ast.parse(Path(slipway.train.__file__).read_text())
    [block] = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (node.module, alias.asname) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == {(f"slipway.{module}", name) for module, names in slipway.train.PUBLIC.items() for name in names}
    for _, name in seen:
        assert getattr(slipway.train, str(name)).__doc__
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        slipway.train.fitt  # noqa: B018


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(slipway.__file__).parent / "py.typed").exists()
