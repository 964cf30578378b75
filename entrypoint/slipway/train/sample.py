"""Text from a trained GPT, continued from a prompt."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from slipway.train.models.gpt import Gpt, GptConfig
from slipway.train.options import ConfigurationError
from slipway.train.resume import SNAPSHOTS
from slipway.train.snapshot import load_newest


def continue_prompt(model: Gpt, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """`prompt` and `tokens` more bytes, decoded as UTF-8; bytes that are none become U+FFFD.

    Temperature 0 takes the likeliest byte each time. Raises ConfigurationError for an empty prompt.
    """
    if not prompt:
        raise ConfigurationError('The prompt is empty; type some text, for example --prompt "def ".')
    device = next(model.parameters()).device
    given = torch.tensor([list(prompt.encode())], device=device)
    was_training = model.training
    model.eval()
    written = model.continue_text(given, tokens, temperature, torch.Generator(device).manual_seed(seed))
    model.train(was_training)
    # A model whose vocabulary is larger than the 256 bytes of its data can still name a token that is no byte.
    return bytes(min(token, 255) for token in written[0].tolist()).decode(errors="replace")


def sample(run: Path, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """`prompt` continued by the newest valid snapshot of the gpt run in the directory `run`.

    Raises ConfigurationError where `run` holds none.
    """
    found = load_newest(run / SNAPSHOTS, lambda text: print(text, file=sys.stderr))
    if found is None:
        raise ConfigurationError(f"{run} holds no snapshot that can be loaded; train one with: slipway gpt")
    path, snapshot = found
    workload = snapshot.state.get("workload")
    if workload != "gpt":
        raise ConfigurationError(f"{path} was saved by the workload {workload}; only gpt writes text.")
    model = Gpt(GptConfig(**snapshot.state["model"]))
    model.load_state_dict(snapshot.tensors["model"])
    return continue_prompt(model, prompt, tokens, temperature, seed)
