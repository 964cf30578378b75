"""What launcher and training say to each other without sharing code: neither imports the other, so a test compares them."""

import ast
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipway
from slipway.launch.run_directory import run
from slipway.protocol import durable
from slipway.protocol.phases import Phase

TRAIN = Path(slipway.__file__).with_name("train")


def trees() -> Iterator[tuple[Path, list[ast.AST]]]:
    """The training code. It is read and not imported: most of it imports torch."""
    for file in sorted(TRAIN.rglob("*.py")):
        yield file, list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def places_of_phase() -> dict[str, int]:
    """The functions that take a `phase`, with its place among their arguments: `beat`, and who hands it on to that."""
    places = {}
    for _, nodes in trees():
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args if argument.arg != "self"]
                places |= {node.name: names.index("phase")} if "phase" in names else {}
    return places


def phases() -> dict[str, str]:
    """The phases that training says in words, each with a place where it does."""
    places, said = places_of_phase(), {}
    for file, nodes in trees():
        for node in nodes:
            word: ast.expr | None = None
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                word = dict(enumerate(node.args)).get(places.get(name, -1))
            elif isinstance(node, ast.Assign) and "phase" in {getattr(target, "id", "") for target in node.targets}:
                word = node.value
            if isinstance(word, ast.Constant):
                said[word.value] = f"{file.relative_to(TRAIN)}:{word.lineno}"
    return said


def test_the_launcher_knows_how_long_each_phase_of_training_may_stand_still() -> None:
    unknown = {phase: place for phase, place in phases().items() if phase not in Phase}
    assert not unknown, "a phase that Phase in launch/attempt/heartbeat.py does not know has the patience of `train`"


def test_the_launcher_is_patient_with_no_phase_that_training_never_says() -> None:
    assert set(Phase) == set(phases())


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EIO"])
def test_a_full_or_broken_disk_is_told_apart_on_both_sides(name: str) -> None:
    """Where only one of them knows an error, the node counts as healthy and a scheduler tries again on the full disk."""
    assert getattr(errno, name) in run.DISK_ERRORS
    assert getattr(errno, name) in durable.DISK_ERRORS


def test_both_sides_blame_the_disk_for_the_same_errors() -> None:
    assert run.DISK_ERRORS == durable.DISK_ERRORS
