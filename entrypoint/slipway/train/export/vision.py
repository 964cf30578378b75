"""A network for pictures as huggingface_hub's PyTorchModelHubMixin keeps it: config.json and model.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from slipway.train.export.card import About
from slipway.train.export.gpt import WEIGHTS, write_config
from slipway.train.export.trained import Trained

PREFIX = "network."  # the attribute of Classifier
CONFIG = ("model", "names", "size", "mean", "deviation")  # its arguments
ABOUT = About(
    what="A classifier of pictures",
    library="slipway",
    task="image-classification",
    tags=("pytorch_model_hub_mixin", "model_hub_mixin"),
    usage="""from slipway.train.models.classifier import Classifier

model = Classifier.from_pretrained("{name}")  # takes uint8 pictures of shape (n, 3, height, width)
print([model.names[place] for place in model(pictures).argmax(1)])""",
)


def write_files(trained: Trained, run: Path, folder: Path) -> None:
    """Write all but the model card into `folder`."""
    write_config(folder / "config.json", {name: trained.model[name] for name in CONFIG})
    tensors = {PREFIX + name: tensor.contiguous() for name, tensor in trained.tensors.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The weights under our own names."""
    return {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
