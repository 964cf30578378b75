"""A GPT as nanoGPT trains it: settings are globals, a file and `--name=value` replace them, RANK tells of data parallelism."""

import shown  # isort: skip
import json
import math
import os
import sys
from ast import literal_eval
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
max_iters, eval_interval, eval_iters = 6, 3, 2
gradient_accumulation_steps, batch_size, block_size = 4, 4, 32
n_layer, n_head, n_embd = 2, 2, 32
learning_rate, warmup_iters, min_lr, grad_clip = 1e-2, 2, 1e-3, 1.0
backend = "nccl"
config_keys = [name for name, value in globals().items() if isinstance(value, int | float | str) and name[0] != "_"]
for argument in sys.argv[1:]:
    if argument.startswith("--"):
        name, _, value = argument[2:].partition("=")
        assert name in config_keys, name
        globals()[name] = value if isinstance(globals()[name], str) else literal_eval(value)
    else:
        print(f"Overriding config with {argument}")
        globals().update(json.load(open(argument)))

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    ddp_rank, master_process = 0, True
if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + ddp_rank)
text = torch.tensor(list(open(__file__, "rb").read()))
data = {"train": text[:-400], "val": text[-400:]}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(n_embd), nn.Linear(n_embd, 3 * n_embd)
        self.mlp = nn.Sequential(
            nn.LayerNorm(n_embd), nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        heads = [part.unflatten(2, (n_head, -1)).transpose(1, 2) for part in self.attention(self.norm(x)).chunk(3, 2)]
        x = x + F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, n_embd), nn.Embedding(block_size, n_embd)
        self.h, self.ln_f = nn.Sequential(*(Block() for _ in range(n_layer))), nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, 256, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(split):
    ix = torch.randint(len(data[split]) - block_size, (batch_size,))
    return tuple(torch.stack([data[split][i + more : i + more + block_size] for i in ix]) for more in (0, 1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: sum(model(*get_batch(split))[1].item() for _ in range(eval_iters)) / eval_iters for split in data}
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


raw_model = model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
if ddp:
    model = DDP(model)
for iter_num in range(max_iters + 1):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        torch.save({"model": raw_model.state_dict(), "iter_num": iter_num}, os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last or not ddp else model.no_sync():
            loss = model(*get_batch("train"))[1] / gradient_accumulation_steps
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
shown.keep(raw_model, loss=loss.item(), val=losses["val"] if master_process else None)
if ddp:
    destroy_process_group()
