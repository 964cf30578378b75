"""`slipway render slurm`: an sbatch file, ready to be submitted.

templates/train.sbatch is slurm/train.sbatch as it stands. Lines for sbatch are replaced, and what was asked for is set in front
of the first command, from where the file would otherwise take it from the environment; nothing else of it changes.
"""

import os
import re
import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import click

from slipway.launch.resolve.sources import Claim, Sources
from slipway.options.numbers import Whole
from slipway.protocol.errors import LaunchError
from slipway.render.command import checked, make_command, make_option, matching
from slipway.render.references import name_for_enroot
from slipway.render.request import TIME_FORMS, JobRequest, read_time
from slipway.render.words import given_settings, read_gpus, read_request, read_words, require_enough

# Few enough for the usual nodes with GPUs; sbatch refuses at once what no node has.
CPUS_PER_GPU, MEM_PER_GPU = 8, "32G"
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
        runs=_shared(sources.claim("SLIPWAY_RUNS"), mounted=not venv),
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


LEAVING = 40  # s between the end of the grace and the time limit: verdict, srun's return, and the job puts itself back
# s that the signal may come too early, and the most that Slurm allows (sbatch(1), --signal)
EARLY, LONGEST = 60, 65_535
SHARING = """\
# A job that counts its GPUs shares its nodes with others. Its task would get one core, and what memory the site gives by
# default, or all. So both are asked for, with each GPU, and srun passes them on. sbatch refuses what no node has."""
FIRST_COMMAND = "set -euo pipefail"


@dataclass(frozen=True, kw_only=True)
class BatchRequest(JobRequest):
    """The same of an sbatch file."""

    cpus_per_gpu: int = CPUS_PER_GPU
    mem_per_gpu: str = MEM_PER_GPU
    partition: str | None = None
    account: str | None = None
    venv: str | None = None
    runs: str | None = None


def make_sbatch(template: str, asked: BatchRequest) -> str:
    """Return the file. Raises LaunchError for a time limit that leaves no time to train."""
    lines = template.splitlines()
    notice = asked.grace + LEAVING
    _require_time(asked.time or _header(lines, "time"), notice)
    places = {"partition": asked.partition, "account": asked.account}  # the file names none
    name = _line("job-name", asked.name or _header(lines, "job-name"))
    _replace(lines, "job-name", name, *(_line(place, value) for place, value in places.items() if value))
    for header, value in {"time": asked.time, "nodes": asked.launchers, "signal": f"USR1@{notice}"}.items():
        if value:
            _replace(lines, header, _line(header, value))
    if asked.spares:  # else Slurm ends the job with the first node that fails
        _replace(lines, "requeue", "#SBATCH --requeue", "#SBATCH --no-kill")
    if asked.gpus:
        counts = {"gpus-per-node": asked.gpus, "cpus-per-gpu": asked.cpus_per_gpu, "mem-per-gpu": asked.mem_per_gpu}
        _replace(lines, "exclusive", SHARING, *(_line(header, count) for header, count in counts.items()))
        _replace(lines, "mem")
    if set_here := _settings(asked):
        place = lines.index(FIRST_COMMAND) + 1
        lines[place:place] = ["", "# Settings of `slipway render slurm`.", *set_here]
    return "\n".join(lines) + "\n"


def _settings(asked: BatchRequest) -> list[str]:
    """The commands that set what is no header. Everything of the user's is quoted; a name is one of the table's."""
    commands = []
    if asked.image or asked.venv or asked.runs:  # decides what the environment may say otherwise
        commands += [f"VENV={shlex.quote(asked.venv or '')}"]
    if asked.image:
        commands += [f"IMAGE={shlex.quote(asked.image)}"]
    if asked.runs:
        commands += [f"RUNS={shlex.quote(asked.runs)}"]
    if asked.spares:  # of the nodes that Slurm counts
        commands += [f"export SLIPWAY_SPARES={asked.spares}"]
    commands += [f"export {name}={shlex.quote(value)}" for name, value in asked.env.items()]
    commands += [
        f"# {name} is a secret and not written here: the job has it from where it is now." for name in asked.secrets
    ]
    if asked.words:
        commands += ["# Arguments after this file's name are added to these.", f'set -- {shlex.join(asked.words)} "$@"']
    return commands


def _line(name: str, value: object) -> str:
    return f"#SBATCH --{name}={value}"


def _header(lines: list[str], name: str) -> str:
    """The value that the file has for an option of sbatch."""
    return lines[_place_of(lines, name)].partition("=")[2]


def _replace(lines: list[str], name: str, *new: str) -> None:
    """Put these lines in the place of the one for an option of sbatch."""
    place = _place_of(lines, name)
    lines[place : place + 1] = new


def _place_of(lines: list[str], name: str) -> int:
    (place,) = (index for index, line in enumerate(lines) if re.fullmatch(rf"#SBATCH --{name}(=.*)?", line))
    return place


def _require_time(limit: str, notice: int) -> None:
    if notice > LONGEST:
        raise LaunchError(
            f"A grace of {notice - LEAVING} s is too long for Slurm, which signals at most {LONGEST} s before the time limit. "
            f"Type --grace-seconds {LONGEST - LEAVING} or less."
        )
    if read_time(limit) <= notice + EARLY:
        raise LaunchError(
            f"The time limit {limit} leaves no time to train: the job is asked to stop up to {notice + EARLY} s before it "
            f"({notice - LEAVING} s of grace, {LEAVING} to leave, and Slurm may be {EARLY} early). Type a longer --time or "
            "a shorter --grace-seconds."
        )


slurm = make_command(
    "slurm",
    OPTIONS,
    _make_file,
    "Print an sbatch file that trains a workload or script on Slurm, with snapshots before the time limit and requeues.\n\n"
    "Without options, the output is slurm/train.sbatch (explained in slurm/README.md). Arguments after the name of the file, as "
    "in `sbatch job.sbatch --steps 500`, are added to those in the file. Settings from the command line, the "
    "environment or .env become part of the file; secrets do not.",
    "--nodes 4 --gpus 8 --time 1-00 gpt > job.sbatch && sbatch job.sbatch",
)
