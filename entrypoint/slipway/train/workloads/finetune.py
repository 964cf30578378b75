"""A pretrained GPT-2 checkpoint, trained on; by default a tiny one made on the fly, on the Python standard library.

slipway finetune --model REPO --dataset file:notes.txt
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from slipway.options import parse
from slipway.options.common import DEFAULT
from slipway.options.finetune import TINY_LR, FinetuneOptions
from slipway.protocol.files import METRICS_FILE
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import counted
from slipway.train.loop.fit import TrainingResult
from slipway.train.loop.metrics import read_evaluation
from slipway.train.models.flops import flops_per_token
from slipway.train.models.gpt import Gpt, GptConfig, adamw
from slipway.train.task import Task
from slipway.train.text.checkpoints import (
    TINY,
    find_checkpoint,
    load_checkpoint,
    make_tiny,
    read_checkpoint_config,
    read_tokenizer,
    require_tokens,
)
from slipway.train.text.corpus import open_corpus
from slipway.train.text.language import LARGEST, cut_samples, describe_model, keep_tokenizer, loss, sample_writer
from slipway.train.text.tokenizer import Tokenizer, open_tokenizer
from slipway.train.worker.context import Context, open_context
from slipway.train.worker.prepared import cache_folder, make_together
from slipway.train.workloads.gpt import train_text


def open_checkpoint(options: FinetuneOptions, context: Context) -> Path:
    """The folder of the checkpoint to begin with. By every rank. Raises ConfigurationError, and what fetching raises."""
    if options.model is not None:
        return find_checkpoint(options.model, context)
    final = cache_folder(os.environ) / "checkpoints" / f"tiny-{TINY.layers}-{TINY.embed}-seed-{options.seed}"
    return make_together(context, final, lambda folder, tick: make_tiny(folder, options.seed))


def choose_length(options: FinetuneOptions, config: GptConfig) -> int:
    """Tokens in a sample. Raises ConfigurationError for more than the model sees."""
    if options.context is not None and options.context > config.context:
        raise ConfigurationError(
            f"--context {options.context} is more than the {config.context} tokens the model sees."
        )
    return options.context or config.context


def choose_tokenizer(options: FinetuneOptions, folder: Path, config: GptConfig, context: Context) -> Tokenizer:
    """The tokenizer that was typed, else the checkpoint's. Raises ConfigurationError where the model has not its tokens."""
    if options.tokenizer is None:
        return read_tokenizer(folder, config)
    tokenizer = open_tokenizer(options.tokenizer, context)
    require_tokens(tokenizer, config, f"--tokenizer {options.tokenizer}")
    return tokenizer


def freeze(model: Gpt, train_blocks: int | None) -> None:
    """Let only the last blocks learn, and the normalisation behind them. Raises ConfigurationError for more than there are.

    The output layer is the token embedding, and stays as it is.
    """
    if train_blocks is None:
        return
    blocks = len(model.h)
    if train_blocks > blocks:
        raise ConfigurationError(f"--train-blocks {train_blocks} is more than the {blocks} blocks of the model.")
    model.requires_grad_(False)
    for part in (*model.h[blocks - train_blocks :], model.ln_f):
        part.requires_grad_(True)


def add_perplexity(results: Callable[[list[float]], dict[str, float]], means: list[float]) -> dict[str, float]:
    """The results of a validation, and e to the power of its mean loss: the perplexity per token."""
    judged = results(means)
    return {**judged, "perplexity": math.exp(min(judged["val_loss"], LARGEST))}


def make_task(options: FinetuneOptions, context: Context) -> Task:
    """The task on the context's device; by every rank. Raises ConfigurationError, and what fetching raises."""
    folder = open_checkpoint(options, context)
    config = read_checkpoint_config(folder, options.dropout)
    length = choose_length(options, config)
    tokenizer = choose_tokenizer(options, folder, config, context)
    corpus = open_corpus(options.dataset, tokenizer, context, length, options.column, options.allow_unknown)
    samples = cut_samples(corpus, length, options.eval_samples)
    keep_tokenizer(corpus.tokenizer, context)
    model = Gpt(config)
    load_checkpoint(model, folder)
    model.to(context.device)
    freeze(model, options.train_blocks)
    return Task(
        name="finetune",
        model=model,
        description={**describe_model(config, corpus.tokenizer), "train_blocks": options.train_blocks},
        samples=samples.count,
        batch=samples.batch,
        loss=loss,
        optimizer=adamw(model, options.lr, options.weight_decay),
        validation=replace(samples.validation, results=partial(add_perplexity, samples.validation.results)),
        data=corpus.identity,
        unit="tokens",
        units_per_sample=length,
        # The formula counts samples as long as the model sees, and every parameter.
        flops_per_unit=flops_per_token(model) if length == config.context and not options.train_blocks else 0.0,
        on_host=samples.on_host,
        sample=sample_writer(model, corpus.tokenizer, options),
        judged_before=True,
    )


def choose_rate(options: FinetuneOptions) -> FinetuneOptions:
    """The options, with a rate for random weights where none was typed and the tiny checkpoint is trained."""
    if options.model is not None or "lr" in options.given:
        return options
    return replace(options, lr=TINY_LR, sources={**options.sources, "lr": f"{DEFAULT} without --model"})


def train(context: Context, args: list[str]) -> None:
    """Train with the options in `args`; print the perplexity before and after."""
    options = choose_rate(parse(FinetuneOptions, args))
    metrics = context.place.run_dir / METRICS_FILE
    train_text(make_task(options, context), options, context, partial(perplexity_line, metrics))


def perplexity_line(metrics: Path, result: TrainingResult) -> str:
    """The first evaluation, from the file of metrics, beside the last one."""
    before, after = read_evaluation(metrics, 0), result.evaluation["perplexity"]
    first = f"{before['perplexity']:.2f} before, " if "perplexity" in before else ""
    return f"perplexity on held-out text: {first}{after:.2f} after {counted(result.step, 'step')}"


def main() -> None:
    """Run as a worker."""
    with open_context(abandon=True) as context:
        train(context, sys.argv[1:])


if __name__ == "__main__":
    main()
