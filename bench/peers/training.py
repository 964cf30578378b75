"""What the peers' loops have in common: first weights, learning rate, samples and their order, and how they are judged."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from peers.model import Model
from peers.plan import PROCESSES, Plan
from slipway.options.gpt import GptOptions
from slipway.train.loop.arithmetic import Precision, read_precision
from slipway.train.loop.fit import evaluate_model
from slipway.train.loop.loader import Sampler
from slipway.train.models.gpt import Gpt, GptConfig
from slipway.train.text.corpus import open_corpus
from slipway.train.text.language import cut_samples
from slipway.train.worker.context import outside_job

TOKEN_BYTES = 2  # uint16
FLOOR = 0.1  # of the highest learning rate, at the end


def begin(plan: Plan) -> Model:
    """The peers' model with the weights that `slipway gpt` begins with."""
    model = Model(plan.size)
    model.load_state_dict(ours(plan).state_dict())
    return model


def ours(plan: Plan) -> Gpt:
    """Slipway's model, as its workload makes it."""
    size = plan.size
    torch.manual_seed(plan.seed)
    return Gpt(GptConfig(size.layers, size.heads, size.embed, size.context, size.vocab_size))


def arithmetic(plan: Plan) -> Precision:
    """What the plan's precision means here. nanoGPT's loop knows fp32 alone on a CPU."""
    return read_precision(plan.precision, torch.device("cpu"))


def learning_rate(plan: Plan, step: int) -> float:
    """A linear rise, then half a cosine down to a tenth."""
    if step < plan.warmup:
        return plan.lr * (step + 1) / plan.warmup
    share = (step - plan.warmup) / (plan.steps - plan.warmup)
    return plan.lr * (FLOOR + (1 - FLOOR) / 2 * (1 + math.cos(math.pi * share)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this learning rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def adamw(plan: Plan, model: nn.Module, fused: bool) -> torch.optim.AdamW:
    """AdamW with weight decay for matrices alone; `fused` None leaves the choice to torch."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.lr, betas=(0.9, 0.95), fused=fused or None)


def visited(plan: Plan) -> torch.Tensor:
    """The samples that Slipway visits, by their numbers, in its order: int64, (steps · parts, processes, batch)."""
    size = plan.size
    samples = (plan.text.stat().st_size // TOKEN_BYTES - 1) // size.context
    numbers = Sampler(samples, plan.seed).indices(0, plan.steps * size.parts * PROCESSES * size.batch)
    return torch.from_numpy(numbers).view(-1, PROCESSES, size.batch)


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The training text cut into samples, as one writes it for a DataLoader."""

    def __init__(self, plan: Plan) -> None:
        """Hold the text in memory."""
        self._length = plan.size.context
        self._tokens = torch.from_numpy(np.fromfile(plan.text, np.uint16).astype(np.int64))

    def __len__(self) -> int:
        """The number of samples."""
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A sample, and the tokens that follow each of its own."""
        start = index * self._length
        return self._tokens[start : start + self._length], self._tokens[start + 1 : start + self._length + 1]


def judged(plan: Plan, model: nn.Module) -> float:
    """The loss on the samples that `slipway gpt` judges by, in fp32."""
    with outside_job() as context:
        length = plan.size.context
        samples = cut_samples(open_corpus("stdlib", None, context, length), length, GptOptions.eval_samples)
        results = evaluate_model(samples.validation, model, Precision("fp32", "cpu"), context.device)
    assert results
    return results["val_loss"]
