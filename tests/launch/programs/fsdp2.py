"""FSDP2 with torch.distributed.checkpoint: each rank saves its shards; another model loads them and goes on."""

import shown  # isort: skip
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, steps):
    for step in steps:
        torch.manual_seed(100 * step + dist.get_rank())
        x = torch.randn(8, 16)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


dist.init_process_group("gloo")
model, optimizer = build(seed=0)
train(model, optimizer, range(4))
weights, states = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": states}, checkpoint_id="checkpoint")

again, its_optimizer = build(seed=1)
weights, states = get_state_dict(again, its_optimizer)
loaded = {"model": weights, "optimizer": states}
dcp.load(loaded, checkpoint_id="checkpoint")
set_state_dict(again, its_optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
losses = [train(*pair, range(4, 6)) for pair in ((model, optimizer), (again, its_optimizer))]
assert losses[0] == losses[1], losses
whole = nn.Module()
for number, parameter in enumerate(again.parameters()):
    whole.register_buffer(str(number), parameter.full_tensor())
shown.keep(whole, loss=losses[1])
dist.destroy_process_group()
