"""The sbatch file that `slipway render slurm` prints: slurm/train.sbatch, with what was asked for. Pure.

templates/train.sbatch is that file as it stands. Lines for sbatch are replaced, and what was asked for is set in front of the
first command, from where the file would otherwise take it from the environment; nothing else of it changes.
"""

import re
import shlex
from dataclasses import dataclass

from slipway.protocol.errors import LaunchError
from slipway.render.request import JobRequest
from slipway.render.times import read_time

LEAVING = 40  # s between the end of the grace and the time limit: verdict, srun's return, and the job puts itself back
# s that the signal may come too early, and the most that Slurm allows (sbatch(1), --signal)
EARLY, LONGEST = 60, 65_535
# Few enough for the usual nodes with GPUs; sbatch refuses at once what no node has.
CPUS_PER_GPU, MEM_PER_GPU = 8, "32G"
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
