"""The pages of reference say what the code says: `.venv/bin/python docs/reference.py` writes them anew."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs"
spec = importlib.util.spec_from_file_location("reference", FOLDER / "reference.py")
assert spec
assert spec.loader
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == reference.page(name), "type .venv/bin/python docs/reference.py"
