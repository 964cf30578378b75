"""The training of `slipway demo`: a loop that resumes, the same under torchrun and under `slipway`.

Each rank appends the moments of its steps to the file moments-RANK in DEMO_FOLDER, and with DEMO_HANG=1 rank 1 stops at step 30.
"""

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import slipway

PACE = 0.05  # s that a step takes at least: more would make the demo long, less would make steps hard to count
HANGS_AT = 30


def read_sample(step: int, rank: int) -> None:
    """Stand in for a read from storage, which takes a while and may never return."""
    if os.environ.get("DEMO_HANG") and rank == 1 and step == HANGS_AT:
        threading.Event().wait()  # this is the line that the report names
    time.sleep(PACE)


def main() -> None:
    """Train until the job is stopped."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 20))
    model = DistributedDataParallel(nn.Linear(20, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, world, rank))
    run = slipway.resume(model=model, optimizer=optimizer)
    with Path(os.environ["DEMO_FOLDER"], f"moments-{rank}").open("a", buffering=1) as moments:
        for _ in run.epochs(1000):
            for (batch,) in run.batches(loader):
                read_sample(run.step, rank)
                loss = (model(batch) - batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                moments.write(f"{time.monotonic()} {run.step} {os.getpid()}\n")


if __name__ == "__main__":
    main()
