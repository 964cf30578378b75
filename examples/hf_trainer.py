"""Hugging Face's Trainer, stopped at the same step on all ranks and resumed from its newest whole checkpoint.

slipway run --max-restarts 3 --nproc-per-node 2 examples/hf_trainer.py --max_steps 200 --save_steps 20   # pip install accelerate
"""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

import slipway

WHOLE = "whole"  # a file in each checkpoint that all ranks have written


class SlipwayCallback(TrainerCallback):  # type: ignore[misc]
    """Slipway's part of a training whose checkpoints are the Trainer's: stops, heartbeats and the outcome."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Join the job."""
        self.run = slipway.resume(snapshots=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Where a stop was requested, on all ranks after the same step: save."""
        control.should_save |= self.run.boundary(step=state.global_step, saved=False)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Mark the checkpoint as whole, and leave where a stop was requested."""
        if dist.is_initialized():
            dist.barrier()
        if state.is_world_process_zero:
            Path(args.output_dir, f"checkpoint-{state.global_step}", WHOLE).touch()
        self.run.boundary(step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Note that the training is finished."""
        self.run.finish()


def newest_checkpoint(folder: str) -> str | None:
    """Return the newest checkpoint that all ranks have written."""
    whole = [path.parent for path in Path(folder).glob(f"checkpoint-*/{WHOLE}")]
    return str(max(whole, key=lambda path: int(path.name.partition("-")[2]))) if whole else None


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
    args.output_dir = os.environ.get("SLIPWAY_RUN_DIR", args.output_dir or "trainer_output")
    torch.manual_seed(args.seed)
    trainer = Trainer(Model(), args, train_dataset=Samples(), callbacks=[SlipwayCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))
    if args.process_index == 0:
        print(f"finished at step {trainer.state.global_step}", flush=True)
