"""Activation checkpointing: less is kept for the backward pass, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from slipway.train.models.gpt import Gpt, GptConfig

CONFIG = GptConfig(layers=3, heads=2, embed=16, context=8, vocab_size=32, dropout=0.2)


def learn(checkpointed: bool) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Loss, gradients, and how many numbers wait for the backward pass, weights not counted."""
    torch.manual_seed(0)
    model = Gpt(CONFIG)
    model.checkpoint_activations = checkpointed
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    tokens = torch.randint(32, (4, 9))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(tokens[:, :-1], tokens[:, 1:])
    waiting = sum(kept)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()], waiting


def test_loss_and_gradients_are_the_same_with_dropout_and_less_is_kept() -> None:
    plain, checkpointed = learn(False), learn(True)
    assert plain[0].equal(checkpointed[0])
    for one, other in zip(plain[1], checkpointed[1], strict=True):
        torch.testing.assert_close(one, other)
    assert checkpointed[2] < plain[2] / 3


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_model_that_is_judged_keeps_nothing(checkpointed: bool) -> None:
    model = Gpt(CONFIG).eval()
    model.checkpoint_activations = checkpointed
    with torch.no_grad():
        assert not model(torch.zeros(1, 4, dtype=torch.int64)).requires_grad
