"""Text from a trained GPT, continued from a prompt."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from slipway.options.gpt import TextOptions
from slipway.protocol.files import SNAPSHOTS
from slipway.protocol.mistake import ConfigurationError
from slipway.train.models.gpt import Gpt
from slipway.train.models.stages import StagedGpt
from slipway.train.snapshots.snapshot import MODEL, load_newest
from slipway.train.text.language import LANGUAGE, described_config, kept_tokenizer
from slipway.train.text.tokenizer import Tokenizer

# Control characters but tab and line ends: a model that knows little writes them, and one of somebody else's may mean to.
STEERING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def continue_prompt(
    model: Gpt | StagedGpt, tokenizer: Tokenizer, prompt: str, tokens: int, temperature: float, seed: int
) -> str:
    """`prompt` and up to `tokens` more tokens as text, to the end of the document.

    What is no text becomes U+FFFD, and so does what would steer a terminal.

    Temperature 0 takes the likeliest token each time. Raises ConfigurationError for an empty prompt.
    """
    given = tokenizer.encode(prompt)
    if not given:
        raise ConfigurationError('The prompt is empty; type some text, for example --prompt "def ".')
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    written = model.continue_text(
        torch.tensor([given], device=device), tokens, temperature, torch.Generator(device).manual_seed(seed)
    )
    model.train(was_training)
    return read_until_end(tokenizer, written[0].tolist(), len(given))


def sample_writer(model: Gpt | StagedGpt, tokenizer: Tokenizer, options: TextOptions) -> Callable[[], str] | None:
    """What writes the text that the options of a training ask for; None where they ask for none."""
    if not options.sample_tokens:
        return None
    prompt, tokens = options.sample_prompt, options.sample_tokens
    return partial(continue_prompt, model, tokenizer, prompt, tokens, options.temperature, options.seed)


def read_until_end(tokenizer: Tokenizer, written: list[int], given: int) -> str:
    """The text of tokens up to the first end of a document behind the `given` ones."""
    ends = (place for place in range(given, len(written)) if written[place] == tokenizer.end)
    return STEERING.sub("\ufffd", tokenizer.decode(written[: next(ends, len(written))]))


def sample(run: Path, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """`prompt` continued by the newest valid snapshot of the run in the directory `run`, in its own tokens.

    Raises ConfigurationError where `run` holds none, or none that writes text.
    """
    found = load_newest(run / SNAPSHOTS, partial(print, file=sys.stderr), [MODEL])
    if found is None:
        raise ConfigurationError(f"{run} holds no snapshot that can be loaded; train one with: slipway gpt")
    path, snapshot = found
    workload = snapshot.state.get("workload")
    if workload not in LANGUAGE:
        by = f"the workload {workload}" if workload else "a script with a loop of its own"
        raise ConfigurationError(f"{path} was saved by {by}; only {', '.join(LANGUAGE)} write text.")
    model = Gpt(described_config(snapshot.state["model"]))
    model.load_state_dict(snapshot.tensors[MODEL])
    return continue_prompt(model, kept_tokenizer(run, snapshot.state["model"]), prompt, tokens, temperature, seed)
