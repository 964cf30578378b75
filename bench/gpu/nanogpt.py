"""nanoGPT's way to train GPT-2 on one GPU, in our own words: its model, its batches, its loop, with its own flags.

https://github.com/karpathy/nanoGPT (train.py, model.py, config/train_gpt2.py): no biases, a vocabulary rounded up to 50304,
flash attention, bf16 autocast, fused AdamW, gradients clipped to 1, the model compiled; batches are drawn at random from a
memory map, each while the GPU is at work on the one before, and go there from pinned memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional

Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (inputs, targets) to their mean loss


@dataclass(frozen=True)
class Shape:
    """Dimensions of a GPT."""

    layers: int
    heads: int
    embed: int
    context: int
    vocabulary: int


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a normalisation, without biases."""

    def __init__(self, shape: Shape) -> None:
        """Make the four matrices."""
        super().__init__()
        self.heads, width = shape.heads, shape.embed
        self.before_attention, self.before_feed = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.mixed, self.attended = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, embed) to the same shape."""
        batch, tokens, width = hidden.shape
        parts = self.mixed(self.before_attention(hidden)).split(width, dim=2)
        queries, keys, values = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.attended(seen.transpose(1, 2).contiguous().view(batch, tokens, width))
        result: torch.Tensor = hidden + self.narrow(functional.gelu(self.wide(self.before_feed(hidden))))
        return result


class NanoGpt(nn.Module):
    """The whole model; its output layer is its token embedding."""

    def __init__(self, shape: Shape) -> None:
        """Make it with GPT-2's initialisation."""
        super().__init__()
        self.tokens, self.places = nn.Embedding(shape.vocabulary, shape.embed), nn.Embedding(shape.context, shape.embed)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.last = nn.LayerNorm(shape.embed, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                deep = name.endswith(("attended.weight", "narrow.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * shape.layers) if deep else 0.02)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss; nanoGPT returns the logits as well."""
        hidden = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))
        for layer in self.layers:
            hidden = layer(hidden)
        logits = functional.linear(self.last(hidden), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


class Training:
    """The loop, some steps whenever it is its turn."""

    def __init__(
        self, model: nn.Module, stored: npt.NDArray[np.uint16], context: int, batch: int, parts: int,
        rate: Callable[[int], float], device: torch.device, precision: torch.dtype | None,
    ) -> None:  # fmt: skip
        """`batch` sequences a step, in `parts`; `rate` is the learning rate of each step; None as precision is fp32."""
        weights = list(model.parameters())
        groups = [
            {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": 0.1},
            {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), fused=True)
        self._weights, self._model = weights, torch.compile(model)
        self._stored, self._context, self._batch, self._parts = stored, context, batch // parts, parts
        self._rate, self._device, self._step, self.loss = rate, device, 0, math.nan
        self._precision = precision
        self._scaler = GradScaler(device.type, enabled=precision == torch.float16)
        self._next = self._draw()

    def take(self, steps: int) -> None:
        """Train. The host waits for the device once, when it reads the mean loss in the end; nanoGPT does at every tenth step."""
        mean = torch.zeros((), device=self._device)
        for _ in range(steps):
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate(self._step)
            for _ in range(self._parts):
                with self._arithmetic():
                    loss = self._model(*self._next) / self._parts
                self._next = self._draw()
                self._scaler.scale(loss).backward()
                mean += loss.detach() / steps
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._weights, 1.0)
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._optimizer.zero_grad(set_to_none=True)
            self._step += 1
        self.loss = mean.item()

    def _arithmetic(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, self._precision) if self._precision else nullcontext()

    def _draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.randint(len(self._stored) - self._context, (self._batch,)).tolist()
        cut = [torch.from_numpy(self._stored[at : at + self._context + 1].astype(np.int64)) for at in places]
        inputs, targets = torch.stack([part[:-1] for part in cut]), torch.stack([part[1:] for part in cut])
        if self._device.type != "cuda":
            return inputs, targets
        first, second = (part.pin_memory().to(self._device, non_blocking=True) for part in (inputs, targets))
        return first, second
