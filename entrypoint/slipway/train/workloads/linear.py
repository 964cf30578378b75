"""`linear`: the smallest data-parallel job, one linear layer on synthetic binary labels.

slipway linear --epochs 3 --compare
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

from slipway.options import parse
from slipway.options.linear import LinearOptions
from slipway.protocol.outcomes import Word
from slipway.train.loop.fit import fit
from slipway.train.task import Batch, Task, Validation
from slipway.train.worker.context import Context, open_context
from slipway.train.workloads.comparison import begins_anew, compare_without_ddp, recall


class Linear(nn.Module):
    """One linear layer that separates two classes: inputs (batch, input_size) become scores (batch,)."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(input_size, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores (logits) of the positive class."""
        scores: torch.Tensor = self.layer(inputs)
        return scores.squeeze(1)


def make_data(options: LinearOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (n, input_size) and labels 0.0 or 1.0 (n,), the same on all ranks; the last fifth is for validation.

    A hidden plane through the origin separates the classes.
    """
    generator = torch.Generator().manual_seed(options.seed)
    plane = torch.randn(options.input_size, generator=generator)
    count = options.dataset_size + validation_size(options)
    inputs = torch.randn(count, options.input_size, generator=generator)
    return inputs, (inputs @ plane > 0).float()


def validation_size(options: LinearOptions) -> int:
    """A quarter as many samples as there are for training."""
    return max(1, options.dataset_size // 4)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean binary cross entropy in nats."""
    inputs, labels = batch
    return functional.binary_cross_entropy_with_logits(model(inputs).float(), labels)


def sums(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Loss, right answers and samples of a batch."""
    inputs, labels = batch
    scores = model(inputs).float()
    lost = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none").double().sum()
    right = ((scores > 0) == (labels > 0.5)).double().sum()
    return torch.stack([lost, right, torch.tensor(len(labels), dtype=torch.float64, device=lost.device)])


def make_task(options: LinearOptions, context: Context) -> Task:
    """Return the task on the context's device, where the whole data set is two tensors."""
    torch.manual_seed(options.seed)
    model = Linear(options.input_size).to(context.device)
    inputs, labels = (part.to(context.device) for part in make_data(options))
    start = options.dataset_size
    return Task(
        name="linear",
        model=model,
        description={"input_size": options.input_size},
        samples=options.dataset_size,
        batch=lambda indices, keys: (inputs[indices], labels[indices]),
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), options.lr, weight_decay=options.weight_decay, fused=True),
        validation=Validation(
            samples=validation_size(options),
            batch_size=4096,
            batch=lambda indices: (inputs[start + indices], labels[start + indices]),
            sums=sums,
            results=lambda means: {"val_loss": means[0], "accuracy": means[1]},
        ),
        data=f"{options.dataset_size} samples from seed {options.seed}",
    )


def train(context: Context, args: list[str]) -> None:
    """Train with the options in `args` and print the accuracy; if asked for, compare with training without DDP."""
    options = parse(LinearOptions, args)
    comparable = options.compare and begins_anew(context)
    task = make_task(options, context)
    result = fit(task, options, context)
    if result.evaluation:
        context.say(f"accuracy {result.evaluation['accuracy']:.2%} on samples that were not trained on")
    if options.compare and result.outcome == Word.FINISHED:
        if comparable:
            compare_without_ddp(task, make_task, options, context)
        else:
            recall(context)


def main() -> None:
    """Run as a worker."""
    with open_context(abandon=True) as context:
        train(context, sys.argv[1:])


if __name__ == "__main__":
    main()
