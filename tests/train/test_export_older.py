"""An export under transformers 4, in an environment of its own; what version 5 makes of it is in test_export.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_export import GPT, TEXT, make_tokenizer, our_logits, our_model
from training_jobs import Run

pytestmark = [pytest.mark.usefixtures("shared_cache"), pytest.mark.timeout(600)]

VERSION = "4.57.6"
GIVEN = TEXT[:20]
# What pip says, after its own retries, where it reaches no registry.
UNREACHABLE = ("connection broken", "Could not find a version", "No matching distribution found")
READ = """
import json, sys, torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model, loaded = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
given = tokenizer(text, return_tensors="pt")
with torch.no_grad():
    logits = model.eval()(**given).logits
written = model.generate(**given, max_new_tokens=8, min_new_tokens=8, do_sample=False)
print(json.dumps({
    "version": transformers.__version__, "wrong keys": [name for names in loaded.values() for name in names],
    "returns": sorted(given), "tokens": given["input_ids"].tolist(), "text": tokenizer.decode(given["input_ids"][0]),
    "logits": logits.tolist(), "written": written.tolist(), "eos": [tokenizer.eos_token, model.generation_config.eos_token_id],
}))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers 4 and all that it needs, but torch, which is this environment's."""
    folder = tmp_path_factory.mktemp("transformers")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
    done = subprocess.run([*pip, f"transformers=={VERSION}"], capture_output=True, text=True, timeout=300)
    if done.returncode and any(words in done.stderr for words in UNREACHABLE):
        pytest.skip(f"no package registry gives transformers {VERSION}: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder


def read_with(older: Path, folder: Path) -> dict[str, Any]:
    """What transformers of `older` says about an exported folder."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder), GIVEN], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(older), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("kind", ["bytes", "a tokenizer of its own"])
def test_transformers_4_gives_the_same_logits_and_writes_the_same_text(
    train: Callable[..., Run], older: Path, tmp_path: Path, kind: str
) -> None:
    data: list[str] = []
    tokens = list(GIVEN.encode())
    if kind != "bytes":
        (tmp_path / "text.txt").write_text(TEXT * 200)
        tokens = make_tokenizer(tmp_path / "tokenizer").encode(GIVEN).ids
        data = ["--dataset", f"file:{tmp_path / 'text.txt'}", "--tokenizer", str(tmp_path / "tokenizer")]
    train("gpt", *GPT, *data, "--steps", 2, "--export", tmp_path / "model")
    theirs, given = read_with(older, tmp_path / "model"), torch.tensor([tokens])
    assert (theirs["version"], theirs["wrong keys"]) == (VERSION, [])
    assert theirs["returns"] == ["attention_mask", "input_ids"]
    assert (theirs["tokens"], theirs["text"]) == ([tokens], GIVEN)
    assert theirs["eos"] == ["<|endoftext|>", 0]
    torch.testing.assert_close(torch.tensor(theirs["logits"]), our_logits(tmp_path / "run", given), atol=1e-5, rtol=0)
    ours = our_model(tmp_path / "run").continue_text(given, 8, 0.0, torch.Generator())
    assert theirs["written"] == ours.tolist()
