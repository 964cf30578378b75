"""A model that spans several processes: a split that cannot work is refused before anything starts."""

import pytest
from stand_ins import Slipway, make_devices

from slipway.launch.resolve.catalog import WORKLOADS

FIVE = ("--layers", "5")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("--nproc-per-node", "2"), "2 processes = 1 pipeline of 2 stages"),
        (("--nproc-per-node", "4"), "4 processes = 2 pipelines of 2 stages"),
        (("--nproc-per-node", "10", "--stages", "5", "--accumulate", "8", *FIVE), "2 pipelines of 5 stages"),
    ],
)
def test_a_plan_says_how_processes_are_divided(slipway: Slipway, words: tuple[str, ...], note: str) -> None:
    answer = slipway("plan", "pipeline", *words)
    assert (answer.code, answer.err) == (0, "")
    assert note in answer.out
    assert "two nodes" not in answer.out


def test_a_pipeline_across_nodes_is_told(slipway: Slipway) -> None:
    answer = slipway("plan", "pipeline", "--nproc-per-node", "3", WORLD_SIZE="2", RANK="0", MASTER_ADDR="localhost")
    assert "6 processes = 3 pipelines of 2 stages, some of which are on two nodes" in answer.out


def test_one_stage_needs_no_other_process(slipway: Slipway) -> None:
    assert slipway("plan", "pipeline", "--nproc-per-node", "1", "--stages", "1").code == 0


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("words", "read", "possible"),
    [
        (("--nproc-per-node", "1"), "--stages 2 does not divide 1 process", "Type --stages 1, or"),
        (("--nproc-per-node", "3"), "--stages 2 does not divide 3 processes", "Type --stages 1 or --stages 3, or"),
        # Not 8, since there are five layers.
        (("--nproc-per-node", "8", "--stages", "3", *FIVE), "divide 8", "--stages 1 or --stages 2 or --stages 4, or"),
        (("--nproc-per-node", "8", "--stages", "8"), "more than the 4 layers", "Type 1 to 4"),
    ],
)
def test_an_impossible_split_is_78_and_names_the_possible_ones(
    slipway: Slipway, command: str, words: tuple[str, ...], read: str, possible: str
) -> None:
    answer = slipway(command, "pipeline", *words)
    assert answer.code == 78
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1
    assert read in answer.err
    assert possible in answer.err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--stages", "4", "--accumulate", "2"), "--accumulate 4 or more"),
        (("--static-graph",), "--static-graph is DistributedDataParallel's"),
        (("--bucket-mb", "5"), "--bucket-mb is DistributedDataParallel's"),
        (("--memory-every", "5"), "With --stages above 1, snapshots are saved only on disk"),
    ],
)
def test_options_that_contradict_the_stages_are_2(slipway: Slipway, words: tuple[str, ...], wanted: str) -> None:
    answer = slipway("plan", "pipeline", "--nproc-per-node", "4", *words)
    assert answer.code == 2
    assert wanted in answer.err
    assert slipway("plan", "pipeline", "--nproc-per-node", "4", "--stages", "1", *words[-2:]).code == 0


def test_stages_cannot_share_a_gpu(slipway: Slipway) -> None:
    words = ("plan", "pipeline", "--nproc-per-node", "4", "--oversubscribe")
    answer = slipway(*words, devices=make_devices(gpus=2))
    assert answer.code == 78
    assert "needs a GPU for each process" in answer.err
    assert slipway("plan", "pipeline", devices=make_devices(gpus=2)).code == 0


def test_only_this_workload_is_split() -> None:
    assert [name for name, workload in WORKLOADS.items() if workload.staged] == ["pipeline"]


ELASTIC = {"WORLD_SIZE": "2:4", "RANK": "0", "MASTER_ADDR": "localhost", "NPROC_PER_NODE": "1"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("linear", "--batch-size", "8"), ("2 to 4 nodes", "--batch-size 8", "into 3 micro-batches", "a multiple of 12")),
        (("linear", "--batch-size", "24", "--accumulate", "4"), ("into 16 micro-batches", "a multiple of 48")),
        (("pipeline",), ("--stages 2 does not divide 3 processes", "--nproc-per-node N")),
        (("pipeline", "--nproc-per-node", "2", "--batch-size", "40", "--accumulate", "4"), ("into 12 micro-batches",)),
    ],
)  # fmt: skip
def test_an_elastic_job_must_fit_every_number_of_nodes(
    slipway: Slipway, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused = slipway("plan", *words, **ELASTIC)
    assert refused.code == 78
    for text in says:
        assert text in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("linear",),
        ("linear", "--batch-size", "12"),
        ("linear", "--batch-size-per-process", "5"),
        ("pipeline", "--nproc-per-node", "2"),
        ("allreduce",),
    ],
)
def test_an_elastic_job_that_fits_says_how_large_it_may_be(slipway: Slipway, words: tuple[str, ...]) -> None:
    answer = slipway("plan", *words, **ELASTIC)
    assert answer.code == 0, answer.err
    assert "2 to 4 nodes × " in answer.out
    assert "at most" in answer.out
