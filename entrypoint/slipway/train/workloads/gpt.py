"""A GPT-2 style transformer on text; by default a tiny one on the Python standard library's own source.

slipway gpt --preset tiny
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from slipway.train.context import Context, open_context
from slipway.train.loop import fit
from slipway.train.models.gpt import Gpt, GptConfig, adamw
from slipway.train.options import ConfigurationError, GptOptions, parse
from slipway.train.sample import continue_prompt
from slipway.train.task import Batch, Task, Validation
from slipway.train.text import read_stdlib


def read_config(options: GptOptions) -> GptConfig:
    """The model's dimensions."""
    return GptConfig(options.layers, options.heads, options.embed, options.context, options.vocab_size, options.dropout)


def cut(tokens: torch.Tensor, indices: torch.Tensor, length: int, stride: int) -> Batch:
    """Samples `indices` of a text: inputs (n, length) and the tokens that follow each, same shape, both int64."""
    places = (indices * stride).unsqueeze(1) + torch.arange(length + 1, device=indices.device)
    windows = tokens[places].long()
    return windows[:, :-1], windows[:, 1:]


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross entropy in nats per token."""
    result: torch.Tensor = model(*batch)
    return result


def sums(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Loss and number of tokens of a batch."""
    inputs, targets = batch[0], batch[1].flatten()
    losses = functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets, reduction="none").double()
    return torch.stack([losses.sum(), losses.new_tensor(len(targets))])


def make_task(options: GptOptions, device: torch.device) -> Task:
    """The task on `device`; the whole text lies there as one tensor of bytes."""
    text, length = read_stdlib(), options.context
    train, validation = (
        torch.from_numpy(np.frombuffer(part, np.uint8).copy()).to(device) for part in (text.train, text.validation)
    )
    if min(len(train), len(validation)) <= length:
        raise ConfigurationError(f"--context {length} is longer than the text; type a smaller one.")
    available = (len(validation) - 1) // length
    judged = min(available, options.eval_samples)
    torch.manual_seed(options.seed)
    config = read_config(options)
    model = Gpt(config).to(device)
    return Task(
        name="gpt",
        model=model,
        # Not the dropout: it may change from one start to the next.
        description={name: value for name, value in asdict(config).items() if name != "dropout"},
        samples=(len(train) - 1) // length,
        batch=lambda indices, keys: cut(train, indices, length, length),
        loss=loss,
        optimizer=adamw(model, options.lr, options.weight_decay),
        validation=Validation(
            samples=judged,
            batch_size=max(1, 8192 // length),
            batch=lambda indices: cut(validation, indices, length, length * (available // judged)),
            sums=sums,
            results=lambda means: {"val_loss": means[0], "bits_per_byte": means[0] / math.log(2)},
        ),
        data=f"stdlib {text.sha256}",
        unit="tokens",
        units_per_sample=length,
        sample=partial(
            continue_prompt, model, options.sample_prompt, options.sample_tokens, options.temperature, options.seed
        )
        if options.sample_tokens
        else None,
    )


def train(context: Context, args: list[str]) -> None:
    """Train with the options in `args`; print the losses, a sample of text, and where the run lies."""
    options = parse(GptOptions, args)
    result = fit(make_task(options, context.device), options, context)
    if not result.evaluation or context.place.rank != 0:
        return
    if result.sample:
        context.say(f"\na sample of what it writes:\n{result.sample}\n")
    bits = result.evaluation["bits_per_byte"]
    context.say(f"validation loss {result.evaluation['val_loss']:.4f} nats per byte ({bits:.4f} bits per byte)")


def main() -> None:
    """Run as a worker."""
    with open_context() as context:
        train(context, sys.argv[1:])


if __name__ == "__main__":
    main()
