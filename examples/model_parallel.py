"""One model spread over two devices, and DDP around it: model parallelism inside a process, data parallelism between them.

slipway run --nproc-per-node 4 examples/model_parallel.py       # 8 GPUs: half as many processes, two GPUs for each
slipway run --nproc-per-node cpu examples/model_parallel.py     # without GPUs, where both devices are the CPU

For models that fit into no single GPU. Only one of the two works at a time; the `pipeline` workload keeps both busy.
"""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOCAL_RANK, LOCAL_WORLD_SIZE = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


class TwoHalves(nn.Module):
    """The first layers on one device, the others on another; what flows between them is copied across."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.front = nn.Sequential(nn.Linear(32, 256), nn.ReLU()).to(first)
        self.back = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(second)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Numbers of shape (batch, 1), on the second device."""
        result: torch.Tensor = self.back(self.front(inputs.to(self.first)).to(self.second))
        return result


def choose_devices() -> tuple[torch.device, torch.device]:
    """This process's two devices. Says how to start it where there are too few GPUs."""
    gpus = torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu"), torch.device("cpu")
    if gpus < 2 * LOCAL_WORLD_SIZE:
        number = str(gpus // 2) if gpus > 1 else "cpu"
        raise SystemExit(
            f"{LOCAL_WORLD_SIZE} processes with two GPUs each need {2 * LOCAL_WORLD_SIZE}, and here are {gpus}. "
            f"Type: slipway run --nproc-per-node {number} examples/model_parallel.py"
        )
    return torch.device("cuda", 2 * LOCAL_RANK), torch.device("cuda", 2 * LOCAL_RANK + 1)


def train(first: torch.device, second: torch.device, steps: int = 200) -> None:
    """Learn the mean square of 32 numbers; model and DDP are gone when this returns."""
    torch.manual_seed(0)
    # No device_ids: they are for a model on one device. DDP leaves each parameter where it is, and so its gradient.
    parallel = DistributedDataParallel(TwoHalves(first, second), device_ids=None)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())  # each process makes data of its own
    for step in range(1, steps + 1):
        inputs = torch.randn(64, 32, generator=generator)
        targets = inputs.square().mean(dim=1, keepdim=True).to(second)  # the loss is where the model ends
        loss = nn.functional.mse_loss(parallel(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step == 1 or step % 50 == 0):
            print(f"step {step} of {steps}: loss {loss.item():.4f}, layers on {first} and {second}", flush=True)


if __name__ == "__main__":
    devices = choose_devices()
    if devices[0].type == "cuda":
        torch.cuda.set_device(devices[0])  # NCCL talks through one GPU of each process
    dist.init_process_group("nccl" if devices[0].type == "cuda" else "gloo")
    train(*devices)
    gc.collect()  # a DDP object that is alive while Python exits can crash it
    dist.destroy_process_group()
