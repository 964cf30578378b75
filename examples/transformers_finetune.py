"""Fine-tune any causal language model of Hugging Face's transformers on a text of your own, with Slipway's loop.

slipway examples/transformers_finetune.py --model Qwen/Qwen3-0.6B --dataset novel.txt --steps 200
slipway run --resume auto examples/transformers_finetune.py --model Qwen/Qwen3-0.6B --dataset novel.txt --steps 400

Needs transformers, which Slipway itself does not: pip install transformers (in the image: images/extend). The `finetune`
workload does more, for GPT-2's family, and needs nothing else.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
import torch
from torch import nn
from torch.nn import functional

from slipway.train import Batch, Common, ConfigurationError, Context, Task, Validation, fit, open_context, option, parse

try:
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError:
    raise SystemExit(
        "transformers is not installed. Type: pip install transformers (in the image: images/extend)"
    ) from None


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Common):
    """Fine-tune a causal language model of transformers."""

    workload: ClassVar[str] = "transformers_finetune.py"
    presets: ClassVar = {"": {"epochs": 1, "batch_size": 8, "lr": 2e-5, "schedule": "linear", "clip": 1.0}}
    model: str = option("gpt2", click.STRING, "A model's name on the Hub, or a folder with one.")
    dataset: str | None = option(None, click.Path(exists=True, dir_okay=False), "A file of text; its end is held out.")
    length: int = option(256, click.IntRange(min=2), "Tokens in a sample.")


def load(name: str, context: Context) -> tuple[Any, Any]:
    """Model and tokenizer. One process of each node downloads them, the others find them in the cache."""
    if not context.is_local_leader:
        context.wait_for_all()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        # In fp32, as the optimizer wants it; the loop computes in bf16 where that is fast.
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--model {name} cannot be loaded: {str(error).splitlines()[0]}") from None
    if context.is_local_leader:
        context.wait_for_all()
    return model.to(context.device).train(), tokenizer


def read_samples(file: str, tokenizer: Any, length: int) -> torch.Tensor:
    """The text as samples, (count, length); what is left at its end is dropped."""
    tokens = torch.tensor(tokenizer(Path(file).read_text())["input_ids"])
    if len(tokens) < 10 * length:
        raise ConfigurationError(
            f"{file} has {len(tokens)} tokens, and ten samples need {10 * length}. Type a smaller --length."
        )
    return tokens[: len(tokens) // length * length].view(-1, length)


def token_losses(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, in nats."""
    logits = model(input_ids=tokens).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")


def sums(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Loss and number of tokens of a batch, which may be empty."""
    losses = token_losses(model, batch[0]) if len(batch[0]) else batch[0].new_zeros(0)
    return torch.stack([losses.double().sum(), losses.new_tensor(len(losses)).double()])


def make_task(options: FinetuneOptions, model: nn.Module, samples: torch.Tensor) -> Task:
    """The last tenth of the text judges the model."""
    held_out = max(1, len(samples) // 10)
    count = len(samples) - held_out
    return Task(
        name="transformers", model=model, description={"model": options.model},
        samples=count, batch=lambda indices, keys: (samples[indices],),
        loss=lambda parallel, batch: token_losses(parallel, batch[0]).mean(),
        optimizer=torch.optim.AdamW(model.parameters(), options.lr, weight_decay=options.weight_decay, fused=True),
        validation=Validation(
            samples=held_out, batch_size=4, batch=lambda indices: (samples[count + indices],), sums=sums,
            results=lambda means: {"val_loss": means[0], "perplexity": math.exp(min(means[0], 100.0))},
        ),
        data=f"{options.dataset}, {samples.numel()} tokens", unit="tokens", units_per_sample=options.length,
    )  # fmt: skip


def train(context: Context) -> None:
    """Fine-tune, and write the model where `from_pretrained` can read it."""
    options = parse(FinetuneOptions, sys.argv[1:])
    if not options.dataset:
        raise ConfigurationError("No text to train on. Type --dataset FILE.")
    model, tokenizer = load(options.model, context)
    samples = read_samples(options.dataset, tokenizer, options.length).to(context.device)
    result = fit(make_task(options, model, samples), options, context)
    if result.outcome == "finished" and context.place.rank == 0:
        folder = context.place.run_dir / "model"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        context.say(f"from_pretrained reads the model in {folder}")


if __name__ == "__main__":
    with open_context() as context:
        train(context)
