"""Plain PyTorch, from one process to many GPUs on many machines. Nothing in here knows Slipway.

python examples/plain.py                                    # one process, on a GPU if there is one
torchrun --nproc-per-node 2 examples/plain.py               # two
slipway examples/plain.py                                   # one per GPU; on several machines: README, "Several machines"
"""

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# Rung 1: who are we? Whoever started this process says so in the environment; alone it is rank 0 of 1.
RANK, LOCAL_RANK = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
GPUS = torch.cuda.device_count()
DEVICE = torch.device("cuda", LOCAL_RANK % GPUS) if GPUS else torch.device("cpu")


def train(epochs: int, batch_size: int, snapshot: Path) -> None:
    """Train a small network; model and DDP are gone when this returns."""
    torch.manual_seed(0)  # the same data and first weights everywhere
    inputs = torch.randn(4096, 20)
    data = TensorDataset(inputs, (inputs.sum(dim=1, keepdim=True) > 0).float())
    # Rung 2: each process takes its share of every batch.
    sampler = DistributedSampler(data, WORLD_SIZE, RANK)
    loader = DataLoader(data, batch_size // WORLD_SIZE, sampler=sampler)
    model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    # Rung 3: go on where the last run ended. All ranks read the file, so all machines must see it.
    if snapshot.exists():
        state = torch.load(snapshot, map_location=DEVICE, weights_only=True)  # tensors and numbers, never code
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    # Rung 4: gradients are averaged over all processes, while they are being computed.
    parallel = DistributedDataParallel(model) if WORLD_SIZE > 1 else model
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)  # another order in every epoch, the same on all ranks
        for batch, labels in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(parallel(batch.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # Rung 5: one process speaks and saves, under another name first: a crash leaves the old file or the new one.
        if RANK == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.4f}", flush=True)
            temporary = snapshot.with_suffix(".new")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, temporary)
            temporary.replace(snapshot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, all processes together")
    parser.add_argument("--snapshot", type=Path, default=Path("plain.pt"))
    args = parser.parse_args()
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    if WORLD_SIZE > 1:
        dist.init_process_group(
            "nccl" if DEVICE.type == "cuda" else "gloo"
        )  # finds the others by MASTER_ADDR and _PORT
    train(args.epochs, args.batch_size, args.snapshot)
    gc.collect()  # a DDP object that is alive while Python exits can crash it
    if WORLD_SIZE > 1:
        dist.destroy_process_group()
