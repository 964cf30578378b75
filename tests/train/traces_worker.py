"""A loop of one's own that traces three of its steps into a folder."""

from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway.train import trace


def main(path: str) -> None:
    folder = Path(path)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    with trace(folder) as traced:
        for _ in range(3):
            model(torch.randn(8, 64)).square().sum().backward()
            traced.step()
    with suppress(ZeroDivisionError), trace(folder.with_name("mine-failed")):
        _ = 1 // 0
    print("left by its error", flush=True)
    del model
    dist.destroy_process_group()
