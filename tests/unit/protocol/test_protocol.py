"""What launcher and workers both know stands in `protocol` alone, and all of it is used."""

import ast
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipway
from slipway.protocol import files, snapshots
from slipway.protocol.errors import CODE_OF, DISK_ERRORS, EXITS
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import BEFORE_FIRST_STEP, PHASES, Phase

PACKAGE = Path(slipway.__file__).parent
# Folders of tokens and of pictures are no run directories, though one of their files has the same name as a snapshot's.
ELSEWHERE = {"train/text/piece.py", "options/dataset.py", "train/pictures/arrays.py"}


def trees(folder: str = "") -> Iterator[tuple[str, list[ast.AST]]]:
    """The code below a folder of the package. It is read and not imported: most of training imports torch."""
    for file in sorted((PACKAGE / folder).rglob("*.py")):
        yield str(file.relative_to(PACKAGE)), list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def test_a_file_of_a_run_directory_is_named_in_one_place() -> None:
    known = vars(files) | vars(snapshots)
    names = {value for name, value in known.items() if name.isupper() and isinstance(value, str)}
    telling = {name for name in names if {".", "-"} & set(name)}
    assert {"run.json", "outcome.json", "metrics.jsonl", "honours-stop", "node-", "rank-", "step-"} <= telling
    again = [
        f"{file}:{node.lineno} {node.value!r}"
        for file, nodes in trees()
        if not file.startswith("protocol/") and file not in ELSEWHERE
        for node in nodes
        if isinstance(node, ast.Constant) and node.value in telling
    ]
    assert again == []


def test_every_phase_is_said_by_training_and_none_that_there_is_not() -> None:
    said = {
        node.attr
        for _, nodes in trees("train")
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Phase"
    }
    assert said == set(Phase.__members__)


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_has_a_word_and_patience(phase: Phase) -> None:
    assert PHASES[phase.value] is phase
    assert str(phase) == phase.value
    assert phase.patience >= 1


def test_what_may_last_long_has_more_patience_than_a_step() -> None:
    """A run that compiles, or saves to a slow disk, is no hang."""
    patient = {phase for phase in Phase if phase.patience > 1}
    assert set(Phase) - patient == {Phase.TRAIN, Phase.DATA}
    assert patient >= BEFORE_FIRST_STEP


def test_every_exit_code_has_its_word_and_every_word_but_that_of_a_lost_node_its_code() -> None:
    assert {row.word for row in EXITS.values()} == set(Word) - {Word.LOST}
    assert all(CODE_OF[row.word] == code for code, row in EXITS.items())


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EIO"])
def test_a_full_or_broken_disk_is_the_nodes(name: str) -> None:
    """Otherwise the node counts as healthy, and a scheduler tries again on the full disk."""
    assert getattr(errno, name) in DISK_ERRORS
