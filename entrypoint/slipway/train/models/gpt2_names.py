"""How a GPT-2 checkpoint of the Hub and our Gpt name and lay out the same tensors, both ways.

Names are alike but for the prefix `transformer.`, which some checkpoints have and others, the first ones, have not.
There, the four matrices of a block belong to transformers' Conv1D, which keeps (inputs, outputs); our Linear keeps
(outputs, inputs): https://github.com/huggingface/transformers/blob/main/src/transformers/pytorch_utils.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from slipway.train.models.gpt import GptConfig

PREFIX = "transformer."
TRANSPOSED = re.compile(r"h\.\d+\.(attn\.(c_attn|c_proj)|mlp\.(c_fc|c_proj))\.weight")
# Causal masks that old versions of transformers saved, and the output layer, which is the token embedding once more.
LEFT_OUT = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight")


def from_gpt2(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors under our Gpt's names and in its layout; masks and the tied output layer are left out."""
    ours: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        short = name.removeprefix(PREFIX)
        if not LEFT_OUT.fullmatch(short):
            ours[short] = transpose_matrix(short, tensor)
    return ours


def to_gpt2(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our Gpt's tensors as `GPT2LMHeadModel.save_pretrained` writes them: with prefix, without the tied output layer."""
    return {PREFIX + name: transpose_matrix(name, tensor) for name, tensor in tensors.items()}


def transpose_matrix(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the other layout: its transpose where it belongs to a Conv1D there and to a Linear here."""
    return tensor.t().contiguous() if TRANSPOSED.fullmatch(name) else tensor


def gpt2_config(config: GptConfig) -> dict[str, object]:
    """What `config.json` says about a model of ours, for transformers to make the same one."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_embd": config.embed,
        "n_positions": config.context,
        "vocab_size": config.vocab_size,
        "n_inner": None,
        "activation_function": "gelu_new",  # the tanh approximation
        "layer_norm_epsilon": 1e-5,  # torch's default
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    }
