"""The plain loop that a start is measured against: DistributedDataParallel as its tutorial has it, and nothing around it.

    torchrun --nproc-per-node 2 bench/steps.py

A transformer of the size of `slipway gpt --preset tiny`, on the same kind of text: the standard library's own source;
rank 0 prints when it has come how far, in Unix seconds.
"""

import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, HEADS, EMBED, CONTEXT, BYTES, BATCH = 4, 4, 128, 128, 256, 16


def tell(moment: str) -> None:
    """Print on rank 0 that it has come so far."""
    if os.environ["RANK"] == "0":
        print(f"\nmoment {time.time():.4f} {moment}", flush=True)


class Model(nn.Module):
    """Embeddings, blocks of torch's own, and the embedding as output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(BYTES, EMBED), nn.Embedding(CONTEXT, EMBED)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                EMBED, HEADS, 4 * EMBED, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(EMBED)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for tokens (batch, CONTEXT)."""
        hidden = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return functional.linear(self.norm(hidden), self.tokens.weight)


def read_text() -> torch.Tensor:
    """The bytes of the standard library's own modules."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def main() -> None:
    """Take one step."""
    tell("imported")
    dist.init_process_group("gloo")
    tell("joined")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, fused=True)
    text, share = read_text(), BATCH // dist.get_world_size()
    tell("ready")
    starts = torch.randint(len(text) - CONTEXT, (BATCH,))[dist.get_rank() * share :][:share]
    windows = text[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)].long()
    loss = functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    last = loss.item()
    tell("stepped")
    tell(f"loss {last:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
