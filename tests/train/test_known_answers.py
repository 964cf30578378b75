"""Computations with known answers: right on every processor, and a single wrong bit shows; `slipway check --burn` repeats them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from slipway.train.measure import burn
from slipway.train.measure.burn import BurnResult, TrainingStep, burn_cores, report_cores
from slipway.train.observe import known_answers as known
from slipway.train.observe.known_answers import KINDS, IntegerRange, KnownProblem

CPU = torch.device("cpu")
ALL_NUMBERS = [known.NARROW, known.MIDDLE, known.WIDE, known.WIDEST]


@pytest.mark.parametrize("numbers", ALL_NUMBERS, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 77])
def test_no_sum_can_be_rounded_in_whatever_order_it_is_added(numbers: IntegerRange, seed: int) -> None:
    chance = np.random.RandomState(seed)
    a, b, _ = map(np.abs, KINDS["product"].make(numbers, chance))
    assert (a @ b).max() <= numbers.bound
    _, filters, _ = KINDS["convolution"].make(numbers, chance)
    assert (np.abs(filters).sum((1, 2, 3)) * numbers.largest).max() <= numbers.bound
    rows, _ = KINDS["sum"].make(numbers, chance)
    assert np.abs(rows).sum(1).max() <= numbers.bound
    *_, values, _ = KINDS["attention"].make(numbers, chance)
    assert np.abs(values).max() * known.GROUP * known.GROUP <= max(numbers.bound, known.GROUP**2 * numbers.largest * 8)


def test_this_processor_computes_every_answer_in_every_arithmetic() -> None:
    assert {kind for kind, _ in known.problems(CPU)} == {*KINDS}
    assert [known.find_wrong(CPU, seed, times=2) for seed in (0, 3, 4, 1234)] == [""] * 4
    with torch.autocast("cpu", torch.bfloat16):  # as where a loop calls `run.replay` within one
        assert known.find_wrong(CPU, 0, times=2) == ""
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("kind", "arithmetic"), known.problems(CPU), ids=str)
def test_a_wrong_bit_in_any_number_shows(
    kind: str, arithmetic: known.Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = KnownProblem(kind, arithmetic, 0, CPU, times=2)
    assert problem.find_wrong() == ""
    right = problem._compute(*problem._inputs)
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[right.itemsize]
    nonzero = int(right.flatten().nonzero()[0])
    for bit in range(8 * right.itemsize - 1):
        wrong = right.clone()
        wrong.view(words).view(-1)[nonzero] ^= 1 << bit
        monkeypatch.setattr(problem, "_compute", lambda *inputs, wrong=wrong: wrong)
        assert f"{kind} in {arithmetic.name}: 1 of " in problem.find_wrong()


def test_integers_that_numpy_computes_wrongly_are_noticed_by_the_stored_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, sums = KINDS["sum"].make(known.WIDE, np.random.RandomState(0))
    wrong = KINDS["sum"]._replace(make=lambda numbers, chance: (rows, sums + (np.arange(16) == 3)))
    monkeypatch.setattr(known, "KINDS", MappingProxyType({**KINDS, "sum": wrong}))
    known._small_problem.cache_clear()
    found = known.find_wrong(CPU, 0, times=1)
    known._small_problem.cache_clear()
    assert found.startswith("the CPU computes wrongly with integers: sum of integers up to ")


PRECISIONS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
)


@pytest.mark.parametrize(("place", "value"), [*zip(PRECISIONS, ("tf32", "ieee", "bf16"), strict=True), (None, "high")])
def test_whatever_precision_the_program_chose_it_has_no_effect_and_is_kept(place: Any, value: str) -> None:
    before = [each.fp32_precision for each in PRECISIONS]
    try:
        if place is None:
            torch.set_float32_matmul_precision(value)
        else:
            place.fp32_precision = value
        chosen = [each.fp32_precision for each in PRECISIONS]
        assert known.find_wrong(CPU, 0, times=1) == ""
        assert [each.fp32_precision for each in PRECISIONS] == chosen != before
        assert place is not None or torch.get_float32_matmul_precision() == value
    finally:
        if place is None:
            torch.set_float32_matmul_precision("highest")
        for each, precision in zip(PRECISIONS, before, strict=True):
            each.fp32_precision = precision


def test_each_thread_makes_its_own_answers_since_another_core_may_be_the_wrong_one() -> None:
    here = known.small_problem("sum", known.WIDE, 99)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(known.small_problem, "sum", known.WIDE, 99).result()
    assert here is known.small_problem("sum", known.WIDE, 99)
    assert there is not here
    assert all(map(np.array_equal, here, there))


def test_all_cores_compute_at_the_same_time_and_say_what() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    results = burn_cores(cores, lambda: True)
    assert [*results] == cores
    assert {result.rounds for result in results.values()} == {1}
    said = str(report_cores(results)["right"])
    assert (
        f"{16 * len(cores)} known results right (product, convolution, attention, sum; fp64, fp32, bf16, fp16)" in said
    )


def test_a_wrong_core_is_named() -> None:
    right, other, wrong = BurnResult(3, "", 7), BurnResult(3, "", 8), BurnResult(1, "sum in fp32: …", 7)
    assert report_cores({0: right, 5: wrong, 6: right}) == {"wrong": "core 5: sum in fp32: …"}
    assert "core 5: the gradients" in str(report_cores({0: right, 5: other, 6: right})["wrong"])
    assert "not the same on all cores" in str(report_cores({0: right, 5: other})["wrong"])
    assert report_cores({0: right, 5: right})["digest"] == 7


def test_a_step_whose_bits_change_and_a_wrong_result_end_the_burn(monkeypatch: pytest.MonkeyPatch) -> None:
    step, digests = TrainingStep(CPU), iter([1, 1, 2])
    monkeypatch.setattr(step, "digest", lambda: next(digests))
    monkeypatch.setattr(burn, "find_wrong", lambda *_: "")
    found = burn.burn(CPU, step, lambda: False)
    assert (found.rounds, found.wrong) == (1, "the gradients of a model differ from the first ones (round 2)")
    rounds = iter(["", "", "sum in fp32: 1 of 32 numbers"])
    monkeypatch.setattr(burn, "find_wrong", lambda *_: next(rounds))
    monkeypatch.setattr(step, "digest", lambda: 1)
    assert burn.burn(CPU, step, lambda: False).wrong == "sum in fp32: 1 of 32 numbers (round 3)"


@pytest.mark.parametrize(
    "limit",
    ["ATEN_CPU_CAPABILITY=default", "ONEDNN_MAX_CPU_ISA=SSE41", "ONEDNN_MAX_CPU_ISA=AVX2", "MKL_CBWR=COMPATIBLE"],
)
def test_other_instruction_sets_know_the_same_answers(limit: str, alone: None) -> None:
    name, _, value = limit.partition("=")
    command = [sys.executable, "-P", "-m", "slipway.train.measure.burn", "cpu", "0.1"]
    done = subprocess.run(
        command, env={**os.environ, name: value, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert "right" in json.loads(done.stdout), done.stderr


@pytest.fixture
def alone() -> None:
    """Marks what starts processes that import torch, so that it is nightly (conftest.py)."""
