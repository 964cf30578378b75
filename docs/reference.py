"""Writes the pages of reference from the code: settings.md, exit-codes.md, cli.md.

    .venv/bin/python docs/reference.py

A test compares the pages with what this would write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click

from slipway.cli.cli import slipway
from slipway.launch.resolve.settings import SETTINGS
from slipway.launch.resolve.sources import LIBRARIES
from slipway.options import WORKLOADS
from slipway.options.command import click_command
from slipway.protocol.errors import EXITS

FOLDER = Path(__file__).parent
WIDTH = 110  # characters of a help text
WRITTEN = "<!-- docs/reference.py writes this page. -->"


def exit_codes() -> Iterator[str]:
    """The lines of exit-codes.md."""
    yield from ["# Exit codes", "", WRITTEN, ""]
    yield "What a launcher ends with: [`EXITS`](../entrypoint/slipway/protocol/errors.py) is the one table, by which manifests,"
    yield "sbatch files and these pages are tested. `outcome.json` in the run's folder holds the word, and the reason with it."
    yield from ["", "| code | word | meaning | a scheduler should |", "| --- | --- | --- | --- |"]
    yield from (f"| {code} | {row.word} | {row.meaning} | {row.then} |" for code, row in EXITS.items())
    yield from [
        "",
        "A script of your own may end with any code: what is not 0 becomes 1, and the code itself stands in the reason. What",
        "NCCL and CUDA say of the node or of a setting counts there as well ([77 and 78](ddp.md#errors-of-nccl)), and",
        "so does the time-out of a collective ([76](own-script.md#when-it-fails)).",
    ]
    yield "A launcher that is killed cannot choose: 137 (SIGKILL) or 143 (SIGTERM) is then what its container or shell reports."
    yield from [
        "",
        "Who acts on them: [Slurm](../slurm/README.md), [Kubernetes](../k8s/README.md), and Slipway itself, which tries 1 and 76",
    ]
    yield "again before it ends ([fault tolerance](fault-tolerance.md))."


def settings() -> Iterator[str]:
    """The lines of settings.md."""
    yield from ["# Settings", "", WRITTEN, ""]
    yield "What the launcher can be told, as an option, in the environment, or in a `.env` file, in that order of strength;"
    yield "`slipway plan` shows every value, where it came from and what it overrides."
    yield "The table in the code is [`SETTINGS`](../entrypoint/slipway/launch/resolve/settings.py); options of a workload are in"
    yield "[the command line](cli.md)."
    libraries = ", ".join(f"`{name}…`" for name in LIBRARIES)
    yield from [
        "",
        "Of `.env`, or `--env-file FILE`, those lines count that name a setting, `IMAGE`, `COMPOSE_FILE`, or a variable of",
        f"torch's libraries ({libraries}), which the workers get.",
        "They are plain `NAME=value`, without quotes, `$` or `export`; else they are an error (78), as is a name in",
        "`SLIPWAY_…` that is no setting. All other lines are yours: they may look as they like, and the workers do not get them.",
        "Names that look like one of these, mistyped (`MASTER_ADRR`), are warned of, and in the environment unknown ones in",
        "`SLIPWAY_…`.",
    ]
    yield from [
        "",
        "| setting | other names | option | values | default | what it is |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in SETTINGS:
        names = ", ".join(f"`{name}`" for name in row.aliases) or "–"
        option, default = (f"`{text}`" if text else "–" for text in (row.option, row.default))
        values = "1 or 0" if row.flag else f"`{row.metavar}`".replace("|", "\\|")
        yield f"| `{row.name}` | {names} | {option} | {values} | {default} | {row.help} |"


def cli() -> Iterator[str]:
    """The lines of cli.md."""
    yield from ["# Command line", "", WRITTEN, ""]
    yield "What `--help` says, for every command and every workload."
    context = click.Context(slipway, info_name="slipway", **slipway.context_settings)
    yield from helped("slipway", slipway, None)
    for name in slipway.list_commands(context):
        command = slipway.get_command(context, name)
        assert command
        yield from helped(f"slipway {name}", command, context)
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            for more in command.list_commands(inner):
                below = command.get_command(inner, more)
                assert below
                yield from helped(f"slipway {name} {more}", below, inner)
    for name, kind in WORKLOADS.items():
        yield from helped(f"slipway {name}", click_command(kind), None)


def helped(name: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    """A section with a command's help."""
    told = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, info_name=name.rpartition(" ")[2] if parent else name, parent=parent, **told)
    yield from ["", f"## {name}", "", "```text", *context.get_help().splitlines(), "```"]


PAGES: dict[str, Callable[[], Iterator[str]]] = {"exit-codes.md": exit_codes, "settings.md": settings, "cli.md": cli}


def page(name: str) -> str:
    """What stands in a page."""
    return "".join(f"{line.rstrip()}\n" for line in PAGES[name]())


if __name__ == "__main__":
    for file in PAGES:
        (FOLDER / file).write_text(page(file))
