"""The sides of the GPT bench train the same model on the same samples, and one that ends says why."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("torch")  # which unit tests do without
sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

import torch
from peers.floor import shapes
from peers.jobs import Job
from peers.plan import PLAN, PROCESSES, Plan, Size, read_plan
from peers.slipway_loop import words
from peers.training import begin, learning_rate, ours, visited

from slipway.options import parse
from slipway.options.gpt import GptOptions
from slipway.train.loop import step
from slipway.train.loop.loader import Loader, Sampler

SIZE = Size("tiny", layers=2, embed=16, context=8, batch=3, parts=2)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "train.bin").write_bytes(bytes(2 * 1000))
    return Plan(SIZE, "fp32", steps=40, block=4, compile=False, folder=str(tmp_path))


def test_a_plan_is_read_as_it_was_written(plan: Plan) -> None:
    assert read_plan({PLAN: plan.write()}) == plan


def test_peers_begin_with_the_same_weights_and_learn_the_same(plan: Plan) -> None:
    tokens = torch.randint(256, (3, 9))
    losses = [model(tokens[:, :-1], tokens[:, 1:].contiguous()) for model in (begin(plan), ours(plan))]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)


def test_the_learning_rate_is_that_of_what_one_types(plan: Plan) -> None:
    options = parse(GptOptions, words(plan).split())
    rates = [(learning_rate(plan, at), step.learning_rate(options, at, plan.steps)) for at in range(plan.steps)]
    assert [peer for peer, _ in rates] == pytest.approx([own for _, own in rates])


@pytest.mark.parametrize("rank", range(PROCESSES))
def test_peers_visit_the_samples_that_slipway_visits(plan: Plan, rank: int) -> None:
    loader = Loader(
        lambda indices, keys: (indices,), Sampler(999 // SIZE.context, plan.seed), PROCESSES * SIZE.batch * SIZE.parts,
        SIZE.parts, (rank, PROCESSES), torch.device("cpu"), 0,
    )  # fmt: skip
    loader.start(0)
    own = [batch[0].tolist() for _ in range(plan.steps) for batch in loader.step()]
    assert visited(plan)[:, rank].tolist() == own


def test_the_floor_has_every_matrix_of_the_model(plan: Plan) -> None:
    matrices = [
        weight.shape for name, weight in ours(plan).named_parameters() if weight.dim() == 2 and "wpe" not in name
    ]
    assert sorted(shapes(SIZE)) == sorted((wide, out) for out, wide in matrices)


def test_a_side_that_ends_says_why(plan: Plan) -> None:
    with (
        closing(Job("nobody", plan)) as job,
        pytest.raises(RuntimeError, match=r"(?s)nobody does not answer.*No module named"),
    ):
        job.answer()
