"""Matrix products on one device, compared with results that are known without it.

python -m slipway.train.measure.health cpu     # or cuda, for the first GPU in CUDA_VISIBLE_DEVICES; prints one line of JSON

Both factors repeat a small square of small integers, so their product repeats the product of the squares, multiplied by how
often they fit: a few integers that Python computes by itself. All numbers and sums are so small that every type represents
them exactly, in whatever order they are added: a single wrong bit shows.
"""

from __future__ import annotations

import json
import random
import sys
import time

import torch

from slipway.train.observe.known_answers import describe_wrong

SIDE = 23  # of the small squares; a prime, so that no unit of the device always gets the same numbers
# Of their integers: 23 · 3² = 207 < 256, which bf16 still represents (8 bits), as it does 2ⁿ times that; so does fp16, whose
# largest number is 65,504: 207 · 256 = 52,992.
LARGEST = 3
TIMES = {"cuda": 256, "cpu": 32}  # how often they fit; a power of two
SQUARES = 3  # different pairs of factors
CALLS = {"cuda": 20, "cpu": 2}  # with each, so that a unit which fails now and then is noticed
Square = list[list[int]]


def make_square(seed: int) -> Square:
    """A square of small integers, the same for a seed everywhere."""
    numbers = random.Random(seed)
    return [[numbers.randint(-LARGEST, LARGEST) for _ in range(SIDE)] for _ in range(SIDE)]


def multiply_squares(a: Square, b: Square, times: int) -> Square:
    """What the product of matrices that repeat `a` and `b` so many times repeats; plain Python."""
    return [[times * sum(a[i][k] * b[k][j] for k in range(SIDE)) for j in range(SIDE)] for i in range(SIDE)]


def repeat(square: Square, times: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The matrix of shape (23 · times, 23 · times) that repeats a square."""
    return torch.tensor(square, dtype=dtype, device=device).repeat(times, times)


def kinds(device: torch.device) -> dict[str, tuple[torch.dtype, bool]]:
    """The arithmetics of a device by name: type, and whether fp32 may be rounded to TF32, for the tensor cores."""
    found = {"fp32": (torch.float32, False)}
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        found |= {"tf32": (torch.float32, True), "bf16": (torch.bfloat16, False)}
    if device.type == "cuda":  # tensor cores have it since 7.0, below which this torch does not go
        found["fp16"] = (torch.float16, False)
    return found


def check_products(device: torch.device) -> dict[str, str]:
    """`right` with what was computed and how fast, or `wrong` with the first wrong number."""
    # Sums of parts in 16 bits would be rounded, which is fine for training and no fault of the device.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    told, times, calls = [], TIMES[device.type], CALLS[device.type]
    for name, (dtype, rounded) in kinds(device).items():
        torch.set_float32_matmul_precision("high" if rounded else "highest")
        best = float("inf")
        for seed in range(SQUARES):
            a, b = make_square(2 * seed), make_square(2 * seed + 1)
            factors = [repeat(square, times, dtype, device) for square in (a, b)]
            right = repeat(multiply_squares(a, b, times), times, dtype, device)
            result = torch.empty_like(right)
            for call in range(calls):
                result.fill_(-1)
                seconds = take_time(factors, result)
                best = min(best, seconds)
                if wrong := describe_wrong(result, right):
                    return {"wrong": f"{name}, product {seed * calls + call + 1}: {wrong}"}
        rate = 2 * (SIDE * times) ** 3 / best / 1e9
        told.append(f"{name} {rate / 1e3:.3g} TFLOP/s" if rate >= 1e3 else f"{name} {rate:.3g} GFLOP/s")
    return {"right": f"{SQUARES * calls} products correct: {', '.join(told)}"}


def take_time(factors: list[torch.Tensor], result: torch.Tensor) -> float:
    """Multiply into `result`; the seconds that took."""
    if result.is_cuda:
        torch.cuda.synchronize(result.device)
    begin = time.perf_counter()
    torch.matmul(*factors, out=result)
    if result.is_cuda:
        torch.cuda.synchronize(result.device)
    return time.perf_counter() - begin


def main(kind: str) -> None:
    """Examine one device and print what was found; exits 1 where it is wrong or fails."""
    try:
        report = check_products(torch.device(kind, 0) if kind == "cuda" else torch.device(kind))
    except Exception as error:  # CUDA's messages end with lines that say nothing
        report = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    print(json.dumps(report), flush=True)
    sys.exit(0 if "right" in report else 1)


if __name__ == "__main__":
    main(sys.argv[1])
