"""The GPT model, and text from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from training_jobs import Run

from slipway.options import parse
from slipway.options.gpt import GptOptions
from slipway.protocol.mistake import ConfigurationError
from slipway.train.models.gpt import Gpt, GptConfig, adamw
from slipway.train.text.language import sample
from slipway.train.text.tokenizer import ByteTokenizer
from slipway.train.workloads.gpt import model_config

SMALL = GptConfig(layers=2, heads=2, embed=16, context=8, vocab_size=256)


def preset_config(preset: str) -> GptConfig:
    options = parse(GptOptions, ["--preset", preset])
    return model_config(options, ByteTokenizer())


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("tiny", 842_496),
        ("small", 10_844_160),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_presets_have_the_published_number_of_parameters(preset: str, count: int) -> None:
    with torch.device("meta"):
        model = Gpt(preset_config(preset))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("autocast", [False, True])
def test_no_token_sees_those_after_it(autocast: bool) -> None:
    model = Gpt(SMALL).eval()
    tokens = torch.randint(256, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 256
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_a_token_sees_those_before_it() -> None:
    model = Gpt(SMALL).eval()
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 256
    assert not torch.equal(model(tokens)[:, -1], model(changed)[:, -1])


def test_the_embedding_is_the_output_layer() -> None:
    model = Gpt(SMALL)
    tokens = torch.tensor([[1, 2, 3]])
    before = model(tokens)[0, 0, 200]
    with torch.no_grad():
        model.wte.weight[200] += 1.0  # never an input here
    assert model(tokens)[0, 0, 200] != before
    assert [name for name in model.state_dict() if "head" in name] == []


@torch.no_grad()
def test_weights_begin_as_gpt2_does() -> None:
    model = Gpt(GptConfig(layers=8, heads=2, embed=128, context=64, vocab_size=256))
    assert float(model.wte.weight.std()) == pytest.approx(0.02, rel=0.05)
    assert float(model.h[3].mlp.c_fc.weight.std()) == pytest.approx(0.02, rel=0.05)
    assert float(model.h[3].mlp.c_proj.weight.std()) == pytest.approx(0.02 / 4, rel=0.05)
    assert float(model.h[3].attn.c_proj.weight.std()) == pytest.approx(0.02 / 4, rel=0.05)
    tokens = torch.randint(256, (4, 64))
    assert float(model(tokens, tokens.roll(1))) == pytest.approx(5.55, abs=0.1)


def test_matrices_decay_and_vectors_do_not() -> None:
    optimizer = adamw(Gpt(SMALL), 0.1, 0.3)
    for group in optimizer.param_groups:
        assert group["weight_decay"] == (0.3 if group["params"][0].dim() > 1 else 0.0)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(Gpt(SMALL).parameters()))


@torch.no_grad()
def test_attention_under_bf16_stays_close_to_fp32() -> None:
    torch.manual_seed(0)
    model = Gpt(SMALL)
    tokens = torch.randint(256, (4, 8))
    plain = model(tokens, tokens.roll(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert float(model(tokens, tokens.roll(1))) == pytest.approx(float(plain), abs=0.01)


def test_a_run_continues_a_prompt(train: Callable[..., Run]) -> None:
    run = train("gpt", "--layers", 1, "--heads", 1, "--embed", 8, "--context", 8, "--steps", 2, "--sample-tokens", 0)
    text = sample(run.folder, "def ", 20, 0.8, 1)
    assert text.startswith("def ")
    assert len(text) > 4
    assert text == sample(run.folder, "def ", 20, 0.8, 1)
    assert text != sample(run.folder, "def ", 20, 0.8, 2)
    assert sample(run.folder, "def ", 20, 0.0, 1) == sample(run.folder, "def ", 20, 0.0, 2)
    with pytest.raises(ConfigurationError, match="The prompt is empty"):
        sample(run.folder, "", 20, 0.8, 1)


def test_text_cannot_be_had_from_other_runs(train: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no snapshot"):
        sample(tmp_path, "def ", 1, 1.0, 0)
    run = train("linear", "--steps", 1)
    with pytest.raises(ConfigurationError, match="only gpt, finetune, pipeline write text"):
        sample(run.folder, "def ", 1, 1.0, 0)
