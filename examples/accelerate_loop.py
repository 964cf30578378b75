"""A loop on Hugging Face's accelerate that resumes: the lines with `slipway` and `run` are all that differs.

slipway run --max-restarts 3 --nproc-per-node 2 examples/accelerate_loop.py   # pip install accelerate
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slipway

torch.manual_seed(0)  # the same data and first weights everywhere
inputs = torch.randn(4096, 20)
data = TensorDataset(inputs, (inputs.sum(dim=1, keepdim=True) > 0).float())

accelerator = Accelerator(gradient_accumulation_steps=2)
model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=32, shuffle=True)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
run = slipway.resume(model=model, optimizer=optimizer, scheduler=schedule, scaler=accelerator.scaler)
for epoch in run.epochs(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    for batch, labels in run.batches(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), labels)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    run.log(loss=loss.item())
    accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
