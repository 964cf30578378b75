"""`make test`: tiers, shares, quarantine, sections that fail or cannot run, and the closing table."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import needs
import pytest
import run as runner
import sections
from needs import Missing, Need
from run import FAILED, PASSED, SKIPPED, Asked, Result
from sections import ROOT, SECTIONS, TIERS, TURNS, Section
from selection import MOST_QUARANTINED, QUARANTINED, Quarantine, Share

TESTS = """import pytest
@pytest.mark.core
def test_core(): ...
@pytest.mark.pull
def test_pull(): ...
def test_nightly(): ...
@pytest.mark.core
@pytest.mark.needs("moon")
def test_far(): ...
@pytest.mark.core
@pytest.mark.quarantine("the tide is late", "2999-01-01")
def test_late(): assert False
@pytest.mark.core
@pytest.mark.quarantine("the tide was late", "2000-01-01")
def test_no_longer_excused(): assert False
"""
MOON = "needs.NEEDS['moon'] = needs.Need('the moon', lambda: needs.Missing('it is day', 'make night'))"


def run_section(tmp_path: Path, tier: str, **environ: str) -> tuple[Result, str]:
    """TESTS as the section `first` in this tier, with this project's conftest.py; how it ended, and the closing table."""
    tests = Path(sections.__file__).parent
    (tmp_path / "tests/first").mkdir(parents=True)
    (tmp_path / "tests/first/test_first.py").write_text(TESTS)
    conftest = (tests / "conftest.py").read_text()
    (tmp_path / "tests/conftest.py").write_text(
        f"import sys\nsys.path.append({str(tests)!r})\nimport needs\n{MOON}\n{conftest}"
    )
    words = Section("first", "").command(sys.executable, [], tier, tmp_path)
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PART": "", **environ}, check=False
    )
    results = tmp_path / "first.xml"
    assert results.exists(), done.stdout + done.stderr
    result = runner.read_result(done.returncode, results)
    return result, "\n".join(runner.summary({"first": result}))


def test_a_run_of_the_core_from_pytest_to_the_table(tmp_path: Path) -> None:
    result, table = run_section(tmp_path, "core", STRICT="")
    assert result.word == FAILED
    assert result.failed == ["tests/first/test_first.py::test_no_longer_excused"]
    assert table.splitlines()[1].split()[:3] == ["first", "FAILED", "2"]
    assert "test_late: the tide is late (until 2999-01-01); it skipped" in table
    assert "test_no_longer_excused: the tide was late (until 2000-01-01); it failed" in table
    assert "needs the moon; it is day: make night" in table
    assert table.endswith("1 passed, 1 failed, 2 skipped")


def test_a_run_with_strict_fails_what_is_skipped_and_not_what_is_in_quarantine(tmp_path: Path) -> None:
    result, _ = run_section(tmp_path, "nightly", STRICT="1")
    assert [name.rpartition("::")[2] for name in result.failed] == ["test_far", "test_no_longer_excused"]
    assert result.tests == Counter(passed=3, failed=2, skipped=1)


@pytest.mark.parametrize(
    ("need", "strict", "word"),
    [("engine", False, SKIPPED), ("engine", True, FAILED), ("gpu", True, SKIPPED)],
)
def test_a_section_whose_need_is_missing_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, need: str, strict: bool, word: str
) -> None:
    lacks = Need("a machine", lambda: Missing("nothing answers", "make engine"), demanded=need == "engine")
    monkeypatch.setattr(needs, "NEEDS", {need: lacks})
    needs.find_missing.cache_clear()
    result = runner.obstacle(Section("first", "", needs=(need,)), Asked(strict=strict), picked=False)
    needs.find_missing.cache_clear()
    assert result is not None
    assert (result.word, result.why) == (word, "needs a machine; nothing answers: make engine")


def test_a_section_that_fails_hides_no_other_and_a_missing_image_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = {name: Section(name, name, goal=name) for name in ("build", "second")}
    monkeypatch.setattr(runner, "SECTIONS", made)
    monkeypatch.setattr(runner, "TURNS", ((("build",), ("second",)),))
    monkeypatch.setattr(Section, "command", lambda section, *_: ["true"] if section.name == "second" else ["false"])
    monkeypatch.setattr(sys, "argv", ["run.py"])
    monkeypatch.setenv(needs.NO_IMAGE, "")
    for name in ("TIER", "PART", "BASE", "STRICT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(needs, "table", lambda *_: ["nothing"])
    assert runner.main() == 1
    printed = capfd.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines()[-4:-2]] == [["build", FAILED], ["second", PASSED]]
    assert printed.rstrip().endswith("1 passed, 1 failed, 0 skipped")
    monkeypatch.setattr(needs, "works", lambda *words: True)
    assert str(needs.engine()) == "the image could not be built, as build/image.log says: make image"


def test_the_environment_says_what_runs() -> None:
    assert Asked.read({"TIER": "", "PART": "", "STRICT": ""}) == Asked.read({}) == Asked()
    environ = {"TIER": "pull", "STRICT": "1", "PART": "2/3", "BASE": "main"}
    assert Asked.read(environ) == Asked("pull", strict=True, share=Share(2, 3), base="main")
    for wrong in ({"TIER": "all"}, {"PART": "0/2"}, {"PART": "3/2"}, {"PART": "1"}, {"PART": "a/b"}, {"PART": "1/2/3"}):
        with pytest.raises(ValueError, match=r"Allowed: core, pull, nightly|is no share"):
            Asked.read(wrong)


def test_the_shares_hold_every_file_once() -> None:
    names = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/*/**/test_*.py")]
    shares = [[name for name in names if Share(number, 4).has(name)] for number in (1, 2, 3, 4)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert all(shares)
    target = Section("first", "", goal="bench-smoke")
    ran = [number for number in (1, 2, 3) if runner.obstacle(target, Asked(share=Share(number, 3)), False) is None]
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("changed", "reading"),
    [
        (["README.md", "docs/design.md", "docs/diagrams/run.svg"], ["lint", "unit", "docs"]),
        (["compose/README.md", "images/README.md"], ["build", "lint", "unit", "docs", "compose", "release"]),
        (["README.md", "entrypoint/slipway/cli/cli.py"], []),
        (["docs/reference.py"], []),
    ],
)
def test_a_change_of_documents_alone_runs_what_reads_them(
    capfd: pytest.CaptureFixture[str], changed: list[str], reading: list[str]
) -> None:
    assert runner.readers(changed) == reading
    assert runner.changed_since("no-such-revision") == []
    assert "BASE=no-such-revision is no revision that git knows here; all sections run" in capfd.readouterr().err


def marks_of(function: ast.FunctionDef) -> list[str]:
    """The names of a test's own marks, `core` for @pytest.mark.core."""
    nodes = [mark.func if isinstance(mark, ast.Call) else mark for mark in function.decorator_list]
    return [
        node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("pytest.mark.")
    ]


def test_few_tests_are_in_quarantine_with_a_reason_and_an_end_and_none_has_marks_of_two_tiers() -> None:
    functions = [
        node
        for path in ROOT.glob("tests/*/**/test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(functions) > 1000
    assert [node.name for node in functions if len({*marks_of(node)} & {*TIERS}) > 1] == []
    assert len([node for node in functions if QUARANTINED in marks_of(node)]) <= MOST_QUARANTINED
    quarantine = Quarantine.read("a port is taken", "2026-12-24")
    assert [quarantine.is_over(date(2026, 12, day)) for day in (23, 24)] == [False, True]
    for reason, until in (("", "2026-12-24"), ("a port is taken", "soon")):
        with pytest.raises(ValueError, match=r"reason|isoformat"):
            Quarantine.read(reason, until)


def test_every_section_has_its_turn_its_target_and_needs_that_are_known() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert sorted(name for turn in TURNS for line in turn for name in line) == sorted(SECTIONS)
    for section in SECTIONS.values():
        target = section.goal or f"$(SECTIONS) {section.name} -- $(ARGS)"
        assert (f"\n{target}:" if section.goal else target) in makefile
    assert runner.read_words(["image", "--", "-k", "x"]) == (["build", "image"], ["-k", "x"])
    with pytest.raises(ValueError, match="no section launhc; there are build, lint, unit"):
        runner.read_words(["launhc"])
    assert {name for section in SECTIONS.values() for name in section.needs} <= set(needs.NEEDS)
    for name, need in needs.NEEDS.items():
        assert not (missing := need.ask()) or (missing.why and missing.then), name


def test_tests_that_run_with_another_torch_import_none_themselves() -> None:
    files = [path for path in ROOT.glob("tests/launch/test_*.py") if "any_torch" in path.read_text()]
    assert len(files) > 5
    for path in files:
        imported = {name for node in ast.parse(path.read_text()).body for name in imported_by(node)}
        assert not imported & {"torch", "numpy", "safetensors", "transformers"}, path


def imported_by(node: ast.stmt) -> list[str]:
    """The packages that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []
