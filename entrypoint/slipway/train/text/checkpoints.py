"""GPT-2 checkpoints as on the Hub: a folder with config.json and safetensors, read into our Gpt, and names for writing one.

`from_gpt2` and `to_gpt2` convert names and layout of the tensors both ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from slipway.protocol.durable import replace_file, write_file
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import listed
from slipway.train.hub.fetch import fetch_together
from slipway.train.models.gpt import Gpt, GptConfig
from slipway.train.placeholders import explain_page, explain_pointer, require_content
from slipway.train.snapshots.tensors import safetensors_chunks
from slipway.train.text.tokenizer import (
    BYTES,
    OTHER_FORMS,
    ByteTokenizer,
    Tokenizer,
    explain_other_form,
    open_tokenizer,
)
from slipway.train.worker.context import Context
from slipway.train.worker.prepared import agree_here

SHOWN = 6  # tensors in a message
ADAPTER = "adapter_config.json"  # of the library peft
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
INCLUDE = (CONFIG, ADAPTER, WEIGHTS, INDEX, "model-*.safetensors", TOKENIZER, *OTHER_FORMS)


def find_checkpoint(name: str, context: Context) -> Path:
    """The folder of a checkpoint, of a folder or the Hub. By every rank. Raises ConfigurationError, and what fetching raises."""
    here = agree_here(context, Path(name).is_dir(), f"--model {name}")
    return Path(name) if here else fetch_together(context, name, include=INCLUDE)


# The dimensions' names in config.json, and transformers' defaults (GPT2Config).
DIMENSIONS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "layers": ("n_layer", 12), "heads": ("n_head", 12), "embed": ("n_embd", 768),
        "context": ("n_positions", 1024), "vocab_size": ("vocab_size", 50257),
    }
)  # fmt: skip
# What our Gpt supports; the first value is transformers' default.
REQUIRED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    }
)


def read_checkpoint_config(folder: Path, dropout: float) -> GptConfig:
    """Return the dimensions in a checkpoint's config.json. Raises ConfigurationError if our Gpt cannot have them."""
    file = folder / CONFIG
    if (folder / ADAPTER).is_file() and not (folder / WEIGHTS).is_file() and not (folder / INDEX).is_file():
        raise ConfigurationError(explain_adapter(folder))
    if file.is_file():
        require_content(file)
    try:
        stored = json.loads(file.read_bytes())
        sizes = {ours: int(stored.get(name, default)) for ours, (name, default) in DIMENSIONS.items()}
    except FileNotFoundError:
        raise ConfigurationError(
            f"{folder} holds no {CONFIG}; it is no checkpoint as save_pretrained writes it."
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None
    if stored.get("model_type") != "gpt2":
        raise ConfigurationError(f"{file} says model_type {stored.get('model_type')}; finetune reads gpt2.")
    required = {**REQUIRED, "n_inner": (None, 4 * sizes["embed"])}
    different = [
        f"{name} {stored[name]} where it has {allowed[0]}"
        for name, allowed in required.items()
        if stored.get(name, allowed[0]) not in allowed
    ]
    if sizes["heads"] < 1 or sizes["embed"] % sizes["heads"]:
        different.append(f"n_head {sizes['heads']}, which does not divide n_embd {sizes['embed']}")
    if different:
        raise ConfigurationError(f"{file} is of a model that this GPT-2 is not: {', '.join(different)}.")
    return GptConfig(**sizes, dropout=dropout)


def explain_adapter(folder: Path) -> str:
    """Return what to do with a LoRA adapter, which contains changes to a model and not the model."""
    try:
        base = json.loads((folder / ADAPTER).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):  # then the advice names no model
        base = None
    return (
        f"{folder} holds an adapter (LoRA) of the model {base or 'that it was made of'} and not a whole model. Merge both, and "
        "type --model merged: python -c 'from peft import AutoPeftModelForCausalLM as M; "
        f'M.from_pretrained("{folder}").merge_and_unload().save_pretrained("merged")\''
    )


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors under our names, in fp32. Raises ConfigurationError if they are missing or damaged."""
    if (folder / WEIGHTS).is_file():
        names = [WEIGHTS]  # as in transformers: an index beside it is a leftover
    elif (folder / INDEX).is_file():
        names = sorted(set(read_index(folder / INDEX).values()))
    else:
        raise ConfigurationError(
            f"{folder} holds no {WEIGHTS}. Weights in other forms are not read (pickled ones can run code): load them with "
            "transformers and write them again with save_pretrained."
        )
    tensors: dict[str, torch.Tensor] = {}
    for name in names:
        if why := explain_pointer(folder / name) or explain_page(folder / name):
            raise ConfigurationError(why)
        try:
            tensors |= load_file(folder / name)
        except (SafetensorError, FileNotFoundError) as error:
            raise ConfigurationError(f"{folder / name} cannot be read: {error}") from None
    output = tensors.get("lm_head.weight")
    embedding = tensors.get("transformer.wte.weight", tensors.get("wte.weight"))
    if output is not None and embedding is not None and not torch.equal(output, embedding):
        raise ConfigurationError(f"{folder} has an output layer of its own; GPT-2 has the token embedding there.")
    if output is not None and embedding is None:  # safetensors' save_model keeps one of two names of a tensor
        tensors["wte.weight"] = output
    return {name: tensor.float() for name, tensor in from_gpt2(tensors).items()}


def read_index(file: Path) -> Mapping[str, str]:
    """Return which tensor is in which file. Raises ConfigurationError."""
    require_content(file)
    try:
        index: dict[str, Any] = json.loads(file.read_bytes())["weight_map"]
        return {tensor: str(Path(name).name) for tensor, name in index.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error!r}") from None


def load_checkpoint(model: Gpt, folder: Path) -> None:
    """Copy a checkpoint's weights into `model`. Raises ConfigurationError if names or shapes differ."""
    given, wanted = read_weights(folder), model.state_dict()
    odd = [f"{name} is missing" for name in wanted if name not in given]
    odd += [f"there is no {name} in a GPT-2 of that size" for name in given if name not in wanted]
    odd += [
        f"{name} is {shape(given[name])} and not {shape(tensor)}"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    if odd:
        raise ConfigurationError(f"The weights in {folder} are not those of its {CONFIG}: {listed(odd, SHOWN)}.")
    model.load_state_dict(given)


def shape(tensor: torch.Tensor) -> str:
    """Format a tensor's shape: 256 × 24."""
    return " × ".join(map(str, tensor.shape))


def read_tokenizer(folder: Path, config: GptConfig) -> Tokenizer:
    """Return a checkpoint's own tokenizer; bytes if it has none and its model has 256 tokens.

    Raises ConfigurationError if it is unknown which tokens the model learnt, or if they are not the model's.
    """
    if not (folder / TOKENIZER).is_file():
        if explained := explain_other_form(folder):
            raise ConfigurationError(explained)
        if config.vocab_size != ByteTokenizer.size:
            raise ConfigurationError(
                f"{folder} has no {TOKENIZER}, so there is no telling what the {config.vocab_size:,} tokens of its model "
                f"mean. Copy the file there, or fetch it again where there is a network. Or type --tokenizer with the path "
                "of one, or with bytes."
            )
        return open_tokenizer(BYTES)
    tokenizer = open_tokenizer(str(folder))
    require_tokens(tokenizer, config, f"The tokenizer of {folder}")
    return tokenizer


def require_tokens(tokenizer: Tokenizer, config: GptConfig, named: str) -> None:
    """Raise ConfigurationError if the tokenizer has tokens that the model does not have."""
    if tokenizer.size > config.vocab_size:
        raise ConfigurationError(f"{named} has {tokenizer.size:,} tokens, and its model {config.vocab_size:,}.")


TINY = GptConfig(layers=2, heads=4, embed=128, context=64, vocab_size=256)


def make_tiny(folder: Path, seed: int) -> None:
    """Write a tiny checkpoint for bytes, with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = to_gpt2(Gpt(TINY).state_dict())
    write_file(folder / WEIGHTS, safetensors_chunks(weights))
    replace_file(folder / CONFIG, json.dumps(gpt2_config(TINY), indent=2))


PREFIX = "transformer."
TRANSPOSED = re.compile(r"h\.\d+\.(attn\.(c_attn|c_proj)|mlp\.(c_fc|c_proj))\.weight")
# Causal masks that old versions of transformers saved, and the output layer, which is the token embedding again.
LEFT_OUT = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight")


def from_gpt2(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert a checkpoint's tensors to our Gpt's names and layout, without masks and the tied output layer."""
    ours: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        short = name.removeprefix(PREFIX)
        if not LEFT_OUT.fullmatch(short):
            ours[short] = transpose_matrix(short, tensor)
    return ours


def to_gpt2(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert our Gpt's tensors to what `GPT2LMHeadModel.save_pretrained` writes: with prefix, without the tied output layer."""
    return {PREFIX + name: transpose_matrix(name, tensor) for name, tensor in tensors.items()}


def transpose_matrix(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Convert between layouts: transpose what is a Conv1D there and a Linear here."""
    return tensor.t().contiguous() if TRANSPOSED.fullmatch(name) else tensor


def gpt2_config(config: GptConfig) -> dict[str, object]:
    """Return the content of `config.json` from which transformers makes the same model."""
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
