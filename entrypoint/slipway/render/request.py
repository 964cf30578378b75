"""What is asked of a job file, whatever its kind, and times as `sbatch --time` takes them. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MARGIN = 10  # s between the launcher's grace and that of whoever ends its container, for the verdict


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What the file shall say; where nothing was asked for (None, or empty) it says what its template does.

    Fields are called as the options are. `env` are the settings that it holds, `secrets` names of those that are given but not
    written down.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    grace: int  # s
    name: str | None = None
    image: str | None = None
    nodes: int | None = None
    least: int | None = None  # with how many of them an elastic job begins and continues; None and `nodes`: with all
    spares: int = 0  # spare nodes beside them
    gpus: int | None = None  # per node
    time: str | None = None

    @property
    def launchers(self) -> int | None:
        """How many nodes are started, spare ones among them."""
        return self.nodes + self.spares if self.nodes else None


def without_variables(text: str) -> str:
    """The text as it is written where Kubernetes or Compose would replace variables in it."""
    return text.replace("$", "$$")


_TIME = re.compile(r"(?:(?P<days>\d{1,4})-)?(\d{1,6})(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
TIME_FORMS = (
    "MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS"
)


def read_time(text: str) -> int:
    """The seconds of one of Slurm's six forms of a time (sbatch(1), --time). Raises ValueError for anything else."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no time. Type {TIME_FORMS}, such as 2-12 for two days and twelve hours")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]  # minutes come first, then seconds
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
