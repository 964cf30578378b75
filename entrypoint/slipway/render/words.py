"""What every kind of job file is made from: the words of `slipway run`, the launcher's options and the settings.

A scheduler tells each node its rank and where node 0 is, so nobody else may; and it is given one number of nodes.
"""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from slipway.arguments import check_arguments
from slipway.launch.catalog import WORKLOADS, find_workload
from slipway.launch.errors import LaunchError
from slipway.launch.host import CHECKPOINTS
from slipway.launch.settings import BY_NAME, SETTINGS, Claim, Sources, parse_claim
from slipway.launching import CONTEXT, WORDS, Launching, launcher_options, take_options

PLACES = ("RANK", "MASTER_ADDR", "MASTER_PORT")
APART = {*PLACES, "WORLD_SIZE", "WORKLOAD", "SLIPWAY_RUNS"}  # settings that a job file says in a way of its own


MARGIN = 10  # s between the launcher's grace and that of whoever ends its container, for the verdict
Print = Callable[[tuple[str, ...], dict[str, Any]], None]


def make_command(name: str, options: Sequence[click.Parameter], show: Print, text: str, example: str) -> click.Command:
    """The command `slipway render NAME`, whose `options` may stand before a workload and behind it; `show` prints."""

    def callback(words: tuple[str, ...], **given: Any) -> None:
        if words and words[0] in WORKLOADS:
            late, rest = take_options(words[1:], params, f"slipway render {name}")
            several = {key: (*given[key], *late[key]) for key in late if isinstance(late[key], tuple)}
            given, words = given | late | several, (words[0], *rest)
        show(words, given)

    params = [*options, *_shared_options()]
    return Launching(
        name,
        callback=callback,
        params=[WORDS, *params],
        help=text,
        epilog=f"Example: slipway render {name} {example}",
        context_settings={**CONTEXT, "allow_interspersed_args": False},
    )


def _shared_options() -> list[click.Parameter]:
    """The options of every kind: the launcher's, of which those for one node are only taken to be refused."""
    options = launcher_options()
    for option in options:
        if isinstance(option, click.Option) and option.name in (*PLACES, "WORLD_SIZE", "standalone"):
            option.hidden = True
    nodes = click.Option(["--nodes"], metavar="N", help="How many nodes; --nnodes and WORLD_SIZE say the same.")
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
            raise ValueError(f"{value!r} cannot stand there; {allowed}")

    return checked(read)


def read_words(words: Sequence[str], sources: Sources, *, here: bool = True) -> list[str]:
    """What shall be trained, with its arguments; nothing where nobody says so. Raises what `run` raises.

    `here`: a user's own script is seen by the nodes where it is here, so it must exist.
    """
    if not words and sources.claims(BY_NAME["WORKLOAD"])[0].source != "default":
        words = shlex.split(sources.value("WORKLOAD"))
    if words and (here or not words[0].endswith(".py")):
        workload, arguments = find_workload(words)
        if workload.own:
            check_arguments(workload.name, arguments)
    return list(words)


def read_nodes(sources: Sources, nodes: str | None) -> int | None:
    """How many nodes are asked for, None where nobody says; `nodes` is what --nodes says. Raises LaunchError (78).

    The job reads the environment of its submission and .env again, so none of them may say anything else.
    """
    for place in PLACES:
        claim = sources.claims(BY_NAME[place])[0]
        if claim.source != "default":
            raise LaunchError(
                f"{claim.about(place)}, but the scheduler tells each node its rank and where node 0 is. Leave it out."
            )
    named = [Claim(nodes, "command line (--nodes)")] if nodes is not None else []
    claims = [*named, *(claim for claim in sources.claims(BY_NAME["WORLD_SIZE"]) if claim.source != "default")]
    sizes = [_read_size(claim) for claim in claims]
    for claim, size in zip(claims, sizes, strict=True):
        if size != sizes[0]:
            raise LaunchError(
                f"{claims[0].about('WORLD_SIZE')}, but {claim.about('WORLD_SIZE')}, which the job would read, too. "
                "Make them equal, or leave all but one out."
            )
    return sizes[0] if sizes else None


def _read_size(claim: Claim) -> int:
    size = parse_claim(BY_NAME["WORLD_SIZE"], claim)
    assert isinstance(size, tuple)  # as its parser says
    least, most = size
    if least != most:
        raise LaunchError(f"{claim.about('WORLD_SIZE')}, but such a job has one size. Type --nodes {most}.")
    return int(most)


def given_settings(sources: Sources) -> dict[str, str]:
    """The settings that somebody gave, but for those that a job file says in a way of its own. Raises LaunchError."""
    given = {}
    for setting in SETTINGS:
        claim = sources.claims(setting)[0]
        if setting.name not in APART and claim.source != "default":
            parse_claim(setting, claim)
            given[setting.name] = claim.value
    return given


def read_runs(sources: Sources) -> dict[str, str]:
    """The folder for runs, where somebody named one. Raises LaunchError where results would go with the container."""
    for name in ("SLIPWAY_RUNS", "SLIPWAY_RUN_DIR"):
        claim = sources.claims(BY_NAME[name])[0]
        if claim.value and claim.source != "default" and not Path(claim.value).is_relative_to(CHECKPOINTS):
            raise LaunchError(
                f"{claim.about(name)}, but in the container only {CHECKPOINTS} is a volume for results. Type "
                f"{BY_NAME[name].option} {CHECKPOINTS}/NAME, or leave it out."
            )
    runs = sources.claims(BY_NAME["SLIPWAY_RUNS"])[0]
    return {} if runs.source == "default" else {"SLIPWAY_RUNS": runs.value}


def require_enough(gpus: int | None, sources: Sources) -> int | None:
    """Return the number of GPUs. Raises LaunchError where the launchers would find too few."""
    claim = sources.claims(BY_NAME["NPROC_PER_NODE"])[0]
    processes = parse_claim(BY_NAME["NPROC_PER_NODE"], claim)
    if gpus and isinstance(processes, int) and processes > gpus and not sources.parsed("SLIPWAY_OVERSUBSCRIBE"):
        raise LaunchError(
            f"{claim.about('NPROC_PER_NODE')}, but --gpus {gpus}. Leave the number of processes out, it follows that of GPUs; "
            "to share GPUs between processes all the same add --oversubscribe."
        )
    return gpus


def env_file_words(file: str | None, everywhere: bool) -> list[str]:
    """The words by which the job reads an --env-file itself, for what is not Slipway's in it, and for secrets.

    `everywhere`: the job sees it where it is; else only below the folder of the submission. Raises LaunchError (78).
    """
    if not file:
        return []
    here, there = Path.cwd(), Path(os.path.abspath(file))  # noqa: PTH100  # takes `..` away, but follows no links
    if not there.is_relative_to(here) and not everywhere:
        raise LaunchError(
            f"--env-file {file} lies outside {here}, and the container sees only the folder that the job is submitted from. "
            "Copy it there."
        )
    return ["--env-file", str(there.relative_to(here) if there.is_relative_to(here) else there)]
