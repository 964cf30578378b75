"""Hugging Face's Trainer, stopped at the same step on all ranks and resumed from its newest complete checkpoint: one line.

slipway run --max-restarts 3 --nproc-per-node 2 examples/hf_trainer.py --max_steps 200 --save_steps 20   # pip install accelerate
"""

import torch
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainingArguments

import slipway


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Points, and on which side of a plane they are."""

    def __init__(self) -> None:
        """The same on all ranks."""
        self.inputs = torch.randn(4096, 20, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        """How many."""
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One of them."""
        return {"inputs": self.inputs[index], "labels": (self.inputs[index].sum() > 0).float()}


class Model(nn.Module):
    """A small classifier that returns its loss, as the Trainer needs it."""

    def __init__(self) -> None:
        """With weights from the seed."""
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        logits = self.layers(inputs).squeeze(-1)
        return {"loss": nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}


if __name__ == "__main__":
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(args.seed)
    trainer = Trainer(Model(), args, train_dataset=Samples(), callbacks=[slipway.hf.Callback()])
    trainer.train()
    if args.process_index == 0:
        print(f"finished at step {trainer.state.global_step}", flush=True)
