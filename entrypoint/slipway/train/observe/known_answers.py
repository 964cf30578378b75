"""Computations whose results are known exactly, on every processor and in every arithmetic.

The inputs are integers so small that every partial sum fits into the significand of its type. No result is rounded, in whatever
order a processor adds, so a single wrong bit shows. The answers are computed with integers, by numpy. Those of the first seeds
are also stored here as checksums, so that a machine whose integer arithmetic is wrong is noticed.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

Integers = npt.NDArray[np.int64]


class IntegerRange(NamedTuple):
    """Integers from -`largest` to `largest`; sums whose terms' absolute values add up to at most `bound` are exact."""

    largest: int
    bound: int


NARROW = IntegerRange(3, 2**8)  # bf16 represents all integers up to 2**8, fp16 up to 2**11
MIDDLE = IntegerRange(7, 2**16)  # TF32 rounds factors to 11 bits and adds in fp32
WIDE = IntegerRange(127, 2**24)
WIDEST = IntegerRange(2**20, 2**53)


class Arithmetic(NamedTuple):
    """A way to compute. `rounds`: whether fp32 factors may be rounded to TF32, for the tensor cores."""

    name: str
    dtype: torch.dtype
    numbers: IntegerRange
    rounds: bool = False

    @contextmanager
    def selected(self) -> Iterator[None]:
        """A context in which torch computes in this way, also within an autocast of the caller's."""
        with ExitStack() as stack:
            stack.callback(setattr, torch.backends.cudnn, "deterministic", torch.backends.cudnn.deterministic)
            torch.backends.cudnn.deterministic = True
            # torch refuses to mix these with its older settings, which it shows here as well.
            for place in PRECISIONS:
                stack.callback(setattr, place, "fp32_precision", place.fp32_precision)
                place.fp32_precision = "tf32" if self.rounds else "ieee"
            for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield


PRECISIONS: tuple[Any, ...] = (
    *(torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn),  # type: ignore[attr-defined]
    *(torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv, torch.backends.mkldnn.rnn),  # type: ignore[attr-defined]
)
FP64 = Arithmetic("fp64", torch.float64, WIDEST)
FP32 = Arithmetic("fp32", torch.float32, WIDE)
TF32 = Arithmetic("tf32", torch.float32, MIDDLE, rounds=True)
BF16 = Arithmetic("bf16", torch.bfloat16, NARROW)
FP16 = Arithmetic("fp16", torch.float16, NARROW)


def arithmetics(device: torch.device) -> tuple[Arithmetic, ...]:
    """The arithmetics of a device. bf16 and TF32 came to GPUs with compute capability 8.0."""
    if device.type != "cuda":
        return FP64, FP32, BF16, FP16
    return (FP64, FP32, TF32, BF16, FP16) if torch.cuda.get_device_capability(device) >= (8, 0) else (FP64, FP32, FP16)


def draw(numbers: IntegerRange, chance: np.random.RandomState, *shape: int) -> Integers:
    """Random integers; numpy promises that this generator never changes."""
    return chance.randint(-numbers.largest, numbers.largest + 1, shape, np.int64)


def thin(values: Integers, count: int, axis: int, chance: np.random.RandomState) -> Integers:
    """Set all but at most `count` of the values along an axis to zero, so that their sum stays small."""
    return np.where(chance.random_sample(values.shape).argsort(axis).argsort(axis) < count, values, 0)


def make_product(numbers: IntegerRange, chance: np.random.RandomState) -> tuple[Integers, ...]:
    """Two matrices and their product."""
    a, b = draw(numbers, chance, 16, 1024), draw(numbers, chance, 1024, 16)
    b = thin(b, numbers.bound // numbers.largest**2, 0, chance)
    return a, b, a @ b


def make_convolution(numbers: IntegerRange, chance: np.random.RandomState) -> tuple[Integers, ...]:
    """A picture, filters of 3×3, and the convolution with stride 2, for which no library uses a transform that rounds."""
    x, filters = draw(numbers, chance, 1, 16, 15, 15), draw(numbers, chance, 8, 16 * 9)
    filters = thin(filters, numbers.bound // numbers.largest**2, 1, chance).reshape(8, 16, 3, 3)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    return x, filters, np.einsum("nchwij,ocij->nohw", windows, filters)


GROUP = 8  # keys that a query attends to, all equally; a power of two
CODE = (
    128  # a query and its keys have this where the others have 0: the scores lie so far apart that exp() gives 1 or 0
)


def make_attention(numbers: IntegerRange, chance: np.random.RandomState) -> tuple[Integers, ...]:
    """Queries, keys, values and result: each query attends to one group of keys, and the result is the mean of their values."""
    codes = CODE * np.eye(64, dtype=np.int64)[:GROUP]
    asked, group = chance.randint(0, GROUP, 64), chance.permutation(np.arange(64) % GROUP)
    values = draw(numbers, chance, 64, 64)
    means = np.stack([values[group == each].sum(0) for each in range(GROUP)])[asked]
    return tuple(each[None, None] for each in (codes[asked], codes[group], GROUP * values, means))


def make_sum(numbers: IntegerRange, chance: np.random.RandomState) -> tuple[Integers, ...]:
    """Rows and their sums."""
    rows = thin(draw(numbers, chance, 16, 1024), numbers.bound // numbers.largest, 1, chance)
    return rows, rows.sum(1)


TIMES = -1  # in a pattern: as often as asked for
Pattern = tuple[int, ...]


class Computation(NamedTuple):
    """How inputs and answer are made, how torch computes the answer, and the pattern in which each repeats to become large."""

    make: Callable[[IntegerRange, np.random.RandomState], tuple[Integers, ...]]
    compute: Callable[..., torch.Tensor]
    patterns: tuple[Pattern, ...]


def convolve(x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """The convolution of `make_convolution`."""
    return functional.conv2d(x, filters, stride=2)


def add_up(rows: torch.Tensor) -> torch.Tensor:
    """The sums of `make_sum`."""
    return rows.sum(1)


KINDS: Mapping[str, Computation] = MappingProxyType(
    {
        "product": Computation(make_product, torch.matmul, ((TIMES, 1), (1, TIMES), (TIMES, TIMES))),
        "convolution": Computation(
            make_convolution, convolve, ((TIMES, 1, 1, 1), (TIMES, 1, 1, 1), (TIMES, TIMES, 1, 1))
        ),
        "attention": Computation(make_attention, functional.scaled_dot_product_attention, ((TIMES, 4, 1, 1),) * 4),
        "sum": Computation(make_sum, add_up, ((TIMES, 1), (TIMES,))),
    }
)

# crc32 of the answers to the first seeds, by kind and largest number.
STORED: Mapping[tuple[str, int], tuple[int, ...]] = MappingProxyType(
    {
        ("product", 3): (0x6EBC9038, 0x40DB425E, 0x226B5EE9, 0x11A9EF4A),
        ("product", 7): (0xA16E6A02, 0x34E00349, 0x75B30859, 0xCA161595),
        ("product", 127): (0xDBF72CF7, 0x8A1D0DC0, 0x5E0EE005, 0x80B64217),
        ("product", 1048576): (0x8C65C94D, 0xAA4300D7, 0x20E500C3, 0x7A5DF19B),
        ("convolution", 3): (0x86CB0B06, 0xA1844D20, 0x728293C7, 0x6F22E595),
        ("convolution", 7): (0x2AE387AF, 0x99B2A51D, 0x0D4CF406, 0xE976B539),
        ("convolution", 127): (0xDDA8E334, 0x55486BAB, 0xC4CCF6FE, 0xEF55B88B),
        ("convolution", 1048576): (0xAF556710, 0x65FF14DB, 0x2D0C1A1D, 0x526D9CC2),
        ("attention", 3): (0x62048DE6, 0xBDB4A030, 0x08A89A01, 0x423DE4D8),
        ("attention", 7): (0xFB4B8E6C, 0x40941977, 0xE2741A0C, 0x6EE764EB),
        ("attention", 127): (0x9EBA9C81, 0x28F7D5D6, 0x0E546567, 0x6F329C7A),
        ("attention", 1048576): (0x4D80867A, 0xAA547DB9, 0x445C68F5, 0xD5281EDF),
        ("sum", 3): (0x1CA0E256, 0x25D41816, 0x92226278, 0x9A04E730),
        ("sum", 7): (0x5621CFEC, 0x9B60BB69, 0xD17F45A5, 0x1E90B0EA),
        ("sum", 127): (0xD315CAF2, 0x017B9EF8, 0x567F21AF, 0x32C05F9A),
        ("sum", 1048576): (0x75398617, 0x5A54A423, 0xA3D9782F, 0xBABBEC6C),
    }
)


def small_problem(kind: str, numbers: IntegerRange, seed: int) -> tuple[Integers, ...]:
    """Inputs and answer. Raises ArithmeticError where the answer is not the stored one.

    Each thread makes its own: in a burn it is bound to a core, which may be the one whose integer arithmetic is wrong.
    """
    return _small_problem(threading.get_ident(), kind, numbers, seed)


@functools.lru_cache(maxsize=64)
def _small_problem(thread: int, kind: str, numbers: IntegerRange, seed: int) -> tuple[Integers, ...]:
    problem = KINDS[kind].make(numbers, np.random.RandomState(seed))
    stored = STORED[kind, numbers.largest]
    if seed < len(stored) and checksum(problem[-1]) != stored[seed]:
        raise ArithmeticError(f"{kind} of integers up to {numbers.largest}, by numpy")
    return problem


def checksum(answer: Integers) -> int:
    """The crc32 of an answer."""
    return zlib.crc32(np.ascontiguousarray(answer, "<i8").tobytes())


class KnownProblem:
    """A computation on a device whose result is known. `times`: how often the small problem repeats in each direction."""

    def __init__(self, kind: str, arithmetic: Arithmetic, seed: int, device: torch.device, times: int) -> None:
        """Raises ArithmeticError as `small_problem` does."""
        *self._inputs, self._answer = (
            torch.from_numpy(part).to(device, arithmetic.dtype).repeat(*(times if n == TIMES else n for n in pattern))
            for part, pattern in zip(small_problem(kind, arithmetic.numbers, seed), KINDS[kind].patterns, strict=True)
        )
        self._compute, self._arithmetic = KINDS[kind].compute, arithmetic
        self._named = f"{kind} in {arithmetic.name}"

    def find_wrong(self) -> str:
        """Compute once. Returns what is wrong, empty where nothing is."""
        with self._arithmetic.selected(), torch.no_grad():
            result = self._compute(*self._inputs)
        wrong = describe_wrong(result, self._answer)
        return f"{self._named}: {wrong}" if wrong else ""


def describe_wrong(result: torch.Tensor, right: torch.Tensor) -> str:
    """How many numbers are wrong and which is the first; empty where none is."""
    if torch.equal(result, right):
        return ""
    wrong = (result != right).nonzero()
    place = tuple(wrong[0].tolist())
    found, meant = (float(tensor[place]) for tensor in (result, right))
    return f"{len(wrong):,} of {right.numel():,} numbers, the first at {place}: {found:g} and not {meant:g}"


# How torch says that it has no such computation; the second with AVX-512 switched off on a processor that has AMX.
MISSING = ("not implemented", "is only supported when")


@functools.cache
def is_supported(kind: str, arithmetic: Arithmetic, device: torch.device) -> bool:
    """Whether torch has this computation on this device; half precision is not everywhere."""
    try:
        KnownProblem(kind, arithmetic, 0, device, 1).find_wrong()
    except RuntimeError as error:
        if not any(text in str(error) for text in MISSING):
            raise
        return False
    return True


def problems(device: torch.device) -> list[tuple[str, Arithmetic]]:
    """All kinds in all arithmetics that the device has."""
    return [
        (kind, arithmetic)
        for arithmetic in arithmetics(device)
        for kind in KINDS
        if is_supported(kind, arithmetic, device)
    ]


def find_wrong(device: torch.device, seed: int, times: int, calls: int = 1) -> str:
    """Compute every problem of a seed `calls` times. Returns what was wrong first; empty where all results were right."""
    try:
        for kind, arithmetic in problems(device):
            problem = KnownProblem(kind, arithmetic, seed, device, times)
            for _ in range(calls):
                if wrong := problem.find_wrong():
                    return wrong
    except ArithmeticError as error:
        return f"the CPU computes wrongly with integers: {error}"
    return ""
