"""What every kind of job file is made from: the words of `slipway run`, the launcher's options and the settings.

A scheduler tells each node its rank and where node 0 is, so nobody else may; and it is given one number of nodes.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from slipway.cli.arguments import check_arguments
from slipway.launch.resolve.catalog import find_workload
from slipway.launch.resolve.host import CHECKPOINTS
from slipway.launch.resolve.settings import BY_NAME, SETTINGS, NodeCount
from slipway.launch.resolve.sources import Claim, Sources, parse_claim
from slipway.protocol.errors import LaunchError
from slipway.protocol.redact import secret_values
from slipway.protocol.variants import WITHOUT_CUDA
from slipway.render.references import pinned, variant_of
from slipway.render.request import JobRequest

Kind = TypeVar("Kind", bound=JobRequest)
PLACES = ("RANK", "MASTER_ADDR", "MASTER_PORT")
APART = {
    *PLACES,
    "WORLD_SIZE",
    "SLIPWAY_SPARES",
    "WORKLOAD",
    "SLIPWAY_RUNS",
}  # settings that a job file says in a way of its own


def read_request(
    kind: type[Kind],
    words: tuple[str, ...],
    options: Mapping[str, Any],
    sources: Sources,
    given: Mapping[str, str],
    **own: Any,
) -> Kind:
    """What is asked of a file: what was typed, the `given` settings, and what this kind of file reads its `own` way."""
    names = {field.name for field in dataclasses.fields(kind)}
    typed = {name: value for name, value in options.items() if name in names and value not in (None, "")}
    secrets = secret_values(given)
    common = {
        "words": words,
        "env": {name: value for name, value in given.items() if name not in secrets},
        "secrets": tuple(secrets),
        "grace": int(sources.value("SLIPWAY_GRACE_SECONDS")),
    }
    return kind(**(typed | common | own))


def read_words(words: Sequence[str], sources: Sources, *, here: bool = True) -> tuple[str, ...]:
    """What shall be trained, with its arguments; nothing where nobody says so. Raises what `run` raises.

    `here`: a user's own script is seen by the nodes where it is here, so it must exist.
    """
    if not words and not sources.claim("WORKLOAD").is_default:
        words = shlex.split(sources.value("WORKLOAD"))
    if words and (here or not (words[0] == "--no-python" or words[0].endswith(".py"))):
        workload, arguments = find_workload(words)
        if workload.builtin:
            check_arguments(workload.name, arguments)
    return tuple(words)


def read_nodes(sources: Sources, nodes: str | None, *, elastic: bool = False) -> NodeCount | None:
    """How many nodes are asked for, and how many spare ones; None where nobody says. `nodes` is what --nodes says, `elastic`
    whether MIN:MAX is allowed. Raises LaunchError (78).

    The job reads the environment of its submission and .env again, so none of them may say anything else.
    """
    for place in PLACES:
        claim = sources.claim(place)
        if not claim.is_default:
            raise LaunchError(
                f"{claim.about(place)}, but the scheduler sets the rank of each node and the address of node 0. Omit it."
            )
    named = [Claim(nodes, "command line (--nodes)")] if nodes is not None else []
    claims = [*named, *(claim for claim in sources.claims(BY_NAME["WORLD_SIZE"]) if not claim.is_default)]
    sizes = [_read_size(claim, elastic) for claim in claims]
    for claim, size in zip(claims, sizes, strict=True):
        if size != sizes[0]:
            raise LaunchError(
                f"{claims[0].about('WORLD_SIZE')}, but {claim.about('WORLD_SIZE')}, which the job would read, too. "
                "Make them equal, or leave all but one out."
            )
    spares = sources.claim("SLIPWAY_SPARES")
    count = int(str(parse_claim(BY_NAME["SLIPWAY_SPARES"], spares)))
    size = sizes[0] if sizes else NodeCount(1, 1)
    if size.spares and not spares.is_default and count != size.spares:
        raise LaunchError(
            f"{spares.about('SLIPWAY_SPARES')}, but {claims[0].about('WORLD_SIZE')}. Leave one of them out."
        )
    if count and size.most == 1:
        raise LaunchError(
            f"{spares.about('SLIPWAY_SPARES')}, but a job with spare nodes has at least two nodes: type --nodes N."
        )
    if count and size.least < size.most:
        raise LaunchError(
            f"{spares.about('SLIPWAY_SPARES')}, but {claims[0].about('WORLD_SIZE')}: an elastic job needs none."
        )
    return size._replace(spares=size.spares or count) if sizes else None


def _read_size(claim: Claim, elastic: bool) -> NodeCount:
    size = parse_claim(BY_NAME["WORLD_SIZE"], claim)
    assert isinstance(size, NodeCount)  # as its parser says
    if size.least != size.most and not elastic:
        raise LaunchError(f"{claim.about('WORLD_SIZE')}, but such a job has one size. Type --nodes {size.most}.")
    return size


def given_settings(sources: Sources) -> dict[str, str]:
    """The settings that somebody gave, but for those that a job file says in a way of its own. Raises LaunchError."""
    given = {}
    for setting in SETTINGS:
        claim = sources.claim(setting.name)
        if setting.name not in APART and not claim.is_default:
            parse_claim(setting, claim)
            given[setting.name] = claim.value
    return given


def read_runs(sources: Sources) -> dict[str, str]:
    """The folder for runs, where somebody named one. Raises LaunchError where results would go with the container."""
    for name in ("SLIPWAY_RUNS", "SLIPWAY_RUN_DIR"):
        claim = sources.claim(name)
        if claim.value and not claim.is_default and not Path(claim.value).is_relative_to(CHECKPOINTS):
            raise LaunchError(
                f"{claim.about(name)}, but in the container only {CHECKPOINTS} is a volume for results. Type "
                f"{BY_NAME[name].option} {CHECKPOINTS}/NAME, or leave it out."
            )
    runs = sources.claim("SLIPWAY_RUNS")
    return {} if runs.is_default else {"SLIPWAY_RUNS": runs.value}


def read_image(option: str | None, sources: Sources) -> str | None:
    """The image that --image names, else IMAGE; None where nobody does. Raises LaunchError for one that may change."""
    claim = None if option else sources.variable("IMAGE")
    try:
        return pinned(option) if option else pinned(claim.value) if claim else None
    except LaunchError as error:
        raise LaunchError(f"{claim.about('IMAGE')}: {error}" if claim else str(error)) from None


def read_gpus(gpus: int | None, image: str | None) -> int | None:
    """How many GPUs are asked for: those of --gpus; 0 where the image has no CUDA, by its name; None where nobody says.

    Raises LaunchError (78) where both contradict each other.
    """
    if not image or variant_of(image) != WITHOUT_CUDA:
        return gpus
    if gpus:
        raise LaunchError(
            f"--image {image} has no CUDA (it is the variant {WITHOUT_CUDA}), but --gpus {gpus}. Leave --gpus out, or name an "
            "image with CUDA, such as 1.2.3-cuda12."
        )
    return 0


def require_enough(gpus: int | None, sources: Sources) -> None:
    """Raise LaunchError where the launchers would find too few GPUs; `gpus` None are all of a machine."""
    claim = sources.claim("NPROC_PER_NODE")
    processes = parse_claim(BY_NAME["NPROC_PER_NODE"], claim)
    if gpus and isinstance(processes, int) and processes > gpus and not sources.parsed("SLIPWAY_OVERSUBSCRIBE"):
        raise LaunchError(
            f"{claim.about('NPROC_PER_NODE')}, but --gpus {gpus}. Omit the number of processes; "
            "to share GPUs between processes, add --oversubscribe."
        )
    backend = sources.claim("SLIPWAY_BACKEND")
    for name, needs in ((claim, "gpu"), (backend, "nccl")):
        if gpus == 0 and name.value == needs:
            about = name.about("NPROC_PER_NODE" if needs == "gpu" else "SLIPWAY_BACKEND")
            raise LaunchError(f"{about} needs GPUs, but --gpus 0. Leave one of them out.")
