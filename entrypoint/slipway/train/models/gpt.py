"""GPT-2, whole or in pipeline stages: a decoder-only transformer with learned positions, pre-normalisation and tied embeddings.

Architecture and initialisation: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
Parameter names are those of the published GPT-2 checkpoints, in the whole model as in its stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from slipway.train.parallel.pipeline import StageLink


@dataclass(frozen=True)
class GptConfig:
    """Dimensions of a GPT; `context` is the largest number of tokens it sees at once."""

    layers: int
    heads: int
    embed: int
    context: int
    vocab_size: int
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal multi-head self-attention, (batch, tokens, embed) to the same shape."""

    def __init__(self, config: GptConfig) -> None:
        """Make the projections; `c_attn` holds queries, keys and values side by side."""
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.embed, 3 * config.embed)
        self.c_proj = nn.Linear(config.embed, config.embed)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Let every token look at itself and those before it."""
        batch, tokens, embed = hidden.shape
        queries, keys, values = (
            part.view(batch, tokens, self.heads, embed // self.heads).transpose(1, 2)
            for part in self.c_attn(hidden).split(embed, dim=2)
        )
        mixed = self.attend(queries, keys, values).transpose(1, 2).reshape(batch, tokens, embed)
        return functional.dropout(self.c_proj(mixed), self.dropout, self.training)

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention of tensors of shape (batch, heads, tokens, embed / heads)."""
        dropout = self.dropout if self.training else 0.0
        if queries.device.type != "cpu" or queries.dtype == torch.float32:
            return functional.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=True)
        # torch 2.10's bf16 flash backward on a CPU took 4.7 ms a call where fp32 takes 1.0 (half of the whole step).
        with torch.autocast("cpu", enabled=False):
            return functional.scaled_dot_product_attention(
                queries.float(), keys.float(), values.float(), dropout_p=dropout, is_causal=True
            )


class Mlp(nn.Module):
    """Two layers with four times the width in between."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = nn.Linear(config.embed, 4 * config.embed)
        self.c_proj = nn.Linear(4 * config.embed, config.embed)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Transform every token by itself."""
        # GPT-2 uses the approximation. For training on a CPU torch 2.10 has a fast kernel (oneDNN) only for the exact function:
        # forward and backward of 768 × 512 take 0.7 ms instead of 1.8, a tenth of a small model's step. The two differ by at
        # most 0.0005; evaluation, sampling and export use GPT-2's.
        exact = self.training and torch.is_grad_enabled() and hidden.device.type == "cpu"
        widened = functional.gelu(self.c_fc(hidden), approximate="none" if exact else "tanh")
        return functional.dropout(self.c_proj(widened), self.dropout, self.training)


class Block(nn.Module):
    """Attention, then the two layers, each added to its input."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.embed)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.embed)
        self.mlp = Mlp(config)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, embed) to the same shape."""
        hidden = hidden + self.attn(self.ln_1(hidden))
        transformed: torch.Tensor = self.mlp(self.ln_2(hidden))
        return hidden + transformed


class Gpt(nn.Module):
    """The whole model. The token embedding is also the output layer: both are one tensor."""

    def __init__(self, config: GptConfig) -> None:
        """Make the model with GPT-2's initialisation."""
        super().__init__()
        self.config = config
        self.checkpoint_activations = False  # keep only each block's input, and recompute the rest
        self.wte = nn.Embedding(config.vocab_size, config.embed)
        self.wpe = nn.Embedding(config.context, config.embed)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.embed)
        self.apply(self._initialise)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                # Each block adds twice to the residual stream: this keeps its variance at one.
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits (batch, tokens, vocab_size) for tokens (batch, tokens); with targets, their mean loss in nats."""
        return self.predict(self.transform(self.embed(tokens)), targets)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the input of the blocks, (batch, tokens, embed)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return functional.dropout(self.wte(tokens) + self.wpe(positions), self.config.dropout, self.training)

    def transform(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply all blocks, (batch, tokens, embed) to the same shape."""
        for block in self.h.children():
            if self.checkpoint_activations and torch.is_grad_enabled():
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        return hidden

    def predict(self, hidden: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits from the blocks' output; with targets, their mean loss in nats."""
        logits: torch.Tensor = functional.linear(self.ln_f(hidden), self.wte.weight)
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def continue_text(
        self, tokens: torch.Tensor, count: int, temperature: float, generator: torch.Generator
    ) -> torch.Tensor:
        """Append `count` tokens to `tokens` (shape (1, n), n ≥ 1); temperature 0 takes the likeliest each time."""
        return continue_tokens(
            lambda so_far: self(so_far[:, -self.config.context :])[:, -1].float(), tokens, count, temperature, generator
        )


@torch.no_grad()
def continue_tokens(
    next_logits: Callable[[torch.Tensor], torch.Tensor],
    tokens: torch.Tensor,
    count: int,
    temperature: float,
    generator: torch.Generator,
) -> torch.Tensor:
    """Append `count` tokens to `tokens` (1, n), drawn from their logits (1, vocab_size); temperature 0: the likeliest each."""
    for _ in range(count):
        logits = next_logits(tokens)
        if temperature > 0:
            shares = torch.softmax(logits / temperature, dim=-1)
            following = torch.multinomial(shares, 1, generator=generator)
        else:
            following = logits.argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


TIED = "wte.weight"  # of the first and the last stage: embedding and output layer


class GptStage(Gpt):
    """Consecutive blocks of a GPT; the first stage also has the embeddings, the last one the output layer."""

    def __init__(self, whole: Gpt, stage: int, stages: int) -> None:
        """Take stage `stage` (from 0) of `whole`. If blocks cannot be divided evenly, earlier stages have one more."""
        nn.Module.__init__(self)
        self.config = whole.config
        self.checkpoint_activations = whole.checkpoint_activations
        self.first, self.last = stage == 0, stage == stages - 1
        start, end = (math.ceil(len(whole.h) * border / stages) for border in (stage, stage + 1))
        if self.first or self.last:
            self.wte = whole.wte
        if self.first:
            self.wpe = whole.wpe
        self.h = nn.ModuleDict({str(number): whole.h[number] for number in range(start, end)})  # type: ignore[assignment]
        if self.last:
            self.ln_f = whole.ln_f

    def forward(self, given: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Map tokens (batch, tokens) or the previous stage's (batch, tokens, embed) to the same, logits or mean loss."""
        hidden = self.transform(self.embed(given) if self.first else given)
        return self.predict(hidden, targets) if self.last else hidden


class StagedGpt(StageLink):
    """All stages of a GPT as one model; its methods are called by all of them."""

    def continue_text(
        self, tokens: torch.Tensor, count: int, temperature: float, generator: torch.Generator
    ) -> torch.Tensor:
        """See Gpt; generators must be in the same state on all ranks."""
        return continue_tokens(self._next_logits, tokens, count, temperature, generator)

    def _next_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        stage, split = self.stage, self.split
        assert isinstance(stage, GptStage)
        config = stage.config
        logits = self(tokens[:, -config.context :])
        shared = torch.empty(1, config.vocab_size, device=tokens.device) if logits is None else logits[:, -1].float()
        dist.broadcast(shared, split.rank(split.stages - 1), group=split.own)
        return shared


def adamw(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW as GPT-3 was trained with it: matrices decay, biases and gains do not (Brown et al., 2020, appendix B)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for parameter in trained if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)
