"""A GPT-2 style transformer on text; by default a tiny one on the Python standard library's own source.

slipway gpt --preset tiny
slipway gpt --preset gpt2 --dataset hub:OWNER/NAME --tokenizer gpt2
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from slipway.options import parse
from slipway.options.gpt import GptOptions, TextOptions
from slipway.train.export import export_result
from slipway.train.loop.fit import TrainingResult, fit
from slipway.train.models.flops import flops_per_token
from slipway.train.models.gpt import Gpt, GptConfig, StagedGpt, adamw
from slipway.train.task import Task
from slipway.train.text.corpus import open_corpus
from slipway.train.text.language import (
    choose_vocab_size,
    cut_samples,
    describe_model,
    keep_tokenizer,
    loss,
    sample_writer,
)
from slipway.train.text.tokenizer import Tokenizer, open_tokenizer
from slipway.train.worker.context import Context, open_context

SAMPLE_LINES = 8  # of a sample that are shown at the end; TensorBoard has all


def model_config(options: GptOptions, tokenizer: Tokenizer) -> GptConfig:
    """The model's dimensions. Raises ConfigurationError where the vocabulary is smaller than the tokenizer's."""
    vocab_size = choose_vocab_size(options, tokenizer)
    return GptConfig(options.layers, options.heads, options.embed, options.context, vocab_size, options.dropout)


def undivided(model: Gpt) -> tuple[Gpt, Gpt | StagedGpt]:
    """What of a model this process trains, and the whole of it as one that writes text."""
    return model, model


def make_task(
    options: GptOptions, context: Context, divide: Callable[[Gpt], tuple[Gpt, Gpt | StagedGpt]] = undivided
) -> Task:
    """The task on the context's device; by every rank. Raises ConfigurationError."""
    tokenizer = open_tokenizer(options.tokenizer, context) if options.tokenizer else None
    corpus = open_corpus(options.dataset, tokenizer, context, options.context, options.column, options.allow_unknown)
    config = model_config(options, corpus.tokenizer)
    samples = cut_samples(corpus, options.context, options.eval_samples)
    keep_tokenizer(corpus.tokenizer, context)
    torch.manual_seed(options.seed)
    whole = Gpt(config)
    whole.checkpoint_activations = options.checkpoint_activations
    model, writer = divide(whole)
    model.to(context.device)
    return Task(
        name=options.workload,
        model=model,
        description=describe_model(config, corpus.tokenizer),
        samples=samples.count,
        batch=samples.batch,
        loss=loss,
        optimizer=adamw(model, options.lr, options.weight_decay),
        validation=samples.validation,
        data=corpus.identity,
        unit="tokens",
        units_per_sample=options.context,
        flops_per_unit=flops_per_token(whole),
        on_host=samples.on_host,
        sample=sample_writer(writer, corpus.tokenizer, options),
    )


def train(context: Context, args: list[str]) -> None:
    """Train with the options in `args`; print the losses, a sample of text, and where the results are."""
    options = parse(GptOptions, args)
    train_text(make_task(options, context), options, context)


def loss_line(result: TrainingResult) -> str:
    """How well the model predicts."""
    unit = "byte" if "perplexity" not in result.evaluation else "token"
    loss, bits = result.evaluation["val_loss"], result.evaluation["bits_per_byte"]
    return f"validation loss {loss:.4f} nats per {unit} ({bits:.4f} bits per byte)"


def shown_sample(text: str) -> list[str]:
    """The first lines of a sample that show something: much of what code begins with is blank."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return lines[:SAMPLE_LINES] or ["(blank lines alone)"]


def train_text(
    task: Task, options: TextOptions, context: Context, tell: Callable[[TrainingResult], str] = loss_line
) -> None:
    """Train, export where asked, show a sample, and `tell` in a line how well the model predicts."""
    result = fit(task, options, context)
    export_result(result, options, context)
    if not result.evaluation or context.place.rank != 0:
        return
    if result.sample:
        context.say("a sample of what it writes:")
        for line in shown_sample(result.sample):
            context.say(f"  {line}")
    context.say(tell(result))


def main() -> None:
    """Run as a worker."""
    with open_context(abandon=True) as context:
        train(context, sys.argv[1:])


if __name__ == "__main__":
    main()
