"""How far the copy of a run in a store is: the file `store.json` in a node's folder, which the process that copies writes, and
the launcher, `slipway status` and the metrics read.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from slipway.protocol.decoding import Between, decode_known
from slipway.protocol.files import NODE, SECONDS, STEPS, number_in, read_json, write_passing_json

FILE = "store.json"
Seconds = Annotated[float, Between(0, SECONDS)]


@dataclass
class CopyProgress:
    """Times are Unix seconds.

    `store`: the run's address there; `step`: the newest snapshot in it that is complete, and when it was `taken`; `copying`: the
    one on its way, and how many bytes of it are there; `error` lasts until a request succeeds; `superseded`: a later attempt
    has claimed the run. `bytes` and `seconds` of processor time in all.
    """

    store: str = ""
    attempt: int = 0
    step: Annotated[int, Between(0, STEPS)] | None = None
    taken: Seconds | None = None
    copying: Annotated[int, Between(0, STEPS)] | None = None
    done: int = 0
    total: int = 0
    error: str = ""
    superseded: str = ""
    bytes: int = 0
    seconds: Seconds = 0.0
    fetched: Seconds | None = None  # in a copy of the run that a command fetched, when that was

    def age(self, now: float) -> float | None:
        """How old the newest copy is, in seconds; None where that is unknown."""
        return None if self.taken is None else round(max(0.0, now - self.taken), 1)

    def describe(self, now: float) -> str:
        """The same in words."""
        if self.step is None:
            return f"{self.store} has no snapshot yet"
        age = "" if self.taken is None else f", {self.age(now):.0f} s old"
        return f"the newest snapshot in {self.store} is of step {self.step}{age}"


def read_progress(node: Path) -> CopyProgress:
    """What the file in a node's folder says; without one, an empty `store`."""
    return decode_known(CopyProgress, read_json(node / FILE)) or CopyProgress()


def write_progress(node: Path, progress: CopyProgress) -> None:
    """Write it down. Raises OSError."""
    write_passing_json(node / FILE, dataclasses.asdict(progress))


def newest_progress(run: Path) -> CopyProgress | None:
    """How far the copy of a run is, by the node whose copy is newest; None where there is no store."""
    nodes = [file.parent for file in run.glob(f"{NODE}*/{FILE}") if number_in(file.parent.name, NODE) is not None]
    found = [progress for node in nodes if (progress := read_progress(node)).store]
    return max(found, key=lambda progress: (progress.attempt, progress.taken or 0.0), default=None)
