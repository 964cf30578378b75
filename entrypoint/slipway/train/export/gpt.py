"""A GPT as `transformers` keeps it: config.json, model.safetensors, generation_config.json and the tokenizer's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers

from slipway.train.export.card import About
from slipway.train.export.trained import Trained, read_object
from slipway.train.text.checkpoints import from_gpt2, gpt2_config, to_gpt2
from slipway.train.text.language import described_config, kept_tokenizer
from slipway.train.text.tokenizer import BYTES, FILE, SETTINGS, ByteTokenizer, Tokenizer

WEIGHTS = "model.safetensors"
END = "<|endoftext|>"  # how GPT-2 writes it
ABOUT = About(
    what="A GPT-2 style language model",
    library="transformers",
    task="text-generation",
    tags=("gpt2",),
    usage="""from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("{name}"), AutoTokenizer.from_pretrained("{name}")
print(tokenizer.decode(model.generate(**tokenizer("def ", return_tensors="pt"), max_new_tokens=50)[0]))""",
)


def write_files(trained: Trained, run: Path, folder: Path) -> None:
    """Write all but the model card into `folder`."""
    config = described_config(trained.model, float(trained.options.get("dropout", 0.0)))
    end = write_tokenizer(kept_tokenizer(run, trained.model), folder, config.context)
    ends = {"bos_token_id": end, "eos_token_id": end}  # it stands between documents
    # transformers refuses files that do not say whose they are.
    save_file(to_gpt2(trained.tensors), folder / WEIGHTS, metadata={"format": "pt"})
    write_config(folder / "config.json", {**gpt2_config(config), **ends, "dtype": "float32"})
    temperature = float(trained.options.get("temperature", 0.0))
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    write_config(folder / "generation_config.json", {**ends, **sampling})


def write_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> int | None:
    """Write the tokenizer, and how to use it. Returns the token that ends a document."""
    tokenizer.save(folder)
    settings = read_object(folder / SETTINGS)
    if tokenizer.identity == BYTES:
        byte_tokenizer().save(str(folder / FILE))
    usual = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,  # it would change the text
    }
    settings.pop("auto_map", None)  # names other people's code
    # transformers 4 returns token_type_ids where this is not said, and its GPT-2 adds an embedding for them.
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    if tokenizer.end is not None and not settings.get("eos_token"):
        settings["eos_token"] = tokenizers.Tokenizer.from_file(str(folder / FILE)).id_to_token(tokenizer.end)
    write_config(folder / SETTINGS, {**usual, **settings})
    return tokenizer.end


def byte_tokenizer() -> tokenizers.Tokenizer:
    """UTF-8 bytes as tokens: the id is the byte's value. Byte 0, which texts do not hold, is the end of a document."""
    vocabulary = {letter: byte for letter, byte in byte_vocabulary().items() if byte != ByteTokenizer.end}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={END: ByteTokenizer.end, **vocabulary}, merges=[]))
    tokenizer.add_special_tokens([END])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_vocabulary() -> dict[str, int]:
    """The letter that stands for each byte in the form: itself where it can be seen, the others follow from 256 on.

    https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode)
    """
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The weights under our Gpt's names."""
    return from_gpt2(load_file(folder / WEIGHTS))


def write_config(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n")
