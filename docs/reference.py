"""Writes the pages of reference from the code: settings.md, exit-codes.md, cli.md, and the tables of messages in rendezvous.md.

    .venv/bin/python docs/reference.py

A test compares the pages with what this would write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from slipway.cli.cli import slipway
from slipway.launch.rendezvous import client, rules
from slipway.launch.rendezvous.rules import Stage
from slipway.launch.resolve.settings import SETTINGS
from slipway.launch.resolve.sources import LIBRARIES
from slipway.options import WORKLOADS
from slipway.options.command import click_command
from slipway.protocol.errors import EXITS

FOLDER = Path(__file__).parent
WIDTH = 110  # characters of a help text
WRITTEN = "<!-- docs/reference.py writes this page. -->"
TABLES, END = "<!-- docs/reference.py writes these tables. -->", "<!-- The end of these tables. -->"


def exit_codes() -> Iterator[str]:
    """The lines of exit-codes.md."""
    yield from ["# Exit codes", "", WRITTEN, ""]
    yield "The exit codes of the launcher. Manifests, sbatch files and these pages are tested against this table"
    yield "([`EXITS`](../entrypoint/slipway/protocol/errors.py)). `outcome.json` in the run directory contains the word from"
    yield "the second column, and the reason."
    yield from ["", "| code | word | meaning | a scheduler should |", "| --- | --- | --- | --- |"]
    yield from (f"| {code} | {row.word} | {row.meaning} | {row.then} |" for code, row in EXITS.items())
    yield from [
        "",
        "Your own script may end with any code. Slipway turns every code except 0 into 1, and the reason in `outcome.json`",
        "names the original code. These are the exceptions: a requested stop (75, 79), a syntax error or a wrong setting of",
        "NCCL (78), an error that shows a fault of the node, such as its GPU or shared memory ([77](ddp.md#errors-of-nccl)),",
        "and a peer that does not answer or that NCCL lost ([76](own-script.md#when-it-fails)). With `slipway.resume`, the",
        "errors that it reports itself have their codes from the table.",
    ]
    yield "If the launcher itself is killed, its container or shell reports 137 (SIGKILL) or 143 (SIGTERM)."
    yield from [
        "",
        "[Slurm](../slurm/README.md) and [Kubernetes](../k8s/README.md) react to these codes. After 1 and 76, Slipway first",
        "restarts the job itself ([fault tolerance](fault-tolerance.md)). It restarts your own script only with",
        "`--max-restarts N`. The launcher ends with one of these codes only when it does not restart the job again.",
    ]


def settings() -> Iterator[str]:
    """The lines of settings.md."""
    yield from ["# Settings", "", WRITTEN, ""]
    yield "You can set these as an option, in the environment, or in a `.env` file, in that order of precedence."
    yield "`slipway plan` shows the values, their sources and what they override; `--all` also those that have their defaults."
    yield "The table in the code is [`SETTINGS`](../entrypoint/slipway/launch/resolve/settings.py). Options of workloads are in"
    yield "[the command line](cli.md)."
    libraries = ", ".join(f"`{name}…`" for name in LIBRARIES)
    yield from [
        "",
        "From `.env`, or `--env-file FILE`, Slipway reads the lines that set one of these settings, `IMAGE`, `COMPOSE_FILE`,",
        f"or a variable of torch's libraries ({libraries}),",
        "which the workers receive. These lines must be plain `NAME=value`, without quotes, `$` or `export`. Any other form",
        "is an error (78), as is an unknown name that starts with `SLIPWAY_`. All other lines are ignored and not passed to",
        "the workers. Slipway warns about names that look mistyped (`MASTER_ADRR`), and about unknown names in the",
        "environment that start with `SLIPWAY_`.",
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
    yield "The output of `--help` for every command and every workload."
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


def rendezvous() -> Iterator[str]:
    """The lines of rendezvous.md, of which only the tables between two marks are written here."""
    before, begin, rest = (FOLDER / "rendezvous.md").read_text().partition(TABLES)
    yield from [*before.splitlines(), begin, ""]
    yield from messages("a launcher sends", rules.MESSAGES, [*Stage])
    yield from [
        "",
        *messages("the leader sends", client.MESSAGES, ["until `welcome`", "until `start`", "from `start` on"]),
        "",
    ]
    yield from [END, *rest.partition(END)[2].splitlines()[1:]]


def messages(
    title: str, table: Mapping[type, Mapping[Stage, Callable[..., object]]], stages: list[str]
) -> Iterator[str]:
    """A table of what messages do; each rule says it in the first line of its docstring."""
    yield f"| {title} | {' | '.join(stages)} |"
    yield "| --- " * (len(stages) + 1) + "|"
    for kind, by_stage in table.items():
        said = [
            str(by_stage[stage].__doc__).splitlines()[0].rstrip(".") if stage in by_stage else "–" for stage in Stage
        ]
        yield f"| `{kind.__name__.lower()}` | {' | '.join(said)} |"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "exit-codes.md": exit_codes,
    "settings.md": settings,
    "cli.md": cli,
    "rendezvous.md": rendezvous,
}


def page(name: str) -> str:
    """What stands in a page."""
    return "".join(f"{line.rstrip()}\n" for line in PAGES[name]())


if __name__ == "__main__":
    for file in PAGES:
        (FOLDER / file).write_text(page(file))
