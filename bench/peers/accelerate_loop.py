"""A training with Hugging Face accelerate, as its guides have it, with the flags that make it fastest here."""

from __future__ import annotations

import os
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch.utils.data import DataLoader

from peers.plan import read_plan
from peers.training import Windows, adamw, arithmetic, begin, judged, learning_rate, set_rate, visited
from peers.turns import Turns, take_turns


def main() -> None:
    """Train in turns, and tell the loss."""
    plan = read_plan(os.environ)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="bf16" if arithmetic(plan).name == "bf16" else "no",
        gradient_accumulation_steps=plan.size.parts,
        dynamo_backend="inductor" if plan.compile else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    plain = begin(plan)
    loader: Any = DataLoader(Windows(plan), plan.size.batch, sampler=visited(plan).flatten().tolist())
    model, optimizer, loader = accelerator.prepare(plain, adamw(plan, plain, fused=True), loader)
    turns = Turns(plan.block)
    batches = iter(loader)
    for step in take_turns(plan, turns):
        set_rate(optimizer, learning_rate(plan, step))
        for _ in range(plan.size.parts):
            tokens, targets = next(batches)
            with accelerator.accumulate(model):
                loss = model(tokens, targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), plan.clip)
                optimizer.step()
                optimizer.zero_grad()
        if step % plan.log_every == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f}")
    if accelerator.is_main_process:
        turns.tell(judged(plan, plain))
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
