"""A trained model judged again, by one process, on the validation data of its run or on others.

slipway eval runs/gpt-20260101-120000
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm

from slipway.options import WORKLOADS, Options, parse
from slipway.options.finetune import FinetuneOptions
from slipway.options.gpt import TextOptions
from slipway.protocol.files import OPTIONS_FILE, SNAPSHOTS
from slipway.protocol.mistake import ConfigurationError
from slipway.train.export import read_export
from slipway.train.export.trained import ELSEWHERE, Trained, read_trained, without_folders
from slipway.train.loop.arithmetic import read_precision
from slipway.train.loop.fit import evaluate_model
from slipway.train.models.gpt import Gpt
from slipway.train.snapshots.snapshot import MODEL, Snapshot
from slipway.train.snapshots.state import load_model
from slipway.train.task import Validation
from slipway.train.text.corpus import open_corpus
from slipway.train.text.language import LANGUAGE, cut_samples, described_config, kept_tokenizer
from slipway.train.worker.context import Context
from slipway.train.workloads.finetune import add_perplexity


@dataclass(frozen=True)
class Judgement:
    """What a model is worth: named results on `dataset`, beside those that its training noted (empty without any)."""

    trained: Trained
    dataset: str
    same_data: bool  # as the training had
    samples: int
    results: Mapping[str, float]


def judge_trained(source: Path, context: Context, dataset: str | None = None, step: int | None = None) -> Judgement:
    """Judge the model of a run directory, or of an export, on its own validation data or on those of `dataset`.

    Raises ConfigurationError where it cannot be judged, click.UsageError for a data set that its workload does not know,
    SnapshotError for a damaged snapshot, HubError where data cannot be fetched.
    """
    is_run = any((source / name).exists() for name in (SNAPSHOTS, OPTIONS_FILE))
    if step is not None and not is_run:
        raise ConfigurationError(f"{source} is no run directory: it holds one step only. Leave out --step.")
    trained = read_trained(source, step) if is_run else read_export(source)
    if trained.workload not in WORKLOADS:
        raise ConfigurationError(
            f"{source} was trained by {trained.workload}; these can be evaluated: {', '.join(WORKLOADS)}."
        )
    options = read_options(trained, source, dataset)
    find = open_language_model if trained.workload in LANGUAGE else open_task
    validation, model, data = find(trained, source, options, context)
    wanted = str(trained.options.get("precision", "auto"))
    if wanted == "fp16" and context.device.type == "cpu":
        wanted = "auto"  # it was trained on a GPU
    turns = -(-validation.samples // validation.batch_size)
    with tqdm(total=turns, desc="evaluation", unit="batch", disable=None, leave=False) as bar:

        def turn() -> bool:
            bar.update()
            return True

        results = evaluate_model(validation, model, read_precision(wanted, context.device), context.device, turn=turn)
    named = str(getattr(options, "dataset", data))
    same = without_folders(data) == without_folders(trained.data)
    return Judgement(trained, named, same, validation.samples, results or {})


def read_options(trained: Trained, source: Path, dataset: str | None) -> Options:
    """The options of the training, with another data set if one is given."""
    kind = WORKLOADS[trained.workload]
    known = {field.name for field in dataclasses.fields(kind)} - {"sources"}
    values = {name: value for name, value in trained.options.items() if name in known}
    if dataset is not None:
        parse(kind, ["--dataset", dataset])  # a mistake in it is the command line's
        values["dataset"] = dataset
    elif ELSEWHERE in str(values.get("dataset", "")):
        raise ConfigurationError(
            f"{source} was trained on {values['dataset']}, in a folder that it does not name. Type --dataset with where "
            "it lies now."
        )
    return kind(**values, sources=trained.sources)


def open_language_model(
    trained: Trained, source: Path, options: Options, context: Context
) -> tuple[Validation, nn.Module, str]:
    """How a language model is judged, the model on its device, and the data's name; nothing that its training needed is read."""
    assert isinstance(options, TextOptions)
    model = Gpt(described_config(trained.model))
    length = getattr(options, "context", None) or model.config.context
    corpus = open_corpus(options.dataset, kept_tokenizer(source, trained.model), context, length, options.column)
    load_trained(model, trained, source, trained.model)
    validation = cut_samples(corpus, length, options.eval_samples).validation
    if trained.workload == FinetuneOptions.workload:
        validation = dataclasses.replace(validation, results=partial(add_perplexity, validation.results))
    return validation, model.to(context.device), corpus.identity


def open_task(trained: Trained, source: Path, options: Options, context: Context) -> tuple[Validation, nn.Module, str]:
    """The same for a workload whose task is made from its options alone."""
    made = import_module(f"slipway.train.workloads.{trained.workload}").make_task(options, context)
    load_trained(made.model, trained, source, made.description)
    return made.validation, made.model, made.data


def load_trained(model: nn.Module, trained: Trained, source: Path, description: Mapping[str, Any]) -> None:
    """Copy the trained weights into `model`. Raises ConfigurationError where they are another model's."""
    try:
        load_model(model, Snapshot(trained.step, {"model": trained.model}, {MODEL: trained.tensors}), description)
    except RuntimeError as error:
        raise ConfigurationError(f"{source} holds other weights than it says: {error}") from None
