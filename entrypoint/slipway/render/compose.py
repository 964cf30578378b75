"""`slipway render compose`: a file that `docker compose up` starts, in any folder, on one machine."""

import sys
from importlib import resources
from typing import Any

import click

from slipway.cli.arguments import read_sources
from slipway.launch.resolve.redact import secret_values
from slipway.protocol.errors import LaunchError
from slipway.render.command import make_command, matching
from slipway.render.words import given_settings, read_image, read_nodes, read_runs, read_words, require_enough


def _show(words: tuple[str, ...], options: dict[str, Any]) -> None:
    from slipway.render.composefile import ComposeRequest, make_compose  # with PyYAML, which a launcher has no need of

    sources = read_sources(options, {})
    _require_one_node(read_nodes(sources, options["nodes"]))
    given = given_settings(sources) | read_runs(sources)
    secrets = secret_values(given)
    require_enough(options["gpus"], sources)
    asked = ComposeRequest(
        command=("slipway", *sys.argv[1:]),
        name=options["name"],
        image=read_image(options["image"], sources),
        gpus=options["gpus"],
        words=tuple(read_words(words, sources)),
        env={name: value for name, value in given.items() if name not in secrets},
        secrets=[name for name in secrets if sources.environ.get(name)],  # a file's reach the container with that file
        env_file=options["env_file"],
        grace=int(sources.value("SLIPWAY_GRACE_SECONDS")),
    )
    if other := sources.variable("COMPOSE_FILE"):
        about = other.about("COMPOSE_FILE")
        click.echo(f"{about} is what Compose reads. For this file type: docker compose --file FILE up", err=True)
    template = resources.files("slipway").joinpath("templates/compose.yaml").read_text(encoding="utf-8")
    click.echo(make_compose(template, asked).encode(), nl=False)


def _require_one_node(nodes: int | None) -> None:
    """Raise LaunchError where more than one is asked for."""
    if nodes and nodes > 1:
        raise LaunchError(
            f"{nodes} nodes are asked for, but compose ends at one machine. Type --nodes 1. On several machines start `docker "
            "run --network host` on each, as the README shows; compose/two-nodes.yaml rehearses two nodes on one."
        )


PROJECT = matching(r"[a-z0-9][a-z0-9_-]*", "small letters, digits, _ and - are allowed, a letter or digit first")


def _options() -> list[click.Parameter]:
    rows: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        ("--gpus", "N", {"type": click.IntRange(0, 1024)}, "GPUs; 0 trains on the CPU.  [default all of the machine]"),
        (
            "--image",
            "IMAGE",
            {},
            "NAME:TAG or REGISTRY/NAME:TAG, or with @sha256:DIGEST.  [IMAGE, default slipway:dev]",
        ),
        (
            "--name",
            "NAME",
            {"callback": PROJECT},
            "What the project is called, so its volumes NAME_checkpoints and NAME_data, too.  [default slipway]",
        ),
    )
    return [click.Option([name], metavar=metavar, help=text, **kind) for name, metavar, kind, text in rows]


compose = make_command(
    "compose",
    _options(),
    _show,
    "Print a compose file that trains this on one machine, with TensorBoard under its profile.\n\nIt says what "
    "compose/compose.yaml does, which compose/README.md explains. The settings that are given, on the command line, in the "
    "environment or in .env, become part of the file; secrets do not.",
    "--gpus 2 gpt --preset small > compose.yaml && docker compose up",
)
