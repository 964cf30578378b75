"""Replicas that are not equal any more are noticed, named and healed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from training_jobs import Run

from slipway.train.observe.replicas import are_equal, find_odd, fingerprint, with_complement
from slipway.train.snapshots.tensors import raw_bytes, sum_of_bits

Start = Callable[..., Run]
OPTIONS = ("--dataset-size", 200, "--batch-size", 12, "--steps", 20, "--save-every", 5, "--verify-every", 2)
CPU = torch.device("cpu")


def made_tensors(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of many types, sizes and orders in memory, with odd ends."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(), (1,), (3,), (7, 5), (2, 3, 5, 7), (64, 33), (129,)]
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]
    tensors = {
        f"{kind} {shape}": (torch.randn(shape, generator=generator) * 100).to(kind)
        for kind in kinds
        for shape in shapes
    }
    for name, tensor in [*tensors.items()]:
        if tensor.dim() == 4:
            tensors[name] = tensor.contiguous(memory_format=torch.channels_last)
        elif tensor.dim() == 2:
            tensors[f"{name} transposed"] = tensor.clone().t()
            tensors[f"{name} in the middle"] = torch.cat([tensor.view(-1), tensor.view(-1)])[3 : 3 + tensor.numel()]
    return tensors


@pytest.mark.parametrize("ranks", [3, 4])
def test_each_of_a_thousand_flipped_bits_is_found_with_tensor_and_rank(ranks: int) -> None:
    dice = random.Random(ranks)
    replicas = [made_tensors(1) for _ in range(ranks)]
    sums = [fingerprint(list(tensors.values()), CPU).tolist() for tensors in replicas]
    assert find_odd(sums) == ([], [])
    names = list(replicas[0])
    for _ in range(500):
        rank, place = dice.randrange(ranks), dice.randrange(len(names))
        tensor = replicas[rank][names[place]]
        raw = tensor.untyped_storage()
        begin = tensor.storage_offset() * tensor.element_size()
        at, bit = begin + dice.randrange(tensor.numel() * tensor.element_size()), dice.randrange(8)
        raw[at] ^= 1 << bit
        changed = [list(row) for row in sums]
        changed[rank][place] = int(sum_of_bits(tensor))
        assert find_odd(changed) == ([place], [rank])
        both = torch.stack([with_complement(torch.tensor(row)) for row in changed]).amax(0)
        assert not are_equal(both)
        raw[at] ^= 1 << bit
    assert [fingerprint(list(tensors.values()), CPU).tolist() for tensors in replicas] == sums


def test_the_largest_and_smallest_sums_are_compared_without_overflow() -> None:
    ends = [-(2**63), 2**63 - 1, -1, 0]
    for one in ends:
        for other in ends:
            largest = torch.maximum(with_complement(torch.tensor([one])), with_complement(torch.tensor([other])))
            assert are_equal(largest) == (one == other)


def test_equal_values_have_one_sum_wherever_they_lie_in_memory() -> None:
    values = torch.randn(101)
    for offset in range(5):
        assert sum_of_bits(torch.cat([torch.zeros(offset), values])[offset:]) == sum_of_bits(values)
    assert raw_bytes(torch.randn(2, 3, dtype=torch.complex64)).numel() == 48


def test_without_a_majority_nobody_is_blamed() -> None:
    assert find_odd([[1, 5], [2, 5]]) == ([0], [])
    assert find_odd([[1], [1], [2], [2]]) == ([0], [])
    assert find_odd([[1, 7], [1, 8], [2, 8]]) == ([0, 1], [0, 2])
    assert find_odd([[1, 7], [1, 8], [2, 9]]) == ([0, 1], [])


@pytest.mark.pull
@pytest.mark.parametrize("ranks", [2, 3])
def test_loops_of_ones_own_are_told_of_drift_and_of_wrong_bits(
    ranks: int, programs: Callable[..., str], tmp_path: Path
) -> None:
    programs("replicas_worker", 7, tmp_path / "told.json", processes=ranks)
    told = json.loads((tmp_path / "told.json").read_text())
    assert [text for name, text in told if name == "healthy"] == ["equal", "equal"]
    named = {
        "seed": "scale",
        "left out": "last.bias",
        "rate": "scale",
        "not averaged": "scale",
        "buffer": "average",
        "one rank": "last.weight",
        "momentum": "exp_avg of first.weight",
    }
    kinds = dict(told[1:8])
    assert kinds.keys() == named.keys()
    for kind, tensor in named.items():
        assert f" in {tensor}" in kinds[kind]
        assert "drift" in kinds[kind]
    if ranks == 3:
        assert kinds["one rank"].startswith("rank 0 differs from the others")
        assert kinds["momentum"].startswith("rank 1 differs from the others")
    flips = [(name.removeprefix("flip "), text) for name, text in told if name.startswith("flip ")]
    assert len(flips) == 40
    for name, text in flips:
        rank, _, tensor = name.partition(" ")
        assert text.startswith(
            f"rank {rank} differs from the others in {tensor}: " if ranks > 2 else f"the ranks differ in {tensor}: "
        )
        assert ": 1 of " in text
        assert text.endswith("(one wrong bit or value: memory or a processor)")


@pytest.mark.pull
@pytest.mark.parametrize(("processes", "number"), [(2, 11), (3, 4), (3, 123456789)])
def test_a_wrong_bit_is_healed_and_the_job_ends_bit_for_bit_as_ever(
    processes: int, number: int, job: Start, whole: Start
) -> None:
    reference = whole("linear", *OPTIONS, processes=processes)
    run = job("linear", *OPTIONS, processes=processes, flip=[1, 12, number, 1])
    assert run.exit_code == 0, run.output
    assert "flipped" in run.output
    who = "rank 1 differs from the others in" if processes > 2 else "the ranks differ in"
    assert who in run.output
    assert "returning to the newest snapshot, in which the replicas are equal" in run.output
    assert "resuming from" in run.output
    for name, tensor in reference.tensors("model", "optimizer", "ranks").items():
        assert torch.equal(tensor, run.tensors("model", "optimizer", "ranks")[name]), name
    [row] = json.loads((run.folder / "replicas.json").read_text())["differences"]
    assert row["nodes"][0].startswith("node 0 (")


@pytest.mark.pull
def test_a_snapshot_is_not_made_of_replicas_that_differ(job: Start) -> None:
    run = job("linear", *OPTIONS, "--verify-every", 100, flip=[0, 14, 3, 1])
    assert run.exit_code == 0, run.output
    assert "resuming from" in run.output
    assert "step-00000010" in run.output


def test_the_second_wrong_replica_of_a_node_within_a_day_is_the_nodes(job: Start) -> None:
    run = job("linear", *OPTIONS, flip=[1, 12, 5, 2])
    assert run.exit_code == 1
    assert {outcome["outcome"] for outcome in run.outcomes} == {"unhealthy"}
    assert "for the second time within a day on node 0 (" in run.outcomes[0]["message"]


def test_what_was_wrong_the_day_before_yesterday_is_forgotten(job: Start) -> None:
    first = job("linear", *OPTIONS, flip=[1, 12, 5, 1])
    file = first.folder / "replicas.json"
    content = json.loads(file.read_text())
    content["differences"][0]["time"] = time.time() - 2 * 86_400
    file.write_text(json.dumps(content))
    again = job("linear", *OPTIONS, "--steps", 40, resume="auto", flip=[1, 32, 5, 1])
    assert again.exit_code == 0, again.output
    assert len(json.loads(file.read_text())["differences"]) == 2


def test_without_a_snapshot_there_is_nothing_to_go_back_to(job: Start) -> None:
    run = job("linear", *OPTIONS, "--save-every", 0, flip=[1, 12, 5, 1])
    assert run.exit_code == 1
    assert {outcome["outcome"] for outcome in run.outcomes} == {"failed"}
    assert "and there is no snapshot to return to" in run.outcomes[0]["message"]


def test_nobody_compares_where_that_is_not_wanted(job: Start) -> None:
    run = job("linear", *OPTIONS, "--verify-every", 0, flip=[1, 12, 5, 1])
    assert run.exit_code == 0
    assert "differ" not in run.output
    assert not (run.folder / "replicas.json").exists()


@pytest.mark.parametrize("more", [("--verify-every", "auto", "--steps", 40), ("--accumulate", 2, "--verify-every", 1)])
def test_healthy_training_is_not_suspected(more: tuple[object, ...], job: Start) -> None:
    run = job("linear", *OPTIONS, *more)
    assert run.exit_code == 0, run.output
    assert "differ" not in run.output
