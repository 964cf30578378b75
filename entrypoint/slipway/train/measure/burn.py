"""A burn: one device computes what is known, again and again, for as long as asked.

python -m slipway.train.measure.burn cpu 60     # or cuda, for the first GPU in CUDA_VISIBLE_DEVICES; prints one line of JSON

Two things are computed in turn: problems with known answers (observe/known_answers.py), with other inputs in each round, and the
gradients of a small model, which must have the same bits each time. On a CPU each core computes all of it by itself, in a thread
that is bound to it, so that a wrong core is named.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from slipway.train.measure.kernels import BATCH, SMALL, gradients
from slipway.train.models.gpt import Gpt
from slipway.train.observe.known_answers import arithmetics, find_wrong, problems
from slipway.train.snapshots.tensors import sum_of_bits

TIMES = {"cuda": 256, "cpu": 16}  # how often a small problem repeats in each direction
CALLS = {
    "cuda": 20,
    "cpu": 1,
}  # with the same inputs, since making them takes the host longer than a GPU needs for them


class TrainingStep:
    """Forward and backward of a small model on fixed data, on one device."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self._model = Gpt(SMALL).to(device)
        self._tokens = torch.randint(SMALL.vocab_size, (BATCH, SMALL.context)).to(device)
        mixed = device.type == "cuda" and "bf16" in [each.name for each in arithmetics(device)]
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=mixed)

    def digest(self) -> int:
        """A checksum of all gradients' bits."""
        with self._autocast:
            found = gradients(self._model, self._model, self._tokens)
        return zlib.crc32(repr([int(sum_of_bits(part)) for part in found.values()]).encode())


class BurnResult(NamedTuple):
    """How many rounds were right, what was wrong (empty where nothing was), and the digest of the training step."""

    rounds: int
    wrong: str
    digest: int


def burn(device: torch.device, step: TrainingStep, is_over: Callable[[], bool]) -> BurnResult:
    """Compute, for at least one round, until `is_over` or until something is wrong."""
    first = step.digest()
    for seed in itertools.count():
        if wrong := find_wrong(device, seed, TIMES[device.type], CALLS[device.type]):
            return BurnResult(seed, f"{wrong} (round {seed + 1})", first)
        if step.digest() != first:
            return BurnResult(seed, f"the gradients of a model differ from the first ones (round {seed + 1})", first)
        if is_over():
            return BurnResult(seed + 1, "", first)
    raise AssertionError("rounds have no end")


def burn_cores(cores: Sequence[int], is_over: Callable[[], bool]) -> dict[int, BurnResult]:
    """The result of each core of the CPU; all of them compute at the same time."""
    device = torch.device("cpu")
    steps = [TrainingStep(device) for _ in cores]  # made here: they draw from one random generator

    def bound(core: int, step: TrainingStep) -> BurnResult:
        os.sched_setaffinity(0, {core})  # of this thread alone
        torch.set_num_threads(1)
        return burn(device, step, is_over)

    with ThreadPoolExecutor(len(cores)) as pool:
        return dict(zip(cores, pool.map(bound, cores, steps), strict=True))


def find_odd_core(results: dict[int, BurnResult]) -> str:
    """What the comparison of the cores' training steps shows; empty where all are equal."""
    digests = Counter(result.digest for result in results.values())
    if len(digests) <= 1:
        return ""
    usual, count = digests.most_common(1)[0]
    odd = [core for core, result in results.items() if result.digest != usual]
    if 2 * count <= len(results):
        return "the gradients of a model are not the same on all cores"
    return f"core {', '.join(map(str, odd))}: the gradients of a model are not those of the other cores"


def report_cores(results: dict[int, BurnResult]) -> dict[str, str | int]:
    """The report of a CPU."""
    wrong = [f"core {core}: {result.wrong}" for core, result in results.items() if result.wrong]
    if not wrong and (odd := find_odd_core(results)):
        wrong = [odd]
    if wrong:
        return {"wrong": "; ".join(wrong)}
    whole = BurnResult(sum(result.rounds for result in results.values()), "", next(iter(results.values())).digest)
    return report(torch.device("cpu"), whole, f", {len(results)} core{'s' * (len(results) > 1)}")


def report(device: torch.device, result: BurnResult, where: str = "") -> dict[str, str | int]:
    """`right` with what was computed, or `wrong`; and the digest, for a comparison with other devices of the same kind."""
    if result.wrong:
        return {"wrong": result.wrong}
    computed = problems(device)
    count = result.rounds * len(computed) * CALLS[device.type]
    kinds, names = (", ".join(dict.fromkeys(words)) for words in zip(*((k, a.name) for k, a in computed), strict=True))
    right = f"{count:,} known results right ({kinds}; {names}), {result.rounds + 1:,} training steps equal{where}"
    return {"right": right, "digest": result.digest}


def main(kind: str, seconds: str) -> None:
    """Burn one device and print what was found; exits 1 where it is wrong or fails."""
    until = time.monotonic() + float(seconds)
    found: dict[str, str | int]
    try:
        if kind == "cuda":
            torch.use_deterministic_algorithms(True)
            device = torch.device(kind, 0)
            found = report(device, burn(device, TrainingStep(device), lambda: time.monotonic() >= until))
        else:
            found = report_cores(burn_cores(sorted(os.sched_getaffinity(0)), lambda: time.monotonic() >= until))
    except Exception as error:  # CUDA's messages end with lines that say nothing
        found = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    print(json.dumps(found), flush=True)
    sys.exit(0 if "right" in found else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
