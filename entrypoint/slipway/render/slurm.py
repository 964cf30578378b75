"""`slipway render slurm`: an sbatch file, ready to be submitted."""

import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

import click

from slipway.launch.resolve.settings import BY_NAME
from slipway.launch.resolve.sources import Claim, Sources
from slipway.options.numbers import Whole
from slipway.protocol.errors import LaunchError
from slipway.render.command import checked, make_command, make_option, matching
from slipway.render.references import name_for_enroot
from slipway.render.sbatch import CPUS_PER_GPU, MEM_PER_GPU, BatchRequest, make_sbatch
from slipway.render.times import TIME_FORMS, read_time
from slipway.render.words import given_settings, read_gpus, read_request, read_words, require_enough

# In a line for sbatch nothing can be quoted.
NAME = matching(r"\w[\w.+=@-]*", "letters, digits and _ . + = @ - are allowed")
NAMES = matching(r"\w[\w.+=@,-]*", "letters, digits and _ . + = @ - are allowed, and commas between several")
SIZE = matching(r"[1-9]\d{0,8}[KMGT]?", "type a number and K, M, G or T, such as 64G")
FOLDER = matching(r"/.*", "the nodes need an absolute path, on storage that all see")
OPTIONS = (
    make_option(
        "--gpus",
        "N",
        "GPUs on each node, which other jobs may share. By default the job requests whole nodes with all their GPUs.",
        type=Whole(1, 1024),
    ),
    make_option(
        "--cpus-per-gpu",
        "N",
        f"With --gpus: CPUs per GPU, as Slurm counts them.  [default {CPUS_PER_GPU}]",
        type=Whole(1, 4096),
    ),
    make_option(
        "--mem-per-gpu",
        "SIZE",
        f"With --gpus: main memory per GPU, such as 64G.  [default {MEM_PER_GPU}]",
        callback=SIZE,
    ),
    make_option(
        "--image",
        "IMAGE",
        "REGISTRY/NAME:TAG, or with @sha256:DIGEST, dockerd://NAME:TAG, or the absolute path of a .sqsh file, which "
        "slurm/import.sh makes.  [default $SHARED/images/slipway.sqsh]",
    ),
    make_option("--venv", "DIR", "Train in this virtual environment, without a container.", callback=FOLDER),
    make_option("--time", "TIME", f"Time limit: {TIME_FORMS}.  [default 04:00:00]", callback=checked(read_time)),
    make_option(
        "--partition", "NAME", "Partition, or several separated by commas.  [default the cluster's]", callback=NAMES
    ),
    make_option("--account", "NAME", "Account to charge.  [default the user's]", callback=NAME),
    make_option("--name --job-name name", "NAME", "Name of the job and its output.  [default slipway]", callback=NAME),
)


def _make_file(words: tuple[str, ...], options: dict[str, Any], sources: Sources) -> bytes:
    venv, image = options["venv"], options["image"]
    if venv and image:
        raise click.UsageError("--venv trains without a container and --image in one; type one of them.")
    gpus = read_gpus(options["gpus"], image)
    require_enough(gpus, sources)
    asked = read_request(
        BatchRequest,
        (*_env_file_words(options["env_file"], everywhere=bool(venv)), *read_words(words, sources)),
        options,
        sources,
        given_settings(sources),
        image=name_for_enroot(image) if image else None,
        gpus=gpus,
        runs=_shared(sources.claims(BY_NAME["SLIPWAY_RUNS"])[0], mounted=not venv),
    )
    template = resources.files("slipway").joinpath("templates/train.sbatch").read_text(encoding="utf-8")
    return os.fsencode(make_sbatch(template, asked))  # a word may hold bytes that are no text


def _env_file_words(file: str | None, everywhere: bool) -> list[str]:
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


def _shared(runs: Claim, mounted: bool) -> str | None:
    """Return the folder for runs as the nodes see it, None where nobody named one. Raises LaunchError."""
    if runs.is_default:
        return None
    if not runs.value.startswith("/"):
        raise LaunchError(f"{runs.about('SLIPWAY_RUNS')}: the nodes need an absolute path, on storage that all see.")
    if mounted and re.search("[:,]", runs.value):
        raise LaunchError(f"{runs.about('SLIPWAY_RUNS')}: pyxis can mount no path with a colon or a comma in it.")
    return runs.value


slurm = make_command(
    "slurm",
    OPTIONS,
    _make_file,
    "Print an sbatch file that trains this on Slurm, with snapshots before the time limit and requeues.\n\nWithout options it "
    "is slurm/train.sbatch, which slurm/README.md explains. Arguments after its name, as in `sbatch job.sbatch --steps 500`, "
    "are added to those in the file. Settings from the command line, the environment or .env become part of the file; secrets "
    "do not.",
    "--nodes 4 --gpus 8 --time 1-00 gpt > job.sbatch && sbatch job.sbatch",
)
