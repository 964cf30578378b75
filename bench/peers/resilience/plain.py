"""The loop with torch.save every 20 steps: what torchrun and `slipway run` start, unchanged."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peers.resilience import common

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(common.make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = 0
if common.CHECKPOINT.exists():
    kept = torch.load(common.CHECKPOINT, weights_only=True)
    model.module.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    step = kept["step"]
while step < common.STEPS:
    common.fail_if_asked(rank, step)
    loss = model(*common.batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    common.note(rank, step, loss)
    if rank == 0 and step % common.SAVE_EVERY == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, "checkpoint.new")
        Path("checkpoint.new").replace(common.CHECKPOINT)
common.finish(rank, model.module)
dist.destroy_process_group()
