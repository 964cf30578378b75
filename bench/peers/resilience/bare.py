"""The loop without any checkpoint. It is not run: the lines that each side adds to it are counted."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peers.resilience import common

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(common.make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = 0
while step < common.STEPS:
    common.fail_if_asked(rank, step)
    loss = model(*common.batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    common.note(rank, step, loss)
common.finish(rank, model.module)
dist.destroy_process_group()
