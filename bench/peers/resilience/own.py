"""The loop with Slipway's interface for loops of one's own."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import slipway
from peers.resilience import common

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(common.make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = slipway.resume(model=model, optimizer=optimizer)
for step in run.steps(common.STEPS):
    common.fail_if_asked(rank, step)
    loss = model(*common.batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    common.note(rank, step + 1, loss)
common.finish(rank, model.module)
dist.destroy_process_group()
