"""A GPT as nanoGPT's `model.py` has it (https://github.com/karpathy/nanoGPT), in our own words: what the peers train."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from peers.plan import Size


class Attention(nn.Module):
    """Causal attention through torch's fused kernel."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.embed = size.heads, size.embed
        self.c_attn = nn.Linear(size.embed, 3 * size.embed)
        self.c_proj = nn.Linear(size.embed, size.embed)
        self.resid_dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, embed) to the same shape."""
        batch, tokens, embed = x.size()
        shape = batch, tokens, self.heads, embed // self.heads
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.c_attn(x).split(self.embed, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, tokens, embed)
        dropped: torch.Tensor = self.resid_dropout(self.c_proj(y))
        return dropped


class Mlp(nn.Module):
    """Two layers with the exact GELU between them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.c_fc = nn.Linear(size.embed, 4 * size.embed)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * size.embed, size.embed)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, embed) to the same shape."""
        dropped: torch.Tensor = self.dropout(self.c_proj(self.gelu(self.c_fc(x))))
        return dropped


class Block(nn.Module):
    """Both, each behind a normalisation and added to what came in."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(size.embed), Attention(size)
        self.ln_2, self.mlp = nn.LayerNorm(size.embed), Mlp(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, embed) to the same shape."""
        x = x + self.attn(self.ln_1(x))
        changed: torch.Tensor = x + self.mlp(self.ln_2(x))
        return changed


class Model(nn.Module):
    """The whole; parameters are called as in Slipway's model, so that both begin with the same weights."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(size.vocab_size, size.embed), nn.Embedding(size.context, size.embed)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.ln_f = nn.LayerNorm(size.embed)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The mean loss; without targets the logits."""
        positions = torch.arange(0, tokens.size(1), dtype=torch.long, device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        if targets is None:
            return logits
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
