"""The loop with lm-resiliency's explicit interface: checkpoints in memory, written to a local folder."""

import torch
import torch.distributed as dist
from lm_resiliency import InMemoryCkptConfig, enable_resiliency
from torch.nn.parallel import DistributedDataParallel

from peers.resilience import common

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(common.make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
group = dist.new_group(backend="gloo")  # by default it makes a group of NCCL, which fails on a CPU
handle = enable_resiliency(
    model,
    optimizer,
    interval=5,
    enable_detection=False,
    checkpoint=InMemoryCkptConfig(
        disk_flush_interval=5,
        disk_folder="checkpoints",
        run_id="bench",
        pin_memory=False,
        verify_integrity=True,
        replication_jump=1,
    ),
    group=group,
    nccl_group=group,
    device=torch.device("cpu"),
)
step = handle.step_count
while step < common.STEPS:
    common.fail_if_asked(rank, step)
    loss = model(*common.batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    common.note(rank, step, loss)
common.finish(rank, model.module)
handle.close()
dist.destroy_process_group()
