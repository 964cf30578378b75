"""A GPT in stages, one after the other in different processes. Parameters keep the names that they have in the whole."""

from __future__ import annotations

from math import ceil

import torch
import torch.distributed as dist
from torch import nn

from slipway.train.models.gpt import Gpt, continue_tokens
from slipway.train.parallel.pipeline import StageLink

TIED = "wte.weight"  # the first stage embeds with it, the last one predicts with it


class GptStage(Gpt):
    """A run of a GPT's blocks; the first stage has the embeddings, too, the last one the output layer."""

    def __init__(self, whole: Gpt, stage: int, stages: int) -> None:
        """Take stage `stage` (from 0) of `whole`. Earlier stages have a block more where they do not come out even."""
        nn.Module.__init__(self)
        self.config = whole.config
        self.checkpoint_activations = whole.checkpoint_activations
        self.first, self.last = stage == 0, stage == stages - 1
        start, end = (ceil(len(whole.h) * border / stages) for border in (stage, stage + 1))
        if self.first or self.last:
            self.wte = whole.wte
        if self.first:
            self.wpe = whole.wpe
        self.h = nn.ModuleDict({str(number): whole.h[number] for number in range(start, end)})  # type: ignore[assignment]
        if self.last:
            self.ln_f = whole.ln_f

    def forward(self, given: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """From tokens (batch, tokens) or the stage before, (batch, tokens, embed), to the same, logits or mean loss."""
        hidden = self.transform(self.embed(given) if self.first else given)
        return self.predict(hidden, targets) if self.last else hidden


class StagedGpt(StageLink):
    """All stages of a GPT as one model, by all of them."""

    def continue_text(
        self, tokens: torch.Tensor, count: int, temperature: float, generator: torch.Generator
    ) -> torch.Tensor:
        """As Gpt's, with generators that are alike."""
        return continue_tokens(self._next_logits, tokens, count, temperature, generator)

    def _next_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        stage, split = self.stage, self.split
        assert isinstance(stage, GptStage)
        config = stage.config
        logits = self(tokens[:, -config.context :])
        shared = torch.empty(1, config.vocab_size, device=tokens.device) if logits is None else logits[:, -1].float()
        dist.broadcast(shared, split.rank(split.stages - 1), group=split.own)
        return shared
