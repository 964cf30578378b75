"""accelerate: prepare, accumulate, gather_for_metrics, save_state and load_state."""

import shown  # isort: skip
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from small import Model, Samples
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir="project")
set_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
batches = DataLoader(Samples(), batch_size=8, shuffle=True)
model, optimizer, schedule, batches = accelerator.prepare(model, optimizer, schedule, batches)
for epoch in range(2):
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.save_state(f"state-{epoch}")
accelerator.load_state("state-0")
model.eval()
with torch.no_grad():
    gathered = torch.cat([accelerator.gather_for_metrics(model(**batch)["logits"]) for batch in batches])
accelerator.wait_for_everyone()
numbers = {"count": len(gathered), "sum": gathered.sum().item(), "processes": accelerator.num_processes}
shown.keep(accelerator.unwrap_model(model), loss=loss.item(), type=str(accelerator.distributed_type), **numbers)
accelerator.end_training()
