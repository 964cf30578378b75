"""A loop on Lightning Fabric that resumes: the lines with `slipway` and `run` are all that differs.

slipway run --max-restarts 3 --nproc-per-node 2 examples/fabric_loop.py   # pip install lightning
"""

import os
import sys

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slipway

torch.manual_seed(0)  # the same data and first weights everywhere
inputs = torch.randn(4096, 20)
data = TensorDataset(inputs, (inputs.sum(dim=1, keepdim=True) > 0).float())

local, world = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
fabric = Fabric(devices=local, num_nodes=world // local)
fabric.launch()
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=32, shuffle=True))
run = slipway.resume(model=model, optimizer=optimizer)
for epoch in run.epochs(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    for batch, labels in run.batches(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch), labels)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    run.log(loss=loss.item())
    fabric.print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
