"""Nodes that share no file system: each keeps a copy of every snapshot, and the newest valid one serves all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_jobs import Job, Run

from slipway.train.snapshots.resume import SENDS, TOGETHER, SearchResult, choose_source, split_tensors

Nodes = Callable[..., list[Run]]
OPTIONS = ("--dataset-size", 150, "--batch-size", 16, "--log-every", 1, "--save-every", 4)


@pytest.fixture
def nodes(start: Callable[..., Job]) -> Nodes:
    def run(*args: object, **more: object) -> list[Run]:
        return start("linear", *OPTIONS, *args, folders=("one", "two"), **more).end()

    return run


@pytest.mark.core
def test_every_node_keeps_a_copy_and_one_copy_is_enough(nodes: Nodes, start: Callable[..., Job]) -> None:
    whole = start("linear", *OPTIONS, "--steps", 14, folders=("whole",)).end()[0]
    first = nodes("--steps", 9)
    assert [run.snapshots for run in first] == [["step-00000009", "step-00000008"]] * 2
    assert all(run.tensors("model", "optimizer", "ranks") for run in first)
    shutil.rmtree(first[0].folder)  # a new node 0 with an empty disk
    one = nodes("--steps", 14, resume="auto", kill=[0, 13])[0]
    assert "step-00000009" in one.snapshots  # its copy, before anything else is saved
    assert "two/snapshots/step-00000009" in one.output
    one, two = nodes("--steps", 14, resume="auto")
    assert (one.exit_code, two.exit_code) == (0, 0), one.output
    for run in (one, two):
        assert run.snapshots == ["step-00000014", "step-00000012"]
        for name, tensor in whole.tensors("model", "ranks").items():
            assert tensor.equal(run.tensors("model", "ranks")[name])


@pytest.mark.pull
def test_the_newest_valid_one_of_all_nodes_is_taken_and_the_damaged_one_named(nodes: Nodes) -> None:
    one, two = nodes("--steps", 8)
    shutil.rmtree(two.folder / "snapshots" / "step-00000008")
    (one.folder / "snapshots" / "step-00000008" / "model.safetensors").write_bytes(b"")
    one, two = nodes("--steps", 10, resume="auto")
    assert one.exit_code == 0, one.output
    assert "skipping the damaged snapshot step-00000008: " in one.output
    assert "model.safetensors has 0 bytes" in one.output
    assert "resuming from" in one.output
    assert "step-00000004" in one.output
    assert one.snapshots == two.snapshots == ["step-00000010", "step-00000008"]


def test_a_new_format_on_one_node_is_refused_by_all(nodes: Nodes) -> None:
    one, two = nodes("--steps", 4)
    manifest = two.folder / "snapshots" / "step-00000004" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    one, two = nodes("--steps", 10, resume="auto")
    outcomes = [*one.outcomes, *two.outcomes]
    assert [outcome["outcome"] for outcome in outcomes] == ["configuration"] * 2
    assert "format 99" in outcomes[0]["message"]
    assert outcomes[0]["message"] == outcomes[1]["message"]


@pytest.mark.pull
@pytest.mark.parametrize("resume", [("none", "auto"), ("auto", "none")])
def test_a_node_that_is_started_differently_begins_a_new_run_with_the_others(
    nodes: Nodes, resume: tuple[str, str]
) -> None:
    one, two = nodes("--steps", 4, resume=resume)
    assert one.exit_code == 0, one.output
    assert one.snapshots == two.snapshots == ["step-00000004"]
    none, auto = resume.index("none"), resume.index("auto")
    told = (
        f"--resume is none on rank {none} and auto on rank {auto}: all resume from what this run has saved, if anything"
    )
    assert told in one.output


def test_what_a_node_was_to_resume_is_resumed_by_all(nodes: Nodes) -> None:
    one, _ = nodes("--steps", 4)
    shutil.rmtree(one.folder)
    one, two = nodes("--steps", 8, resume=("none", "auto"))
    assert one.exit_code == 0, one.output
    assert one.metrics[0]["step"] == 5
    assert one.snapshots[0] == two.snapshots[0] == "step-00000008"


@pytest.mark.parametrize("other", ["none", "auto"])
def test_a_path_on_one_node_is_what_all_start_from(
    nodes: Nodes, start: Callable[..., Job], tmp_path: Path, other: str
) -> None:
    [origin] = start("linear", *OPTIONS, "--steps", 4, folders=("origin",)).end()
    one, two = nodes("--steps", 8, resume=(other, str(origin.folder)))
    assert one.exit_code == 0, one.output
    assert f"resuming from {origin.folder}" in one.output
    assert one.snapshots == two.snapshots == ["step-00000008", "step-00000004"]
    shutil.rmtree(one.folder)
    shutil.rmtree(two.folder)
    one, two = nodes("--steps", 8, resume=(other, str(tmp_path / "lost")))
    outcomes = [*one.outcomes, *two.outcomes]
    assert [outcome["outcome"] for outcome in outcomes] == ["configuration"] * 2
    for outcome in outcomes:
        assert outcome["message"].startswith(f"--resume {tmp_path / 'lost'} is neither a snapshot nor a run")


@pytest.mark.pull
def test_ranks_that_would_train_differently_are_told_in_what_and_do_not_begin(nodes: Nodes) -> None:
    def config(folder: Path) -> Path:
        many = folder.name == "two"
        file = folder / "options.yaml"
        file.write_text(
            f"steps: 4\neval-every: {2 if many else 3}\nlr: {0.2 if many else 0.1}\nsave-every: {3 if many else 4}\n"
        )
        return file

    one, two = nodes("--config", config, "--seed", lambda folder: 7 if folder.name == "two" else 0)
    outcomes = [*one.outcomes, *two.outcomes]
    assert [outcome["outcome"] for outcome in outcomes] == ["configuration"] * 2
    for outcome in outcomes:
        assert outcome["message"].startswith("Rank 1 differs from rank 0 in ")
        assert "--seed (7 instead of 0)" in outcome["message"]
        assert " and 1 more. Give all nodes the same files" in outcome["message"]


def test_a_file_of_the_same_options_in_another_place_is_no_difference(nodes: Nodes) -> None:
    def config(folder: Path) -> Path:
        file = folder / "options.yaml"
        file.write_text("steps: 4\n")
        return file

    one, _ = nodes("--config", config)
    assert one.exit_code == 0, one.output


@pytest.mark.pull
def test_what_arrives_damaged_is_sent_again_and_a_node_where_that_does_not_help_is_named(nodes: Nodes) -> None:
    before = nodes("--steps", 4)
    one, two = nodes("--steps", 4, resume="auto", damaged=[1, SENDS - 1])
    assert (one.exit_code, two.exit_code) == (0, 0), one.output + two.output
    assert two.output.count("of the snapshot arrived damaged at rank 1") == SENDS - 1
    assert all(tensor.equal(two.tensors("model")[name]) for name, tensor in before[1].tensors("model").items())
    runs = nodes("--steps", 10, resume="auto", damaged=[1, SENDS])
    assert [outcome["outcome"] for run in runs for outcome in run.outcomes] == ["peer", "unhealthy"]
    assert f"arrived damaged {SENDS} times" in runs[1].outcomes[0]["message"]


REPORTS = st.tuples(st.sampled_from(SearchResult), st.integers(0, 9)).map(
    lambda report: (int(report[0]), report[1] if report[0] == SearchResult.SNAPSHOT else -1)
)


@given(st.lists(REPORTS, min_size=1, max_size=8))
def test_all_ranks_choose_a_refusal_else_the_newest_else_the_damage(reports: list[tuple[int, int]]) -> None:
    chosen = choose_source(reports)
    findings = [finding for finding, _ in reports]
    if chosen is None:
        assert set(findings) == {SearchResult.NOTHING}
        return
    finding, step = reports[chosen]
    assert (finding == SearchResult.REFUSED) == (SearchResult.REFUSED in findings)
    if finding == SearchResult.SNAPSHOT:
        assert step == max(step for _, step in reports)
        assert chosen == reports.index((finding, step))
    if finding == SearchResult.DAMAGED:
        assert set(findings) <= {SearchResult.DAMAGED, SearchResult.NOTHING}


MIB = 2**18  # numbers of four bytes


@pytest.mark.parametrize(
    ("sizes", "exchanges"),
    [
        ([], []),
        ([0, 1, 2], [3]),
        ([MIB] * 17, [16, 1]),
        ([1, 100 * MIB, 1], [1, 1, 1]),
        ([8 * MIB, 8 * MIB, 0, 1], [3, 1]),
    ],
)
def test_small_tensors_are_sent_together_and_a_large_one_alone(sizes: list[int], exchanges: list[int]) -> None:
    described = [(f"t{number}", [size], "float32") for number, size in enumerate(sizes)]
    files = {"model": described[: len(sizes) // 2], "optimizer": described[len(sizes) // 2 :]}
    together = [*split_tensors(files)]
    assert [len(each) for each in together] == exchanges
    assert [entry for each in together for _, entry in each] == described
    assert all(len(each) == 1 or sum(4 * entry[1][0] for _, entry in each) <= TOGETHER for each in together)
