"""`slipway render compose`: a file that `docker compose up` starts, in any folder, on one machine: compose/compose.yaml, with
what was asked for.

templates/compose.yaml is that file as it stands. What it takes from the shell and from .env is written out; TensorBoard's port
alone stays a variable. The comments are left out: they explain the file to its readers, who find it in the repository.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import click

from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.sources import Sources
from slipway.options.numbers import Whole
from slipway.protocol.errors import LaunchError
from slipway.protocol.redact import make_redactor, secret_arguments, secret_values
from slipway.render.command import make_command, make_option, matching
from slipway.render.request import MARGIN, JobRequest, without_variables
from slipway.render.words import (
    given_settings,
    read_gpus,
    read_image,
    read_request,
    read_runs,
    read_words,
    require_enough,
)

PROJECT = matching(r"[a-z0-9][a-z0-9_-]*", "small letters, digits, _ and - are allowed, a letter or digit first")
OPTIONS = (
    make_option("--gpus", "N", "GPUs; 0 trains on the CPU.  [default all of the machine]", type=Whole(0, 1024)),
    make_option(
        "--image", "IMAGE", "NAME:TAG or REGISTRY/NAME:TAG, or with @sha256:DIGEST.  [IMAGE, default slipway:dev]"
    ),
    make_option(
        "--name",
        "NAME",
        "Name of the project and its volumes NAME_checkpoints and NAME_data.  [default slipway]",
        callback=PROJECT,
    ),
)


def _make_file(words: tuple[str, ...], options: dict[str, Any], sources: Sources) -> bytes:
    if options["nodes"] and options["nodes"] > 1:
        raise LaunchError(
            f"{options['nodes']} nodes are requested, but compose uses one machine. Type --nodes 1. On several machines start "
            "`docker run --network host` on each, as the README shows; compose/two-nodes.yaml simulates two nodes on one."
        )
    given = given_settings(sources) | read_runs(sources)
    if other := sources.variable("COMPOSE_FILE"):
        about = other.about("COMPOSE_FILE")
        click.echo(f"{about} is what Compose reads. For this file type: docker compose --file FILE up", err=True)
        if "compose/" in other.value:  # a file of the checkout
            given["COMPOSE_FILES"] = "compose.yaml"  # as the example calls it, for the commands that a run suggests
    name = Path("/proc/self/fd/1").resolve().name  # where a shell writes it to
    if name.endswith((".yaml", ".yml")) and name != "compose.yaml":  # that one is found without
        given["COMPOSE_FILES"] = name
    image = read_image(options["image"], sources)
    gpus = read_gpus(options["gpus"], image)
    require_enough(gpus, sources)
    asked = read_request(
        ComposeRequest,
        read_words(words, sources),
        options,
        sources,
        given,
        image=image,
        gpus=gpus,
        command=("slipway", *sys.argv[1:]),
        # Those of a file reach the container with that file.
        secrets=tuple(name for name in secret_values(given) if sources.environ.get(name)),
    )
    template = resources.files("slipway").joinpath("templates/compose.yaml").read_text(encoding="utf-8")
    return make_compose(template, asked).encode()


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
    import yaml

    from slipway.render.yaml_text import yaml_text  # with PyYAML, which a launcher has no need of

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
    del defaults["COMPOSE_FILES"]  # this file may have any name
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


compose = make_command(
    "compose",
    OPTIONS,
    _make_file,
    "Print a compose file that trains a workload or script on one machine; its profile tensorboard adds TensorBoard.\n\nIt is "
    "compose/compose.yaml (explained in compose/README.md) with your settings filled in. Settings from the command line, the "
    "environment or .env become part of it; secrets do not.",
    "--gpus 2 gpt --preset small > compose.yaml && docker compose up",
)
