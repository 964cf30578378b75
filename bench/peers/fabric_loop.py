"""A training with Lightning Fabric, as its guides have it, with the flags that make it fastest here."""

from __future__ import annotations

import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch.utils.data import DataLoader

from peers.plan import PROCESSES, read_plan
from peers.training import Windows, adamw, arithmetic, begin, judged, learning_rate, set_rate, visited
from peers.turns import Turns, take_turns


def main() -> None:
    """Train in turns, and tell the loss."""
    plan = read_plan(os.environ)
    fabric = Fabric(
        accelerator="cpu",
        devices=PROCESSES,
        strategy=DDPStrategy(gradient_as_bucket_view=True),
        precision="bf16-mixed" if arithmetic(plan).name == "bf16" else "32-true",
    )
    fabric.launch()
    plain = begin(plan)
    mine = visited(plan)[:, fabric.global_rank].flatten().tolist()
    loader = DataLoader(Windows(plan), plan.size.batch, sampler=mine)
    batches = iter(fabric.setup_dataloaders(loader, use_distributed_sampler=False))
    compiled = torch.compile(plain) if plan.compile else plain
    model, optimizer = fabric.setup(compiled, adamw(plan, plain, fused=True))
    turns = Turns(plan.block)
    for step in take_turns(plan, turns):
        set_rate(optimizer, learning_rate(plan, step))
        for part in range(plan.size.parts):
            tokens, targets = next(batches)
            with fabric.no_backward_sync(model, enabled=part < plan.size.parts - 1):
                loss = model(tokens, targets)
                fabric.backward(loss / plan.size.parts)
        fabric.clip_gradients(model, optimizer, max_norm=plan.clip, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        if step % plan.log_every == 0:
            fabric.print(f"step {step}: loss {loss.item():.4f}")
    if fabric.is_global_zero:
        turns.tell(judged(plan, plain))
    fabric.barrier()


if __name__ == "__main__":
    main()
