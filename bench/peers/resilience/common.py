"""What the scripts of all sides share: the model and its data, a file of the steps that were done, and a fault to order.

Each script runs in the folder of its job. `steps-RANK` gets a line for each step: the time, the process id, the step, and the
bits of the loss. At the end `final-RANK` gets the checksum of the weights. The environment variable `FAULT=RANK:STEP` lets that
rank raise a KeyError.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch
from torch import nn

from peers.model import Model
from peers.plan import Size

SAVE_EVERY = 20  # steps between two checkpoints of a script that writes its own
STEPS = int(os.environ.get("STEPS", "1000000"))
CHECKPOINT = Path("checkpoint.pt")
SIZE = Size("tiny", layers=4, embed=128, context=128, batch=8, parts=1)


def make_model() -> Model:
    """A GPT with the shapes of `slipway gpt --preset tiny`, and the same weights on all ranks."""
    torch.manual_seed(0)
    return Model(SIZE)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of a rank at a step, each (batch, context). They depend on nothing else."""
    draw = torch.Generator().manual_seed(2 * step + rank)
    tokens = torch.randint(SIZE.vocab_size, (SIZE.batch, SIZE.context + 1), generator=draw)
    return tokens[:, :-1], tokens[:, 1:].contiguous()


def fail_if_asked(rank: int, step: int) -> None:
    """Raise the KeyError that is ordered for this rank and step."""
    if os.environ.get("FAULT") == f"{rank}:{step}":
        record = {"text": "…"}
        record["texts"]


def note(rank: int, step: int, loss: torch.Tensor) -> None:
    """Write down that a step is done."""
    with Path(f"steps-{rank}").open("a") as file:
        print(time.time(), os.getpid(), step, loss.item().hex(), file=file)


def finish(rank: int, model: nn.Module) -> None:
    """Write down the checksum of the weights."""
    bits = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        bits.update(name.encode() + tensor.contiguous().numpy().tobytes())
    Path(f"final-{rank}").write_text(bits.hexdigest())
