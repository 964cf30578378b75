"""What is passed over in a folder of runs because it cannot be read, by name, so that nobody looks for it in vain."""

import stat
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from slipway.protocol.errors import told_if_unreadable
from slipway.protocol.files import HEARTBEATS, LOGS, NODE, OUTCOME_FILE, RUN_FILE, why_unreadable

MOST = 5  # lines


@told_if_unreadable("Type this as its owner, or name another folder with --runs DIR.")
def odd_records(runs: Path) -> list[str]:
    """The runs in a folder of runs that count for none, each with the reason."""
    return _told(_unreadable(runs.glob(f"*/{RUN_FILE}")))


def odd_files(run: Path) -> list[str]:
    """The files of a run that are passed over, each with the reason."""
    nodes = (run.glob(f"{NODE}*/{within}") for within in ("*.json", f"{HEARTBEATS}/*.json"))
    files = chain((run / RUN_FILE, run / OUTCOME_FILE), *nodes)
    return _told([*_unreadable(files), *_not_regular(run.glob(f"{NODE}*/{LOGS}/*.log"))])


def _unreadable(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for file in files:
        if why := why_unreadable(file):
            yield file, why


def _not_regular(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for file in files:
        try:
            regular = stat.S_ISREG(file.lstat().st_mode)
        except OSError:  # it is gone, or nobody may look
            continue
        if not regular:
            yield file, "is not a regular file"


def _told(odd: Iterable[tuple[Path, str]]) -> list[str]:
    lines = sorted(f"{file} is passed over: {'it ' if why.startswith('is ') else ''}{why}" for file, why in odd)
    return lines[:MOST] + [f"and {len(lines) - MOST} more are passed over"] * (len(lines) > MOST)
