"""The model card: README.md with the metadata that the Hub reads, data, results, settings and the command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slipway import __version__
from slipway.options.command import as_typed
from slipway.options.common import DEFAULT, is_given
from slipway.options.dataset import HUB, parse_hub_data
from slipway.protocol.printable import counted
from slipway.protocol.redact import redact_words
from slipway.train.export.trained import Trained

if TYPE_CHECKING:  # it takes 0.2 s to import, and every worker of a training would
    from huggingface_hub import ModelCardData

REPO = re.compile(r"[\w.-]+/[\w.-]+")
UNITS: Mapping[str, str] = MappingProxyType(
    {"val_loss": "mean cross entropy, nats", "bits_per_byte": "bits per byte", "accuracy": "share of right answers"}
)


@dataclass(frozen=True)
class About:
    """What a card says about all models of a form. `usage` loads one; {name} stands for its name."""

    what: str
    library: str
    task: str  # one of https://huggingface.co/tasks
    tags: tuple[str, ...]
    usage: str


def write_card(trained: Trained, folder: Path, name: str, about: About) -> None:
    """Write README.md into `folder`. No licence is stated: that is for who publishes it."""
    from huggingface_hub import ModelCard

    parameters = sum(tensor.numel() for tensor in trained.tensors.values())
    processes = trained.nodes * trained.processes_per_node
    card = ModelCard.from_template(
        card_data(trained, name, about),
        template_path=str(Path(__file__).parents[2] / "templates/model-card.md"),
        name=name,
        about=about,
        trained=trained,
        version=__version__,
        parameters=f"{parameters:,}",
        usage=about.usage.format(name=name),
        data=f"`{trained.options.get('dataset', trained.data)}`; as the run knew it: `{trained.data}`",
        metrics=evaluation_metrics(trained),
        step=int(trained.evaluation.get("step", 0)),
        units=UNITS,
        where=f"On {counted(trained.nodes, 'node')}, {counted(processes, 'process')} in all",
        command=training_command(trained),
        settings=[
            [cell(name), cell(as_typed(value)), cell(trained.sources.get(name, DEFAULT))]
            for name, value in trained.options.items()
        ],
    )
    card.save(folder / "README.md")


def evaluation_metrics(trained: Trained) -> dict[str, float]:
    """The metrics of the last evaluation."""
    return {name: value for name, value in trained.evaluation.items() if name != "step"}


def card_data(trained: Trained, name: str, about: About) -> ModelCardData:
    """The header that the Hub reads."""
    from huggingface_hub import EvalResult, ModelCardData

    dataset = str(trained.options.get("dataset", "synthetic"))
    scheme, _, source = dataset.partition(":")
    repo = parse_hub_data(source).repo.partition("@")[0] if scheme == HUB else None
    began = str(trained.options.get("model") or "")  # of finetune: a folder or a repo
    base = None if Path(began).exists() else REPO.fullmatch(began.partition("@")[0])
    return ModelCardData(
        model_name=name,
        library_name=about.library,
        pipeline_tag=about.task,
        tags=["slipway", *about.tags],
        datasets=[repo] if repo else None,
        base_model=base[0] if base else None,
        eval_results=[
            EvalResult(about.task, repo or dataset, dataset, metric, value)
            for metric, value in evaluation_metrics(trained).items()
            if "/" not in metric  # of the whole, not of a class
        ]
        or None,
    )


def training_command(trained: Trained) -> str:
    """The command that trains such a model again: the options that were given, wherever they came from."""
    words = ["slipway", "run", *(["--nnodes", str(trained.nodes)] if trained.nodes > 1 else [])]
    words += ["--nproc-per-node", str(trained.processes_per_node), trained.workload]
    for name, value in trained.options.items():
        if is_given(trained.sources.get(name, DEFAULT)) and value is not None:
            words += option_words(name.replace("_", "-"), value)
    return shlex.join(redact_words(words))


def option_words(name: str, value: Any) -> list[str]:
    """An option as it is typed."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def cell(text: str) -> str:
    """A text that does not break out of its cell of a table."""
    return f"`{text}`".replace("|", "\\|").replace("\n", " ") if text else ""
