"""A loop of your own that resumes where it was: four lines more than plain PyTorch has (the ones with `slipway` and `run`).

slipway run --max-restarts 5 --nproc-per-node 2 examples/own_loop.py   # kill -9 any process: it resumes within a step
slipway examples/own_loop.py --epochs 100                              # Ctrl-C, `slipway stop` or SIGTERM: saves first
torchrun --nproc-per-node 2 examples/own_loop.py                       # the same script, with snapshots on the disk only
python examples/own_loop.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import slipway

RANK, LOCAL_RANK = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
GPUS = torch.cuda.device_count()
DEVICE = torch.device("cuda", LOCAL_RANK % GPUS) if GPUS else torch.device("cpu")


def train(epochs: int, batch_size: int) -> None:
    """Train a small network."""
    torch.manual_seed(0)  # the same data and first weights everywhere
    inputs = torch.randn(4096, 20)
    data = TensorDataset(inputs, (inputs.sum(dim=1, keepdim=True) > 0).float())
    loader = DataLoader(data, batch_size // WORLD_SIZE, sampler=DistributedSampler(data, WORLD_SIZE, RANK))
    model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE)
    parallel = DistributedDataParallel(model) if WORLD_SIZE > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = slipway.resume(model=parallel, optimizer=optimizer)
    for epoch in run.epochs(epochs):
        for batch, labels in run.batches(loader):  # calls the sampler's set_epoch
            loss = nn.functional.binary_cross_entropy_with_logits(parallel(batch.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        run.log(loss=loss.item())
        if RANK == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, all processes together")
    args = parser.parse_args()
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    if WORLD_SIZE > 1:
        dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    train(args.epochs, args.batch_size)
