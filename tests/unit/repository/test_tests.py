"""What tests must not do, read from their source: sleep or hurry in hope, and judge by how long something took.

A test waits for what it means, with `wait_until` of tests/waiting.py; a clock is handed in. Both tables here should shrink.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "process_time"}
ELAPSED = {"seconds", "elapsed", "took", "duration"}
HOPEFUL = {"Timer", "wait_for_timeout"}
LONG = 10  # s; to wait for others for a shorter time is to judge the machine

# Programs that jobs of tests run: what they do is the case, and they judge nothing.
PROGRAMS = (
    "chaos/*.py",
    "faults/inside/*.py",
    "hangs/*.py",
    "launch/programs/*.py",
    "launch/stand_in_agent.py",
    "launch/stand_in_worker.py",
    "launch/stand_ins/*.py",
    "rendezvous/stub.py",
    "sim/*.py",  # its seconds are virtual
    "slurm/paced.py",
    "slurm/pyxis/*.py",
    "train/crashing_writer.py",
    "train/faulty_*.py",
    "train/*_worker.py",
)

# The function that may, and why. Time that passes too slowly or too fast changes nothing that these say.
ALLOWED = {
    "launch/test_outliving.py::test_a_killed_node_and_then_node_0_are_replaced_by_ones_with_empty_disks": (
        "the sum of a ledger against the clock: a slow machine slows both"
    ),
    "waiting.py::wait_until": "the one place that waits",
    "rendezvous/test_endings.py::test_a_node_that_still_works_is_waited_for_longer_than_one_that_is_missing": (
        "longer than the time-out for missing nodes, which is not to count"
    ),
    "rendezvous/test_heartbeats.py::test_a_newcomer_waits_for_the_next_attempt_longer_than_it_would_for_a_missing_node": (
        "longer than the time-out for missing nodes, which is not to count"
    ),
    "rendezvous/test_leaving.py::test_who_leaves_an_elastic_job_while_the_neighbours_are_tested_has_no_part_in_the_start": (
        "for the harder order of two messages on different connections; both orders have to end well"
    ),
}


def offences(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file that sleep, hurry or judge time, by name (`Class.function`, empty outside of all), with the line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from (
        (name, node.lineno) for name, node in named(tree) if is_sleep(node) or hurries(node) or judges_time(node)
    )


def named(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """All nodes, with the name of the outermost function around each."""
    for node in ast.iter_child_nodes(tree):
        yield name, node
        inner = name
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not is_function(tree, name):
            inner = f"{name}.{node.name}".lstrip(".")
        yield from named(node, inner)


def is_function(node: ast.AST, name: str) -> bool:
    return bool(name) and not isinstance(node, ast.ClassDef | ast.Module)


def is_sleep(node: ast.AST) -> bool:
    """Whether it sleeps; sleep(0) lets others run and no more."""
    if not isinstance(node, ast.Call) or called(node) != "sleep":
        return False
    argument = node.args[0] if node.args else None
    return not (isinstance(argument, ast.Constant) and argument.value == 0)


def hurries(node: ast.AST) -> bool:
    """Whether it hopes that others are through after some seconds: with a timer, or a short time for Event.wait or Thread.join.

    A join whose result is used is none of a thread.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) == "join":
        return is_short(node.value)
    if not isinstance(node, ast.Call):
        return False
    return called(node) in HOPEFUL or (called(node) == "wait" and is_short(node))


def is_short(call: ast.Call) -> bool:
    """Whether its first argument or its `timeout` is a number of seconds that a busy machine may need; 0 only looks."""
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "timeout")]
    return any(
        isinstance(one, ast.Constant) and isinstance(one.value, int | float) and 0 < one.value < LONG for one in given
    )


def judges_time(node: ast.AST) -> bool:
    """Whether it asserts by a clock, or that a time is shorter or longer than another."""
    if not isinstance(node, ast.Assert):
        return False
    inside = [*ast.walk(node.test)]
    orders = [each for each in inside if isinstance(each, ast.Compare) and any(map(is_order, each.ops))]
    sides = [side for each in orders if not is_with_zero(each) for side in (each.left, *each.comparators)]
    return any(map(is_clock, inside)) or any(map(is_elapsed, sides))


def is_clock(node: ast.AST) -> bool:
    """Whether it asks this machine's clock: `monotonic()`, `time.time()`."""
    if not isinstance(node, ast.Call) or called(node) not in CLOCKS:
        return False
    return isinstance(node.func, ast.Name) or (
        isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "time"
    )


def is_order(operator: ast.cmpop) -> bool:
    return isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)


def is_with_zero(comparison: ast.Compare) -> bool:
    """Whether it asks only that there is anything: `seconds > 0`."""
    sides = (comparison.left, *comparison.comparators)
    return len(sides) == 2 and any(isinstance(side, ast.Constant) and side.value == 0 for side in sides)


def is_elapsed(side: ast.expr) -> bool:
    name = side.id if isinstance(side, ast.Name) else side.attr if isinstance(side, ast.Attribute) else ""
    return name in ELAPSED


def called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def judging_files() -> list[Path]:
    return sorted(
        path for path in TESTS.rglob("*.py") if not any(path.relative_to(TESTS).match(each) for each in PROGRAMS)
    )


def found() -> dict[str, list[int]]:
    """The lines of each function that sleeps, hurries or judges time, by `file::function`."""
    lines: dict[str, list[int]] = {}
    for path in judging_files():
        for name, line in offences(path):
            lines.setdefault(f"{path.relative_to(TESTS)}::{name}", []).append(line)
    return lines


def test_the_tests_of_a_module_lie_in_the_folder_of_its_name() -> None:
    package = TESTS.parent / "entrypoint/slipway"
    folders = {path.parent.relative_to(TESTS / "unit") for path in (TESTS / "unit").rglob("test_*.py")}
    assert [folder for folder in folders if folder == Path() or not (package / folder).is_dir()] == [Path("repository")]


def test_no_test_sleeps_or_hurries_in_hope_or_judges_how_long_something_took() -> None:
    offenders = found()
    assert {name: at for name, at in offenders.items() if name not in ALLOWED} == {}
    assert ALLOWED.keys() - offenders.keys() == set(), "they are mended: take them out of the table"
