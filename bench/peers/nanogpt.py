"""nanoGPT's way (https://github.com/karpathy/nanoGPT, train.py) on a CPU, in our own words.

Windows out of a memory-mapped file (its own are random; here they are those that all sides read), stacked one by one, the
next batch while the loss is under way; AdamW as torch chooses it (nanoGPT asks for the fused one on GPUs alone); fp32, as
its autocast does nothing on a CPU; DDP's switch turned by hand. Its README has torch.compile off on a CPU.
"""

from __future__ import annotations

import os
from itertools import cycle

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from peers.plan import Plan, read_plan
from peers.training import adamw, begin, judged, learning_rate, set_rate, visited
from peers.turns import Turns, take_turns


def get_batch(plan: Plan, starts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The windows that begin at `starts`, and those that lie one token further on."""
    data, length = np.memmap(plan.text, dtype=np.uint16, mode="r"), plan.size.context
    x = torch.stack([torch.from_numpy(data[start : start + length].astype(np.int64)) for start in starts])
    y = torch.stack([torch.from_numpy(data[start + 1 : start + 1 + length].astype(np.int64)) for start in starts])
    return x, y


def main() -> None:
    """Train in turns, and tell the loss."""
    plan = read_plan(os.environ)
    dist.init_process_group("gloo")
    model = begin(plan)
    optimizer = adamw(plan, model, fused=False)
    scaler = torch.amp.grad_scaler.GradScaler("cpu", enabled=False)
    parallel = DistributedDataParallel(model)
    rows = cycle((visited(plan)[:, dist.get_rank()] * plan.size.context).tolist())
    turns = Turns(plan.block)
    x, y = get_batch(plan, next(rows))
    for step in take_turns(plan, turns):
        set_rate(optimizer, learning_rate(plan, step))
        for part in range(plan.size.parts):
            parallel.require_backward_grad_sync = part == plan.size.parts - 1
            loss = parallel(x, y) / plan.size.parts
            x, y = get_batch(plan, next(rows))
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parallel.parameters(), plan.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % plan.log_every == 0 and dist.get_rank() == 0:
            print(f"iter {step}: loss {loss.item() * plan.size.parts:.4f}", flush=True)
    if dist.get_rank() == 0:
        turns.tell(judged(plan, model))
    dist.barrier()
    del parallel
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
