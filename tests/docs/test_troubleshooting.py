"""The page on troubleshooting: the code says its messages in these words, and no entry lacks a part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ENTRIES = dict(re.findall(r"^### (\d+\. [^\n]+)\n(.*?)(?=^##)", PAGE, re.DOTALL | re.MULTILINE))
INDEX = re.findall(r"^\| (`.+`) \| \[(\d+)\]\(#(.+)\) \|$", PAGE, re.MULTILINE)
PARTS = ("```text\n", "**Cause:**", "**Proof:**", "**Fix:**", "**Test")
CODE = ("entrypoint", "slurm", "images", "compose", "k8s")
# What torch, the C library and the kernel say.
OTHERS = (
    "OutOfMemoryError: CUDA out of memory.",
    "OSError: [Errno 28] No space left on device",
    "OSError: [Errno 122] Disk quota exceeded",
)
VALUE = "\0"  # what differs from case to case
SHELL_VALUE, FORMAT_VALUE = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^)]*\)|[*@])"), re.compile(r"\{\w+\}")
Literal = tuple[str, ...]  # what stands between the values of a sentence


def in_a_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def quoted(text: str) -> str:
    """What the page quotes, with VALUE for `<…>`."""
    return in_a_line(re.sub(r"<[^>]*>", VALUE, text))


@cache
def literals() -> frozenset[Literal]:
    """All sentences that the code may print, and those of others."""
    texts = set(OTHERS)
    for file in (file for folder in CODE for file in (ROOT / folder).rglob("*")):
        if file.suffix == ".py":
            texts.update(python_texts(ast.parse(file.read_text())))
        elif file.suffix in (".sh", ".sbatch"):
            texts.update(SHELL_VALUE.sub(VALUE, text) for text in re.findall(r'"([^"\n]+)"', file.read_text()))
    sentences = {sentence for text in texts for sentence in re.split(r"(?<=\.) ", in_a_line(text))}
    return frozenset(tuple(filter(None, text.split(VALUE))) for text in sentences if re.search(r"\w", text))


def python_texts(tree: ast.Module) -> Iterator[str]:
    """The texts of a module, but for its documentation."""
    inside = set()
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, ast.JoinedStr):
            inside.update(map(id, node.values))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Expr):
            inside.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield FORMAT_VALUE.sub(VALUE, node.value)


def unknown_words(text: str) -> list[str]:
    """The words of a quotation that no sentence of the code has, beside the words that this sentence has there."""
    known = [False] * len(text)
    for literal in literals():
        end = 0
        while spans := find(literal, text, end):
            end = spans[-1][1]
            for start, stop in spans:
                known[start:stop] = [True] * (stop - start)
    return [word[0] for word in re.finditer(r"[^\W\d]\w*", text) if not all(known[slice(*word.span())])]


def find(literal: Literal, text: str, begin: int) -> list[tuple[int, int]]:
    """Where the parts of a literal stand, one behind the other and close together; nothing where one does not."""
    end = begin
    for part in literal:
        start = text.find(part, end)
        if start < 0:
            return []
        end = start + len(part)
    spans: list[tuple[int, int]] = []
    for part in reversed(literal):
        start = text.rfind(part, begin, end)
        spans.insert(0, (start, start + len(part)))
        end = start
    return spans


def test_there_are_25_entries_and_the_table_leads_to_each() -> None:
    numbers = [str(number) for number in range(1, 26)]
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in ENTRIES]
    assert [title.partition(".")[0] for title in ENTRIES] == numbers
    assert [row[1:] for row in INDEX] == list(zip(numbers, anchors, strict=True))


@pytest.mark.parametrize("title", ENTRIES)
def test_an_entry_has_message_ending_cause_proof_fix_and_test(title: str) -> None:
    places = [ENTRIES[title].find(part) for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    assert re.search(r"ends? with \d+|launchers' own code|warnings", ENTRIES[title], re.IGNORECASE)
    assert "`" in ENTRIES[title].partition("**Proof:**")[2].partition("**Fix:**")[0], "a command proves the cause"


@pytest.mark.parametrize("title", ENTRIES)
def test_the_code_says_what_an_entry_quotes(title: str) -> None:
    for messages in re.findall(r"```text\n(.*?)```", ENTRIES[title], re.DOTALL):
        assert unknown_words(quoted(messages)) == []


@pytest.mark.parametrize("title", ENTRIES)
def test_an_entry_quotes_what_the_table_does(title: str) -> None:
    messages = quoted(ENTRIES[title].partition("```text\n")[2].partition("```")[0])
    [phrases] = [phrases for phrases, number, _ in INDEX if number == title.partition(".")[0]]
    assert [phrase for phrase in re.findall(r"`([^`]+)`", phrases) if quoted(phrase) not in messages] == []


@pytest.mark.parametrize("title", ENTRIES)
def test_the_tests_that_an_entry_names_are_there(title: str) -> None:
    named = in_a_line(ENTRIES[title].partition("**Test")[2])
    tests = re.findall(r"\[`(\w+)`\]\(([^)]+)\)", named)
    assert tests
    for name, file in tests:
        assert f"def {name}(" in (ROOT / "docs" / file).read_text()
    table = (ROOT / "tests/faults/table.py").read_text()
    for rows in re.findall(r"rows? ((?:`[^`]+`(?:, | and )?)+)", named):
        assert [row for row in re.findall(r"`([^`]+)`", rows) if f'"{row}"' not in table] == []
