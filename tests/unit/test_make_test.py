"""`make test`: sections that fail, are skipped or cannot run, and the table that tells of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import needs
import pytest
import run as runner
import sections
from needs import Missing, Need
from sections import SECTIONS, TURNS, Section

BROKEN = "def test_broken():\n    assert 1 == 2\n"
SOUND = "import pytest\n@pytest.mark.core\ndef test_sound(): ...\ndef test_detail(): ...\n"
LACKING = 'import pytest\n@pytest.mark.core\ndef test_sound(): ...\n@pytest.mark.core\n@pytest.mark.needs("moon")\ndef test_far(): ...\n'
Make = Callable[..., tuple[int, str]]
MISSING = {"engine": Missing("no Docker Engine answers", "make engine"), "moon": Missing("it is day", "make night")}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Make:
    """Runs sections of this text in a folder of their own, on a machine that lacks MISSING; its exit code and what it printed."""

    def make(
        files: dict[str, str], *words: str, full: bool = False, strict: bool = False, **fields: object
    ) -> tuple[int, str]:
        made = {name: Section(name, "", **fields.get(name, {})) for name in files}  # type: ignore[arg-type, call-overload]
        for name, text in files.items():
            (tmp_path / "tests" / name).mkdir(parents=True)
            (tmp_path / "tests" / name / f"test_{name}.py").write_text(text)
        conftest = Path(sections.__file__).with_name("conftest.py").read_text()
        asked = f"import needs\nneeds.NEEDS['moon'] = needs.Need('the moon', lambda: needs.Missing{tuple(vars(MISSING['moon']).values())})\n"
        (tmp_path / "tests" / "conftest.py").write_text(
            f"import sys\nsys.path.append({str(Path(needs.__file__).parent)!r})\n{asked}{conftest}"
        )
        table = {"engine": Need("a Docker Engine", lambda: MISSING["engine"])}
        table |= {"gpu": Need("a GPU", lambda: Missing("no GPU answers", "make test-gpu"), demanded=False)}
        monkeypatch.setattr(needs, "NEEDS", table)
        needs.find_missing.cache_clear()
        monkeypatch.setattr(runner, "ROOT", tmp_path)
        monkeypatch.setattr(runner, "SECTIONS", made)
        monkeypatch.setattr(runner, "TURNS", ((tuple(files),),))
        monkeypatch.setattr(runner, "FULL", full)
        monkeypatch.setattr(runner, "STRICT", strict)
        monkeypatch.setenv("STRICT", "1" if strict else "")
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        code = runner.main()
        needs.find_missing.cache_clear()
        return code, capfd.readouterr().out

    return make


def row(printed: str, name: str) -> str:
    """A section's row of the table."""
    return printed.partition("section      result")[2].partition(f"\n{name} ")[2].partition("\n")[0]


def test_a_section_that_fails_hides_no_other_and_is_named(make: Make) -> None:
    code, printed = make({"first": BROKEN, "second": SOUND}, full=True)
    assert code == 1
    assert row(printed, "first").split()[:2] == ["FAILED", "1"]
    assert row(printed, "second").split()[:2] == ["passed", "2"]
    assert "tests/first/test_first.py::test_broken" in printed.partition("failed within the sections")[2]
    assert printed.rstrip().endswith("2 passed, 1 failed, 0 skipped")


LATE = """import pathlib
FILE = pathlib.Path(__file__).with_name("tried")
def test_late():
    tried = FILE.exists()
    FILE.touch()
    assert tried
"""


def test_what_passes_at_the_second_try_by_itself_is_named_and_fails_nothing(make: Make) -> None:
    code, printed = make({"first": LATE + SOUND}, full=True)
    assert code == 0
    assert row(printed, "first").split()[:2] == ["passed", "3"]
    assert "tests/first/test_first.py::test_late" in printed.partition("passed at the second try")[2]
    assert "failed within the sections" not in printed
    assert printed.rstrip().endswith("3 passed, 0 failed, 0 skipped")


def test_of_several_that_are_tried_again_only_those_that_fail_twice_fail(make: Make) -> None:
    code, printed = make({"first": LATE + BROKEN}, full=True)
    assert code == 1
    assert "test_late" not in printed.partition("failed within the sections")[2]
    assert "test_broken" in printed.partition("failed within the sections")[2]
    assert printed.rstrip().endswith("1 passed, 1 failed, 0 skipped")


def test_where_many_fail_none_is_tried_again(make: Make) -> None:
    more = "".join(f"def test_{number}(): assert False\n" for number in range(runner.AGAIN))
    code, printed = make({"first": LATE + more}, full=True)
    assert code == 1
    assert "second try" not in printed
    assert printed.rstrip().endswith(f"0 passed, {runner.AGAIN + 1} failed, 0 skipped")


def test_the_core_is_what_is_marked_and_arguments_pick_from_all(make: Make) -> None:
    assert make({"first": SOUND})[1].rstrip().endswith("1 passed, 0 failed, 0 skipped")
    assert make({"second": SOUND}, "--", "-k", "detail")[1].rstrip().endswith("1 passed, 0 failed, 0 skipped")
    assert make({"third": SOUND}, full=True)[1].rstrip().endswith("2 passed, 0 failed, 0 skipped")


def test_a_section_whose_core_is_all_or_nothing(make: Make) -> None:
    code, printed = make({"first": SOUND, "second": SOUND}, first={"core": "all"}, second={"core": "none"})
    assert code == 0
    assert row(printed, "first").split()[:2] == ["passed", "2"]
    assert row(printed, "second").split()[0] == "skipped"
    assert "FULL=1 make test" in row(printed, "second")


def test_a_section_is_skipped_with_the_reason_and_what_to_type(make: Make) -> None:
    fields = {"first": {"needs": ("engine",)}}
    code, printed = make({"first": SOUND, "second": SOUND}, **fields)
    assert code == 0
    assert "needs a Docker Engine; no Docker Engine answers: make engine" in row(printed, "first")


@pytest.mark.parametrize(("need", "code"), [("engine", 1), ("gpu", 0)])
def test_strict_lets_only_that_be_skipped_which_no_debian_machine_need_have(make: Make, need: str, code: int) -> None:
    ended, printed = make({"first": SOUND}, strict=True, first={"needs": (need,)})
    assert ended == code
    assert ("FAILED" in row(printed, "first")) == bool(code)


@pytest.mark.parametrize("strict", [False, True])
def test_tests_within_a_section_are_skipped_in_the_same_words(make: Make, strict: bool) -> None:
    code, printed = make({"first": LACKING}, strict=strict)
    assert code == int(strict)
    if strict:
        assert row(printed, "first").split()[:2] == ["FAILED", "2"]
    else:
        assert "needs the moon; it is day: make night" in printed.partition("skipped within the sections")[2]


def test_an_image_that_cannot_be_built_is_missed_by_those_tests_alone_that_need_an_engine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "works", lambda *words: True)
    monkeypatch.setenv(needs.NO_IMAGE, "")
    asked = needs.engine
    assert asked() is None
    code, printed = make({"build": BROKEN, "second": SOUND}, full=True, second={"image": True})
    assert code == 1
    assert row(printed, "second").split()[0] == "passed"
    assert str(asked()) == "the image could not be built, as build/image.log says: make image"


def test_a_section_of_which_nothing_is_picked_is_no_failure(make: Make) -> None:
    code, printed = make({"first": SOUND, "second": BROKEN}, "--", "-k", "sound")
    assert code == 0
    assert "no test of it was picked" in row(printed, "second")


def test_a_section_that_is_not_there_is_told_with_those_that_are(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.read_words(["launch"]) == (["launch"], [])
    assert runner.read_words(["image", "--", "-k", "x"]) == (["build", "image"], ["-k", "x"])
    with pytest.raises(ValueError, match="no section launhc; there are build, lint, unit"):
        runner.read_words(["launhc"])


def test_every_section_has_its_turn_and_its_target() -> None:
    makefile = (Path(sections.__file__).parents[1] / "Makefile").read_text()
    assert sorted(name for turn in TURNS for line in turn for name in line) == sorted(SECTIONS)
    for section in SECTIONS.values():
        assert (
            f"\n{section.goal}:" in makefile if section.goal else f"$(SECTIONS) {section.name} -- $(ARGS)" in makefile
        )


def test_what_is_asked_for_has_a_name_that_is_known() -> None:
    assert {name for section in SECTIONS.values() for name in section.needs} <= set(needs.NEEDS)
    for name, need in needs.NEEDS.items():
        assert not (missing := need.ask()) or (missing.why and missing.then), name
