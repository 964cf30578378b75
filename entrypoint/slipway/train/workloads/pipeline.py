"""The transformer of `gpt` split into stages over several processes, which is repeated over all there are.

slipway pipeline --stages 2 --nproc-per-node 4
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import nn

from slipway.options import parse
from slipway.options.pipeline import PipelineOptions
from slipway.train.models.gpt import TIED, Gpt, GptStage, StagedGpt
from slipway.train.parallel.pipeline import join_pipelines
from slipway.train.task import Batch, Task
from slipway.train.text.language import add_up
from slipway.train.worker.context import Context, open_context
from slipway.train.workloads import gpt


def sums(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The sums of `Validation`: on the last stage as in `gpt`; zeros on the other stages, which have no logits."""
    logits = model(batch[0])
    if logits is None:
        return torch.zeros(2, dtype=torch.float64, device=batch[0].device)
    return add_up(logits, batch[1])


def make_task(options: PipelineOptions, context: Context) -> Task:
    """This process's part of the task; by every rank. Raises ConfigurationError."""
    if options.stages == 1:
        return gpt.make_task(options, context)
    split = join_pipelines(context, options.stages, options.pipeline_schedule, options.embed, [TIED])

    def divide(whole: Gpt) -> tuple[GptStage, StagedGpt]:
        stage = GptStage(whole, split.stage, split.stages)
        return stage, StagedGpt(stage, split)

    task = gpt.make_task(options, context, divide)
    return replace(task, split=split, validation=replace(task.validation, sums=sums))


def train(context: Context, args: list[str]) -> None:
    """Train with the options in `args`; print the losses, a sample of text, and where the results are."""
    options = parse(PipelineOptions, args)
    gpt.train_text(make_task(options, context), options, context)


def main() -> None:
    """Run as a worker."""
    with open_context(abandon=True) as context:
        train(context, sys.argv[1:])


if __name__ == "__main__":
    main()
