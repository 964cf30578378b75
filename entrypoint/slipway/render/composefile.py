"""The compose file that `slipway render compose` prints: compose/compose.yaml, with what was asked for. Pure.

templates/compose.yaml is that file as it stands. What it takes from the shell and from .env is written out; TensorBoard's port
alone stays a variable. The comments stay behind: they explain the file to its readers, who find it in the repository.
"""

import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from slipway.launch.resolve.catalog import WORKLOADS
from slipway.protocol.redact import make_redactor, secret_arguments
from slipway.render.request import MARGIN, JobRequest, without_variables
from slipway.render.yaml_text import yaml_text

HEAD = """\
# Made by: {command}
# Start it with `docker compose up`; `docker compose --profile tensorboard up` shows the metrics, too.
"""
PASSED_ON = "# {name} is a secret and not written here: it comes from the shell in which you run `docker compose up`.\n"


@dataclass(frozen=True, kw_only=True)
class ComposeRequest(JobRequest):
    """The same of a compose file. `secrets` are passed on from the shell; `gpus` None takes all of the machine."""

    command: tuple[str, ...]  # what made the file, as it was typed
    env_file: str | None = None


def make_compose(template: str, asked: ComposeRequest) -> str:
    """Return the file. Raises LaunchError (78) for bytes that are no text."""
    # What begins with x- was merged.
    file = {key: value for key, value in yaml.safe_load(template).items() if not key.startswith("x-")}
    file["name"] = asked.name or file["name"]
    for service in file["services"].values():
        service["image"] = asked.image or _default(service["image"])
    file["services"]["train"] = _training(file["services"]["train"], asked)
    # It may be typed again; in a comment it has no breaks of the line, and in a file no secrets.
    command = " ".join(shlex.quote(word) if word.isprintable() else repr(word) for word in asked.command)
    text = HEAD.format(command=make_redactor(secret_arguments(asked.command))(command))
    return text + "".join(PASSED_ON.format(name=name) for name in asked.secrets) + "\n" + yaml_text(file)


def _training(service: dict[str, Any], asked: ComposeRequest) -> dict[str, Any]:
    """The service that trains, its command behind its image."""
    image = service.pop("image")
    defaults = {name: value for name, text in service["environment"].items() if (value := _default(text))}
    given = {name: without_variables(value) for name, value in asked.env.items()} | dict.fromkeys(asked.secrets)
    changed = {
        # Beside the file, as .env is elsewhere; one that was named has to be there.
        "env_file": [{"path": without_variables(asked.env_file or ".env"), "required": bool(asked.env_file)}],
        "environment": defaults | given,
        "stop_grace_period": f"{asked.grace + MARGIN}s",
    }
    service = {"image": image, "command": ["run", *map(without_variables, asked.words)]} | service | changed
    if asked.words and asked.words[0] not in WORKLOADS:
        service["volumes"] = [*service["volumes"], ".:/workspace"]  # where the image looks for a program
    if asked.gpus == 0:  # as compose/cpu.yaml says it
        del service["deploy"]
        service["environment"]["NVIDIA_VISIBLE_DEVICES"] = "void"
    elif asked.gpus:
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        device["count"] = asked.gpus
    return service


def _default(text: str) -> str:
    """What Compose takes where the variable of `${NAME:-default}` is not set."""
    match = re.fullmatch(r"\$\{\w+:-(.*)\}", text)
    return match[1] if match else text
