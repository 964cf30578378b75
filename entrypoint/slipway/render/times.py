"""Times as `sbatch --time` takes them."""

import re

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
