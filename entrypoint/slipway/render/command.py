"""What the commands of `slipway render` have in common: their options, and what those may not say."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from slipway.cli.launching import CONTEXT, WORDS, Launching, launcher_options, take_options
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.rdzv import OPTIONS as RDZV
from slipway.launch.resolve.sources import Sources, read_sources
from slipway.protocol.errors import LaunchError
from slipway.render.words import PLACES, read_nodes

# From the words, the options (`nodes` as a number, or None) and the settings to the file.
Make = Callable[[tuple[str, ...], dict[str, Any], Sources], bytes]


def make_option(names: str, metavar: str, text: str, **more: Any) -> click.Option:
    """An option of one kind of file: its names, and its line in `--help`."""
    return click.Option(names.split(), metavar=metavar, help=text, **more)


def make_command(
    name: str, options: Sequence[click.Option], make: Make, text: str, example: str, *, elastic: bool = False
) -> click.Command:
    """The command `slipway render NAME`, whose `options` may stand around a workload; `elastic`: nodes may be MIN:MAX."""

    def callback(words: tuple[str, ...], **given: Any) -> None:
        if words and words[0] in WORKLOADS:
            late, rest = take_options(words[1:], params, f"slipway render {name}")
            several = {key: (*given[key], *late[key]) for key in late if isinstance(late[key], tuple)}
            given, words = given | late | several, (words[0], *rest)
        if typed := next((option for option in RDZV if given[option[2:].replace("-", "_")] is not None), ""):
            raise LaunchError(
                f"{typed} is an option of torchrun on a node, and this file gives each node its rank and the address of node 0. "
                "Leave it out; --run-dir DIR names the run."
            )
        if given["standalone"]:
            raise LaunchError("--standalone means one node and applies to no scheduler. Type --nodes 1.")
        if not given["gpus"] and (given.get("cpus_per_gpu") or given.get("mem_per_gpu")):
            raise click.UsageError("--cpus-per-gpu and --mem-per-gpu apply to each GPU; add --gpus N.")
        sources = read_sources(given, {})
        size = read_nodes(sources, given["nodes"], elastic=elastic)
        given["nodes"], given["spares"] = (size.most, size.spares) if size else (None, 0)
        given["least"] = size.least if size else None
        click.echo(make(words, given, sources), nl=False)

    params = [*options, *_shared_options("N|MIN:MAX|N+SPARES" if elastic else "N|N+SPARES")]
    return Launching(
        name,
        callback=callback,
        params=[WORDS, *params],
        help=text,
        epilog=f"\b\nExample: slipway render {name} {example}",
        context_settings=CONTEXT,
    )


def _shared_options(sizes: str) -> list[click.Parameter]:
    """The options of every kind: the launcher's, of which those for one node are only taken to be refused.

    `sizes`: how the number of nodes may be written.
    """
    options = launcher_options()
    for option in options:
        if isinstance(option, click.Option) and option.name in (*PLACES, "WORLD_SIZE", "standalone"):
            option.hidden = True
    nodes = click.Option(["--nodes"], metavar=sizes, help="Number of nodes; the same as --nnodes and WORLD_SIZE.")
    return [nodes, *options]


Check = Callable[[click.Context, click.Parameter, str | None], str | None]


def checked(read: Callable[[str], object]) -> Check:
    """A callback that refuses what `read` does not understand (ValueError)."""

    def check(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
        try:
            if value is not None:
                read(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None
        return value

    return check


def matching(form: str, allowed: str) -> Check:
    """A callback that refuses what has another form, and says what is `allowed`."""

    def read(value: str) -> None:
        if not re.fullmatch(form, value, re.ASCII):
            raise ValueError(f"{value!r} is not allowed here; {allowed}")

    return checked(read)
