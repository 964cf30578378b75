"""Fine-tuning a GPT-2 checkpoint: it is read as transformers reads it, judged before and after, and partly frozen."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import HubServer
from safetensors.torch import load_file, save_file
from torch.nn import functional
from training_jobs import Run

from slipway.protocol.mistake import ConfigurationError
from slipway.train.models.gpt import Gpt, adamw
from slipway.train.text.checkpoints import TINY, find_checkpoint, load_checkpoint, read_checkpoint_config
from slipway.train.text.files import read_stdlib
from slipway.train.worker.context import outside_job
from slipway.train.workloads.finetune import freeze

Start = Callable[..., Run]

# Sizes that no two of which are alike, so that a matrix the wrong way round does not fit.
SIZES = {"n_layer": 3, "n_head": 2, "n_embd": 24, "n_positions": 32, "vocab_size": 256}
SHORT = (
    "--steps", 4, "--batch-size", 8, "--warmup", 1, "--eval-samples", 33, "--sample-tokens", 0, "--precision", "fp32",
    "--lr", 1e-2, "--save-every", 0, "--eval-every", 0, "--log-every", 1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def reference() -> Any:
    """A small GPT-2 of the real transformers, with weights that show where one is missing."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(**SIZES, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture
def checkpoint(reference: Any, tmp_path: Path) -> Path:
    """That model, as save_pretrained writes it."""
    folder = tmp_path / "checkpoint"
    reference.save_pretrained(folder)
    return folder


def as_first_published(folder: Path) -> None:
    """Rewrite a checkpoint as OpenAI's own: without prefix, with causal masks and an output layer."""
    tensors = load_file(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    masks = {f"h.{block}.attn.bias": torch.ones(1, 1, 32, 32) for block in range(SIZES["n_layer"])}
    save_file({**old, **masks, "lm_head.weight": old["wte.weight"].clone()}, folder / "model.safetensors")


def as_is(folder: Path) -> None:
    """Leave it."""


def as_shards(folder: Path) -> None:
    """Rewrite a checkpoint as two files and their index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name, place in places.items() if place == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize("form", [as_is, as_first_published, as_shards])
def test_a_checkpoint_of_transformers_gives_the_same_logits(
    reference: Any, checkpoint: Path, form: Callable[[Path], None]
) -> None:
    form(checkpoint)
    model = Gpt(read_checkpoint_config(checkpoint, dropout=0.0))
    load_checkpoint(model, checkpoint)
    tokens = torch.arange(2 * 32).reshape(2, 32) * 5 % 256
    with torch.no_grad():
        assert (model(tokens) - reference(tokens).logits).abs().max() < 1e-5


def test_perplexity_before_training_is_that_of_transformers(train: Start, reference: Any, checkpoint: Path) -> None:
    run = train("finetune", "--model", checkpoint, *SHORT, "--steps", 1, "--eval-samples", 33)
    text = torch.frombuffer(bytearray(read_stdlib().validation), dtype=torch.uint8).long()
    length, samples = SIZES["n_positions"], 33
    stride = length * ((len(text) - 1) // length // samples)
    windows = torch.stack([text[start : start + length + 1] for start in range(0, samples * stride, stride)])
    with torch.no_grad():
        logits = reference(windows[:, :-1]).logits.double()
    losses = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    before = run.metrics[0]
    assert before["step"] == 0
    # A loss, which is the logarithm of a perplexity, moves by at most twice what the logits do: 1e-5, see above.
    assert before["val_loss"] == pytest.approx(float(losses), abs=2e-5)
    assert before["perplexity"] == pytest.approx(math.exp(float(losses)), rel=2e-5)


@pytest.mark.core
def test_without_arguments_a_tiny_checkpoint_is_made_and_its_perplexity_falls(
    train: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("finetune", "--steps", 60, "--eval-samples", 100, "--sample-tokens", 20)
    assert run.exit_code == 0
    [folder] = (tmp_path / "cache" / "slipway" / "checkpoints").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    told = re.search(
        r"perplexity on held-out text: ([\d.]+) before, ([\d.]+) after 60 steps\n", capsys.readouterr().out
    )
    assert told
    before, after = map(float, told.groups())
    judged = [line["perplexity"] for line in run.metrics if "perplexity" in line]
    assert judged == pytest.approx([before, after], abs=0.006)
    assert after < before / 4
    stored = json.loads((run.folder / "options.json").read_text())
    assert (stored["lr"], stored["sources"]["lr"]) == (3e-3, "default without --model")


def test_transformers_reads_the_tiny_checkpoint(train: Start, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    train("finetune", *SHORT, "--steps", 1)
    [folder] = (tmp_path / "cache" / "slipway" / "checkpoints").iterdir()
    model = Gpt(read_checkpoint_config(folder, dropout=0.0))
    load_checkpoint(model, folder)
    tokens = torch.arange(64)[None]
    with torch.no_grad():
        assert (model(tokens) - AutoModelForCausalLM.from_pretrained(folder)(tokens).logits).abs().max() < 1e-5


def test_two_processes_go_on_where_they_were_and_judge_the_beginning_once(job: Start, checkpoint: Path) -> None:
    options = ("finetune", "--model", checkpoint, *SHORT, "--train-blocks", 2, "--steps", 6, "--save-every", 2)
    whole = job(*options, folders=("whole",))
    killed = job(*options, kill=[1, 5])
    resumed = job(*options, resume="auto")
    assert (whole.exit_code, killed.exit_code, resumed.exit_code) == (0, 9, 0), resumed.output
    assert "resuming from" in resumed.output
    for name, tensor in whole.tensors("model", "optimizer").items():
        assert torch.equal(tensor, resumed.tensors("model", "optimizer")[name]), name
    judged = [
        [(line["step"], line["perplexity"]) for line in run.metrics if "val_loss" in line] for run in (whole, resumed)
    ]
    assert judged[0] == judged[1]
    assert [step for step, _ in judged[0]] == [0, 6]
    assert "before, " in resumed.output


def test_a_run_goes_on_with_as_many_blocks_as_it_began_with(train: Start, checkpoint: Path) -> None:
    options = ("finetune", "--model", checkpoint, *SHORT, "--steps", 1)
    train(*options, "--train-blocks", 2)
    run = train(*options, "--train-blocks", 1, resume="auto")
    assert run.outcomes[0]["outcome"] == "configuration"
    assert "train_blocks 2, not 1" in run.outcomes[0]["message"]


def test_what_is_frozen_stays_as_it_was_and_has_no_optimizer_state(job: Start, checkpoint: Path) -> None:
    run = job("finetune", "--model", checkpoint, *SHORT, "--train-blocks", 1)
    assert run.exit_code == 0, run.output
    given = Gpt(read_checkpoint_config(checkpoint, dropout=0.0))
    load_checkpoint(given, checkpoint)
    changed = {
        name
        for name, tensor in run.tensors("model").items()
        if not torch.equal(tensor, given.state_dict()[name.removeprefix("model/")])
    }
    assert changed == {f"model/{name}" for name in given.state_dict() if name.startswith(("h.2.", "ln_f."))}
    moments = [name for name in run.tensors("optimizer") if name.endswith("exp_avg")]
    assert len(moments) == len(changed)


def test_what_is_frozen_is_no_business_of_the_optimizer() -> None:
    model = Gpt(TINY)
    freeze(model, 1)
    held = {id(parameter) for group in adamw(model, 1e-3, 0.1).param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in (*model.h[-1].parameters(), *model.ln_f.parameters())}


def change(folder: Path, **values: Any) -> None:
    """Change a checkpoint's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def spoil_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def untie(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, folder / "model.safetensors")


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def add_tokenizer(folder: Path, tokens: int = 200) -> None:
    """Give a checkpoint a tokenizer of its own, with that many tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"odd": 0, "even": 1, **{f"word{number}": number for number in range(2, tokens)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="odd"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def test_a_checkpoint_reads_text_with_its_own_tokenizer(train: Start, checkpoint: Path, tmp_path: Path) -> None:
    add_tokenizer(checkpoint)
    text = tmp_path / "text"
    text.mkdir()
    for part in ("train", "validation"):
        (text / f"{part}.txt").write_text("odd even " * 600)
    run = train("finetune", "--model", checkpoint, *SHORT, "--steps", 30, "--dataset", f"file:{text}")
    assert run.exit_code == 0
    assert run.metrics[-1]["perplexity"] < 1.2  # of bytes it would be a few
    assert (run.folder / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()


REFUSED: dict[str, tuple[Callable[[Path], Any], tuple[object, ...], str]] = {
    "another model": (lambda folder: change(folder, model_type="llama"), (), "model_type llama; finetune reads gpt2"),
    "another activation": (
        lambda folder: change(folder, activation_function="gelu", n_inner=7),
        (),
        "activation_function gelu where it has gelu_new, n_inner 7 where",
    ),
    "another width": (
        lambda folder: change(folder, n_embd=48),
        (),
        "wte.weight is 256 × 24 and not 256 × 48",
    ),
    "heads": (lambda folder: change(folder, n_head=5), (), "n_head 5, which does not divide n_embd 24"),
    "no json": (lambda folder: (folder / "config.json").write_text("{"), (), "config.json cannot be read"),
    "no config": (lambda folder: (folder / "config.json").unlink(), (), "holds no config.json"),
    "pickled weights": (pickle_weights, (), "holds no model.safetensors. Weights in other forms are not read"),
    "damaged weights": (spoil_weights, (), "model.safetensors cannot be read"),
    "an output layer": (untie, (), "an output layer of its own"),
    "an old tokenizer": (
        lambda folder: (folder / "vocab.json").write_text("{}"),
        (),
        "in a form that is not read (vocab.json",
    ),
    "a large tokenizer": (lambda folder: add_tokenizer(folder, 300), (), "has 300 tokens, and its model 256"),
    "a long context": (as_is, ("--context", 33), "--context 33 is more than the 32 tokens"),
    "many blocks": (as_is, ("--train-blocks", 4), "--train-blocks 4 is more than the 3 blocks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_on_is_refused_by_name(train: Start, checkpoint: Path, case: str) -> None:
    spoil, more, told = REFUSED[case]
    spoil(checkpoint)
    run = train("finetune", "--model", checkpoint, *SHORT, *more)
    assert (run.exit_code, run.outcomes[0]["outcome"]) == (1, "configuration")
    assert told in run.outcomes[0]["message"]


def test_a_checkpoint_that_is_no_folder_is_refused(train: Start, tmp_path: Path) -> None:
    run = train("finetune", "--model", tmp_path / "none", *SHORT)
    assert "none is no folder. Type the path of a folder" in run.outcomes[0]["message"]


@pytest.mark.parametrize("here", [True, False])
def test_a_folder_that_only_some_nodes_have_is_not_looked_for_on_the_hub(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    with outside_job() as context:
        context.place = replace(context.place, world_size=2)
        monkeypatch.setattr(context, "total", lambda *numbers: [1])  # one of the two has it
        with pytest.raises(ConfigurationError, match=r"exists on some nodes, .* Copy it to every node"):
            find_checkpoint(str(checkpoint if here else tmp_path / "none"), context)


def test_a_checkpoint_comes_from_the_hub_once_for_both_processes(hub: HubServer, job: Start, checkpoint: Path) -> None:
    commit = hub.add("acme/gpt", {file.name: file.read_bytes() for file in checkpoint.iterdir()} | {"tf.h5": b"other"})
    run = job("finetune", "--model", "acme/gpt", *SHORT, "--steps", 1)
    assert run.exit_code == 0, run.output
    assert f"acme/gpt at its main revision is commit {commit}" in run.output
    assert len([request for request in hub.requests if request.startswith("GET /cdn/")]) == 1
    assert not [request for request in hub.requests if "tf.h5" in request]


def test_a_hub_that_fails_ends_the_run_with_its_reason_and_without_the_token(
    hub: HubServer, train: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], checkpoint: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add("acme/gpt", {file.name: file.read_bytes() for file in checkpoint.iterdir()})
    hub.fail("/cdn/", corrupt=True)
    run = train("finetune", "--model", "acme/gpt", *SHORT)
    assert run.outcomes[0]["outcome"] == "failed"
    assert run.outcomes[0]["message"].startswith("model.safetensors of acme/gpt arrived damaged")
    hub.faults.clear()
    fine = train("finetune", "--model", "acme/gpt", *SHORT, folder="fine")
    assert fine.exit_code == 0
    shown = capfd.readouterr()
    written = [
        path.read_bytes() for folder in (run.folder, fine.folder) for path in folder.rglob("*") if path.is_file()
    ]
    assert "Traceback" not in shown.err
    assert "hf_secret" in hub.tokens
    assert "hf_secret" not in shown.out + shown.err
    assert not [content for content in written if b"hf_secret" in content]
