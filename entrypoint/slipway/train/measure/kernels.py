"""What is compiled while it runs: a kernel of Triton's, and a model by torch.compile, held against what torch computes.

python -m slipway.train.measure.kernels triton|compile     # on the first GPU, else the CPU; prints one line of JSON
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.arithmetic import decide_compile
from slipway.train.models.gpt import Gpt, GptConfig

NUMBERS = 100_003  # that the kernel adds; a prime, so that its last block is not full
SMALL = GptConfig(layers=1, heads=2, embed=64, context=64, vocab_size=256)
BATCH = 4

# How far gradients in fp32 lie apart at most that are computed in other orders, as a share (`distance`). A sum of n terms, in
# any order, is off by at most n × eps / 2 of what the terms' absolute values sum up to (Higham, Accuracy and Stability of
# Numerical Algorithms, 2nd edition, section 4.2). Here n is at most 2048 (16 × 128 tokens, for the gradient of a weight), and
# some 32 such sums follow one another, through two layers and back. Roundings have both signs, of which the bound knows nothing:
# with that as little as √n of it remains, and there is room for sums that cancel. A doubled gradient lies 1 apart.
REORDERED = 32 * 2048 * torch.finfo(torch.float32).eps / 2  # 0.004


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two tensors lie apart, as a share of the other's length."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def check_triton(device: torch.device) -> dict[str, str]:
    """`right`, or `wrong` with how many sums of a kernel, compiled here and now, differ from torch's."""
    from slipway.train.measure.triton_sum import add  # Triton has no CPU

    one, other = (torch.randn(NUMBERS, device=device) for _ in range(2))
    if wrong := int((add(one, other) != one + other).sum()):
        return {"wrong": f"{wrong:,} of {NUMBERS:,} sums of a Triton kernel"}
    return {"right": f"{NUMBERS:,} sums of a kernel that was compiled here"}


def check_compiled(device: torch.device) -> dict[str, str]:
    """`right`, or `wrong` with the first gradient of a compiled model that lies further from the other's than sums explain."""
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    model = Gpt(SMALL).to(device)
    tokens = torch.randint(SMALL.vocab_size, (BATCH, SMALL.context), device=device)
    plain, compiled = (gradients(model, forward, tokens) for forward in (model, torch.compile(model)))
    for name, gradient in plain.items():
        if (apart := distance(compiled[name], gradient)) >= REORDERED:
            return {"wrong": f"the gradient of {name} lies {apart:.2g} from the one that is not compiled"}
    return {"right": f"{len(plain)} gradients of a compiled model as those of the same model"}


def gradients(
    model: torch.nn.Module, forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tokens: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The gradients of a model's parameters by name, through `forward`: the model itself, or what was compiled of it."""
    model.zero_grad()
    forward(tokens, tokens).backward()  # type: ignore[no-untyped-call]
    return {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}


CHECKS: Mapping[str, Callable[[torch.device], dict[str, str]]] = MappingProxyType(
    {"triton": check_triton, "compile": check_compiled}
)


def main(what: str) -> None:
    """Check one of them and print what was found; exits 1 where it is wrong or fails."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        decide_compile(True, device.type, os.environ)
        report = CHECKS[what](device)
    except ConfigurationError as lacking:
        # What follows is advice for somebody who wants to compile.
        report = {"skipped": str(lacking).partition(". ")[0]}
    except Exception as error:  # CUDA's messages end with lines that say nothing
        report = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    print(json.dumps(report), flush=True)
    sys.exit(1 if report.keys() & {"wrong", "failed"} else 0)


if __name__ == "__main__":
    main(sys.argv[1])
