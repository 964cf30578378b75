"""An export: a folder that is complete or absent, read back, and uploaded to the Hub.

slipway export runs/gpt-20260101-120000 my-model

The Hub's token comes from HF_TOKEN or the file at HF_TOKEN_PATH, and is never shown. An export is made under a temporary
name first.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError

from slipway import __version__
from slipway.options.common import Exportable
from slipway.options.target import RECORD, read_export_record, require_target
from slipway.protocol.durable import sync_folder, sync_tree
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.train.export import gpt, vision
from slipway.train.export.card import About, write_card
from slipway.train.export.trained import Trained, publishable, read_trained
from slipway.train.hub.causes import chain, explain_failure, hub_address
from slipway.train.loop.fit import TrainingResult
from slipway.train.text.language import LANGUAGE
from slipway.train.worker.context import Context
from slipway.train.worker.prepared import temporary_folder

FORMAT = 1


@dataclass(frozen=True)
class Form:
    """A format of an export: how a trained model is written, and how its tensors are read back under our own names."""

    write: Callable[[Trained, Path, Path], None]  # model, its run, the new folder
    read: Callable[[Path], dict[str, torch.Tensor]]
    about: About


TRANSFORMERS = Form(gpt.write_files, gpt.read_tensors, gpt.ABOUT)
HUB_MIXIN = Form(vision.write_files, vision.read_tensors, vision.ABOUT)
FORMS: Mapping[str, Form] = MappingProxyType({**dict.fromkeys(LANGUAGE, TRANSFORMERS), "vision": HUB_MIXIN})


def export_run(run: Path, folder: Path, step: int | None = None, name: str = "", aside: bool = False) -> bool:
    """Export a run's newest valid snapshot, or that of `step`, to `folder`; returns False if it is there already.

    `name` is the model's name in the model card, by default the folder's name. If `folder` has another export, that is
    renamed (`aside`) or refused.

    Raises ConfigurationError if there is nothing to export or something in the way, SnapshotError for a damaged snapshot,
    OSError if the folder cannot be written.
    """
    require_target(folder)
    trained, there = publishable(read_trained(run, step)), read_export_record(folder)
    if there is not None and there["snapshot"] == trained.snapshot:
        return False
    if there is not None and not aside:
        raise ConfigurationError(
            f"{folder} holds step {there.get('step')} of {there.get('run')} already, and nothing in it is overwritten. "
            "Type the name of a new folder."
        )
    if trained.workload not in FORMS:
        raise ConfigurationError(
            f"{run} was trained by {trained.workload}, which has no format for export. Export a run of "
            f"{', '.join(FORMS)}."
        )
    with temporary_folder(folder.absolute()) as temporary:
        form = FORMS[trained.workload]
        form.write(trained, run, temporary)
        write_card(trained, temporary, name or folder.absolute().name, form.about)
        (temporary / RECORD).write_text(json.dumps(export_record(trained), indent=1) + "\n")
        for file in temporary.iterdir():  # the library that writes the weights makes them unreadable for the group
            file.chmod((temporary / RECORD).stat().st_mode)
        sync_tree(temporary)
        if there is not None:
            folder.rename(free_name(folder, int(there.get("step", 0))))
        temporary.rename(folder.absolute())
        sync_folder(folder.absolute().parent)
    return True


def free_name(folder: Path, step: int) -> Path:
    """Return a free name beside `folder`, for the export of an earlier `step`."""
    first = folder.with_name(f"{folder.name}.step-{step:08d}")
    numbered = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([first], numbered) if not path.exists())


def export_record(trained: Trained) -> dict[str, Any]:
    """Return everything except the tensors, for JSON."""
    values = {field.name: getattr(trained, field.name) for field in dataclasses.fields(trained)}
    del values["tensors"]
    return {"format": FORMAT, "version": __version__, **values}


def read_export(folder: Path) -> Trained:
    """Undo `export_run`. Raises ConfigurationError if the folder is no export, is damaged, or is a later version's."""
    record = read_export_record(folder)
    if record is None:
        raise ConfigurationError(f"{folder} is neither a run directory nor an export: it has no {RECORD}.")
    version = record.pop("version", None)
    if record.pop("format", 0) != FORMAT:
        raise ConfigurationError(f"{folder} was written by slipway {version}; this is {__version__}.")
    try:
        return Trained(**record, tensors=FORMS[record["workload"]].read(folder))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{folder} is damaged ({error}); export its run again.") from None


def export_result(result: TrainingResult, options: Exportable, context: Context) -> None:
    """Write the folder that --export asks for, on rank 0, once training is finished.

    Raises ConfigurationError, with what to type instead, if something came in its way since training began.
    """
    if not options.export or result.outcome != Word.FINISHED or context.place.rank != 0:
        return
    context.beat(Phase.FINISH)
    folder, run = Path(options.export), context.place.run_dir
    try:
        new = export_run(run, folder, aside=True)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error} The run itself is complete; export it with: slipway export {shlex.quote(str(run))} DIR"
        ) from None
    context.say(f"exported to {folder}" if new else f"{folder} already contains this model")


def push_folder(folder: Path, repo: str, public: bool, message: str) -> str:
    """Upload an export to `repo`, made if need be (private unless `public`); its address. Raises ConfigurationError, HubError."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if constants.is_offline_mode():
        raise ConfigurationError("HF_HUB_OFFLINE is set; unset it to upload.")
    if not get_token():
        raise ConfigurationError(
            "The Hub takes uploads from accounts only: set HF_TOKEN to a token that may write, or HF_TOKEN_PATH to a file "
            f"that holds it. Make one at {hub_address()}/settings/tokens."
        )
    api = HfApi()
    try:
        made = api.create_repo(repo, private=not public, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=message)
    except Exception as error:
        for cause in chain(error):
            if isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403):
                raise ConfigurationError(
                    f"The Hub does not let the owner of the token in use write to {repo} ({cause.response.status_code}). "
                    f"Type a name of your own account's, and use a token that may write: "
                    f"{hub_address()}/settings/tokens"
                ) from None
        raise explain_failure(error, repo, None, "model") from error
    return str(made)
