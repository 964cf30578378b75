"""What a script's watcher reports of its import of torch. The launcher decides by it whether the next attempt may be warm."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Imports:
    """Of one rank. `why`: what it changed before it imported torch, so that the next attempt has to import torch again; None as
    long as it has not imported it. `modules`: the names and files of its modules, in order, once it had torch; `early` of them
    were there before. `dynamo`: the same as `why` for torch._dynamo.
    """

    why: str | None = None
    modules: tuple[tuple[str, str], ...] = ()
    early: int = 0
    dynamo: str | None = None

    def take(self, said: Mapping[str, Any]) -> "Imports":
        """With what a watcher said. Raises KeyError, TypeError or ValueError where that makes no sense."""
        if "dynamo" in said:
            return replace(self, dynamo=str(said["dynamo"]))
        modules = tuple((str(name), str(file)) for name, file in said["modules"])
        return replace(self, why=str(said["why"])[:LONGEST], modules=modules, early=int(said["early"]))


LONGEST = 300  # characters of a reason


def reason(ranks: Iterable[Imports]) -> str | None:
    """Why the next attempt of these ranks has to import torch anew; empty: it need not; None: that is not known yet."""
    said = [rank.why for rank in ranks]
    return next((why for why in said if why), None if None in said or not said else "")


def lines(imports: Imports) -> str:
    """The modules as the process reads them that imports them for the next attempt (process/script_standby.py)."""
    rows = [f"{name}\t{file}" for name, file in imports.modules if "\n" not in name + file]
    return "\n".join([str(imports.early), *rows, ""])
