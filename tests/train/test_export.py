"""What `slipway export` and `--export` write, as those who use it read it."""

from __future__ import annotations

import dataclasses
import getpass
import json
import shlex
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from huggingface_hub import ModelCard
from tokenizers import decoders, models, pre_tokenizers, trainers
from training_jobs import Run

from slipway.options import parse
from slipway.options.gpt import GptOptions
from slipway.train.export import export_run, read_export
from slipway.train.export.gpt import write_tokenizer
from slipway.train.export.trained import publishable, read_trained, without_folders
from slipway.train.models.gpt import Gpt
from slipway.train.text.language import described_config
from slipway.train.text.tokenizer import open_tokenizer

pytestmark = pytest.mark.usefixtures("shared_cache")

Start = Callable[..., Run]

GPT = (
    "--layers", 2, "--heads", 2, "--embed", 32, "--context", 32, "--batch-size", 8, "--warmup", 4, "--save-every", 2,
    "--eval-samples", 33, "--sample-tokens", 4, "--precision", "fp32",
)  # fmt: skip
TEXT = "def größe(x):\n\treturn 'π ≈ 3' \r\n\x01 # 🙂  "


@pytest.fixture
def run(train: Start) -> Path:
    """A run of a tiny GPT on bytes, with snapshots at steps 2 and 4."""
    done = train("gpt", *GPT, "--steps", 4)
    assert done.exit_code == 0
    return done.folder


def our_model(run: Path) -> Gpt:
    trained = read_trained(run)
    model = Gpt(described_config(trained.model)).eval()
    model.load_state_dict(trained.tensors)
    return model


def our_logits(run: Path, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = our_model(run)(tokens)
    return logits


def their_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told  # no key is missing, none is too many
    model.eval()
    with torch.no_grad():
        logits: torch.Tensor = model(tokens).logits
    return logits


@pytest.mark.core
def test_transformers_reads_an_export_and_gives_the_same_logits(run: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = tmp_path / "model"
    assert export_run(run, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(TEXT[:30])["input_ids"]
    assert tokens == list(TEXT[:30].encode())
    assert tokenizer.decode(tokens) == TEXT[:30]
    given = torch.tensor([tokens[:32]])
    torch.testing.assert_close(their_logits(folder, given), our_logits(run, given), atol=1e-5, rtol=0)

    model = AutoModelForCausalLM.from_pretrained(folder)
    written = model.generate(given[:, :4], max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert written.tolist() == our_model(run).continue_text(given[:, :4], 8, 0.0, torch.Generator()).tolist()
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 0


def test_a_run_with_a_tokenizer_of_its_own_gives_it_along(train: Start, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "text.txt").write_text(TEXT * 200)
    library = make_tokenizer(tmp_path / "tokenizer")
    data = ("--dataset", f"file:{tmp_path / 'text.txt'}", "--tokenizer", tmp_path / "tokenizer")
    train("gpt", *GPT, *data, "--steps", 2, "--export", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokens = tokenizer(TEXT)["input_ids"]
    assert tokens == library.encode(TEXT).ids
    assert tokenizer.decode(tokens) == TEXT
    assert tokenizer.eos_token == "<|endoftext|>"
    assert json.loads((tmp_path / "model" / "config.json").read_text())["eos_token_id"] == 0
    assert "auto_map" not in (tmp_path / "model" / "tokenizer_config.json").read_text()
    given = torch.tensor([tokens[:32]])
    torch.testing.assert_close(
        their_logits(tmp_path / "model", given), our_logits(tmp_path / "run", given), atol=1e-5, rtol=0
    )


def make_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """A small one of GPT-2's kind, with settings that name somebody's code."""
    folder.mkdir()
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    library.train_from_iterator([TEXT * 20], trainer)
    library.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|endoftext|>", "auto_map": {"AutoTokenizer": ["theirs.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return library


def test_the_model_card_tells_data_results_settings_and_a_command_that_trains_the_same(
    train: Start, tmp_path: Path
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("lr: 0.001\nsample_prompt: 'a | b'\n")
    run = train("gpt", *GPT, "--steps", 3, "--config", config, "--export", tmp_path / "model")
    card = ModelCard.load(tmp_path / "model" / "README.md")
    results = {result.metric_type: result.metric_value for result in card.data.eval_results or ()}
    assert results == {name: value for name, value in run.metrics[-1].items() if name not in ("time", "step")}
    assert "val_loss" in results
    assert card.data.library_name == "transformers"
    assert card.data.to_dict().get("license") is None
    assert "| `lr` | `0.001` | `…/settings.yaml line 1` |" in card.text
    assert "`a \\| b`" in card.text

    command = shlex.split(card.text.partition("```sh\n")[2].partition("\n```")[0])
    assert command[:5] == ["slipway", "run", "--nproc-per-node", "1", "gpt"]
    again = parse(GptOptions, command[5:]).values()
    stored = json.loads((run.folder / "options.json").read_text())
    assert again == {name: value for name, value in stored.items() if name in again} | {"config": None, "export": None}


def test_an_export_gives_away_no_folder_host_or_user(train: Start, tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("lr: 0.001\n")
    folder = tmp_path / "model"
    train("gpt", *GPT, "--steps", 2, "--config", config, "--export", folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "slipway.json", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    text = "".join(path.read_text() for path in folder.iterdir() if path.suffix != ".safetensors")
    secrets = [str(tmp_path.parent), str(Path.home()), socket.gethostname(), f"/{getpass.getuser()}", str(Path.cwd())]
    assert [secret for secret in secrets if len(secret) > 1 and secret in text] == []
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("file:/home/ann/my texts/corpus.txt", "file:…/corpus.txt"),
        ("folder:/data/birds/", "folder:…/birds/"),
        ("~ann/tokens", "…/tokens"),
        ("/home/ann/settings.yaml line 3", "…/settings.yaml line 3"),
        ("file:texts/corpus.txt", "file:texts/corpus.txt"),
        ("hub:owner/name@main", "hub:owner/name@main"),
        ("a / b", "a / b"),
        (0.5, 0.5),
    ],
)
def test_absolute_paths_are_cut_to_their_last_part(text: object, shown: object) -> None:
    assert without_folders(text) == shown


def test_an_export_is_read_back_as_it_was(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "model")
    trained, back = publishable(read_trained(run)), read_export(tmp_path / "model")
    assert dataclasses.replace(back, tensors={}) == dataclasses.replace(trained, tensors={})
    assert back.tensors.keys() == trained.tensors.keys()
    assert all(torch.equal(tensor, trained.tensors[name]) for name, tensor in back.tensors.items())


def test_transformers_returns_what_the_model_takes(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(open_tokenizer("bytes"), tmp_path, 64)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert sorted(tokenizer("the sea")) == ["attention_mask", "input_ids"]
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|endoftext|>", 0)
    assert tokenizer("the sea")["input_ids"] == list(b"the sea")
