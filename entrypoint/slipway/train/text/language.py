"""Language models: samples, loss and evaluation of any model on a corpus, its tokenizer, and text from a trained GPT.

A model is called as `model(inputs)` for logits (batch, tokens, vocab_size), as `model(inputs, targets)` for the mean loss.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slipway.options.gpt import GptOptions, TextOptions
from slipway.protocol.files import SNAPSHOTS
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.snapshots import list_snapshots
from slipway.train.hub.fetch import hash_file
from slipway.train.models.gpt import Gpt, GptConfig, StagedGpt
from slipway.train.snapshots.snapshot import MODEL, load_newest
from slipway.train.task import Batch, Validation, evaluating
from slipway.train.text.corpus import Corpus, Tokens
from slipway.train.text.tokenizer import BYTES, FILE, Tokenizer, open_tokenizer
from slipway.train.worker.context import Context


@dataclass(frozen=True)
class Samples:
    """A corpus cut into samples, as a `Task` needs it."""

    count: int  # in an epoch
    batch: Callable[[torch.Tensor, torch.Tensor], Batch]
    validation: Validation
    on_host: bool  # whether indices are wanted on the CPU


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross entropy in nats per token."""
    result: torch.Tensor = model(*batch)
    return result


def sums(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss in nats and the number of tokens of a batch, float64, shape (2,)."""
    return add_up(model(batch[0]), batch[1])


def add_up(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the same for logits (batch, tokens, vocab_size) and targets (batch, tokens)."""
    targets = targets.flatten()
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="none").double()
    return torch.stack([losses.sum(), losses.new_tensor(len(targets))])


def cut_windows(tokens: Tokens, indices: torch.Tensor, length: int, stride: int) -> Batch:
    """Return samples `indices` of a text: inputs (n, length) and the tokens that follow each, same shape, both int64."""
    windows = tokens.windows(indices * stride, length + 1)
    return windows[:, :-1], windows[:, 1:]


JUDGED_TOKENS = 8192  # per evaluation batch


def cut_samples(corpus: Corpus, length: int, eval_samples: int) -> Samples:
    """Cut samples of `length` tokens, side by side; up to `eval_samples` for validation, spread over the whole part.

    Raises ConfigurationError if a part of the corpus is too short.
    """
    train, validation = corpus.train, corpus.validation
    if min(len(train), len(validation)) <= length:
        raise ConfigurationError(
            f"--context {length} is longer than the text, which has {len(train):,} tokens for training and "
            f"{len(validation):,} for validation, where {length + 1:,} of each are needed; type a smaller one, or take more text."
        )
    available = (len(validation) - 1) // length
    judged = min(available, eval_samples)
    return Samples(
        count=(len(train) - 1) // length,
        batch=lambda indices, keys: cut_windows(train, indices, length, length),
        validation=Validation(
            samples=judged,
            batch_size=max(1, JUDGED_TOKENS // length),
            batch=lambda indices: cut_windows(validation, indices, length, length * (available // judged)),
            sums=sums,
            results=lambda means: loss_results(means[0], corpus),
        ),
        on_host=train.on_host,
    )


LARGEST = 700.0  # nats; exp of more overflows a float


def loss_results(nats: float, corpus: Corpus) -> dict[str, float]:
    """Return the results of a mean loss in nats per token, also as bits per byte of text, which needs no tokenizer to compare."""
    judged = {"val_loss": nats, "bits_per_byte": nats / math.log(2) / corpus.bytes_per_token}
    if corpus.tokenizer.identity == BYTES:
        return judged
    return judged | {"perplexity": math.exp(min(nats, LARGEST))}


def choose_vocab_size(options: GptOptions, tokenizer: Tokenizer) -> int:
    """Return the typed vocabulary size, else the tokenizer's. Raises ConfigurationError if the tokenizer has more tokens.

    For bytes the preset's size is used if it is larger, so that `--preset gpt2` has GPT-2's size without a tokenizer.
    """
    if "vocab_size" not in options.given:
        return max(options.vocab_size, tokenizer.size) if tokenizer.identity == BYTES else tokenizer.size
    if options.vocab_size < tokenizer.size:
        raise ConfigurationError(
            f"--vocab-size {options.vocab_size} is less than the {tokenizer.size} tokens of the tokenizer "
            f"{tokenizer.name}. Type {tokenizer.size} or more, or leave it out."
        )
    return options.vocab_size


def describe_model(config: GptConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `Task.description` that identifies a model. Without the dropout, which may change with each start."""
    sizes = {name: value for name, value in asdict(config).items() if name != "dropout"}
    return {**sizes, "tokenizer": tokenizer.identity}


def described_config(description: Mapping[str, Any], dropout: float = 0.0) -> GptConfig:
    """Return the dimensions of the model that `describe_model` described, ignoring other keys."""
    sizes = {field.name: description[field.name] for field in fields(GptConfig) if field.name != "dropout"}
    return GptConfig(**sizes, dropout=dropout)


def keep_tokenizer(tokenizer: Tokenizer, context: Context) -> None:
    """Store the tokenizer beside the snapshots, where `slipway sample` finds it.

    Raises ConfigurationError if another tokenizer's snapshots are there, OSError if it cannot be written.
    """
    run = context.place.run_dir
    if not context.place.is_writer:
        return
    kept = tokenizer.identity
    if (run / FILE).exists():
        kept = hash_file(run / FILE)
    elif list_snapshots(run / SNAPSHOTS):
        kept = BYTES  # which need no file
    if kept != tokenizer.identity:
        raise ConfigurationError(
            f"{run} holds the work of another tokenizer than {tokenizer.name}. Type its --tokenizer, or another --run-dir."
        )
    tokenizer.save(run)


def kept_tokenizer(run: Path, description: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of the model that `describe_model` described, from where `keep_tokenizer` stored it.

    Raises ConfigurationError if it is missing or another one.
    """
    identity = description.get("tokenizer", BYTES)
    if identity == BYTES:
        return open_tokenizer(BYTES)
    if not (run / FILE).is_file():
        raise ConfigurationError(f"{run / FILE} is missing; take it from the first node, or copy it there yourself.")
    tokenizer = open_tokenizer(str(run))
    if tokenizer.identity != identity:
        raise ConfigurationError(f"{run / FILE} is not this run's tokenizer: its sha256 is not {identity}.")
    return tokenizer


def continue_prompt(
    model: Gpt | StagedGpt, tokenizer: Tokenizer, prompt: str, tokens: int, temperature: float, seed: int
) -> str:
    """Return `prompt` and up to `tokens` more tokens as text, to the end of the document.

    What is not text becomes U+FFFD, and so do control characters. Temperature 0 takes the likeliest token each time.
    Raises ConfigurationError for an empty prompt.
    """
    given = tokenizer.encode(prompt)
    if not given:
        raise ConfigurationError('The prompt is empty; type some text, for example --prompt "def ".')
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    with evaluating(model):
        written = model.continue_text(torch.tensor([given], device=device), tokens, temperature, generator)
    return read_until_end(tokenizer, written[0].tolist(), len(given))


# Workloads whose model is a Gpt that reads a corpus.
LANGUAGE = ("gpt", "finetune", "pipeline")


def sample(run: Path, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """Return `prompt` continued by the newest valid snapshot of the run in directory `run`, with its own tokenizer.

    Raises ConfigurationError if `run` has no snapshot, or none that writes text.
    """
    found = load_newest(run / SNAPSHOTS, partial(print, file=sys.stderr), [MODEL])
    if found is None:
        raise ConfigurationError(f"{run} holds no snapshot that can be loaded; train one with: slipway gpt")
    path, snapshot = found
    workload = snapshot.state.get("workload")
    if workload not in LANGUAGE:
        by = f"the workload {workload}" if workload else "a script with a loop of its own"
        raise ConfigurationError(f"{path} was saved by {by}; only {', '.join(LANGUAGE)} write text.")
    model = Gpt(described_config(snapshot.state["model"]))
    model.load_state_dict(snapshot.tensors[MODEL])
    return continue_prompt(model, kept_tokenizer(run, snapshot.state["model"]), prompt, tokens, temperature, seed)


def sample_writer(model: Gpt | StagedGpt, tokenizer: Tokenizer, options: TextOptions) -> Callable[[], str] | None:
    """Return the function that writes the text that a training's options ask for; None if they ask for none."""
    if not options.sample_tokens:
        return None
    prompt, tokens = options.sample_prompt, options.sample_tokens
    return partial(continue_prompt, model, tokenizer, prompt, tokens, options.temperature, options.seed)


# Control characters except tab and line ends: an untrained model writes them, and someone else's model may write them on purpose.
STEERING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def read_until_end(tokenizer: Tokenizer, written: list[int], given: int) -> str:
    """Return the text of tokens up to the first end of a document after the `given` ones."""
    ends = (place for place in range(given, len(written)) if written[place] == tokenizer.end)
    return STEERING.sub("\ufffd", tokenizer.decode(written[: next(ends, len(written))]))
