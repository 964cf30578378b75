"""`slipway render compose`: a file that `docker compose up` starts, in any folder, on one machine."""

import sys
from importlib import resources
from typing import Any

import click

from slipway.launch.resolve.sources import Sources
from slipway.options.numbers import Whole
from slipway.protocol.errors import LaunchError
from slipway.protocol.redact import secret_values
from slipway.render.command import make_command, make_option, matching
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
    from slipway.render.composefile import ComposeRequest, make_compose  # with PyYAML, which a launcher has no need of

    if options["nodes"] and options["nodes"] > 1:
        raise LaunchError(
            f"{options['nodes']} nodes are requested, but compose uses one machine. Type --nodes 1. On several machines start "
            "`docker run --network host` on each, as the README shows; compose/two-nodes.yaml simulates two nodes on one."
        )
    given = given_settings(sources) | read_runs(sources)
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
    if other := sources.variable("COMPOSE_FILE"):
        about = other.about("COMPOSE_FILE")
        click.echo(f"{about} is what Compose reads. For this file type: docker compose --file FILE up", err=True)
    template = resources.files("slipway").joinpath("templates/compose.yaml").read_text(encoding="utf-8")
    return make_compose(template, asked).encode()


compose = make_command(
    "compose",
    OPTIONS,
    _make_file,
    "Print a compose file that trains this on one machine, with TensorBoard under its profile.\n\nIt says what "
    "compose/compose.yaml does, which compose/README.md explains. The settings that are given, on the command line, in the "
    "environment or in .env, become part of the file; secrets do not.",
    "--gpus 2 gpt --preset small > compose.yaml && docker compose up",
)
