"""What a scheduler says about a job, and how it is read from its variables.

A reading's claims are keyed by our own names: WORLD_SIZE and RANK count nodes; JOB names the job, RESTARTS counts how often it
was requeued; PROCESS_RANK, PROCESSES, LOCAL_RANK and LOCAL_PROCESSES are there where the launcher was started once per process.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slipway.launch.resolve.sources import Claim

Claims = dict[str, Claim]


class Reading(NamedTuple):
    """What one scheduler says. `strict`: RANK and WORLD_SIZE of the environment must not contradict it."""

    scheduler: str
    claims: Mapping[str, Claim]
    strict: bool = False
    broken: str = ""  # why the master's address cannot be read from what it says

    def get(self, name: str) -> Claim | None:
        """The claim about one of our names, or None."""
        return self.claims.get(name)


class Scheduler(NamedTuple):
    """`marks`: it is there when one of them is set, and all that it `needs`. `table`: our name -> its variables, of which the
    first that is set counts.
    """

    name: str
    marks: tuple[str, ...]
    table: Mapping[str, tuple[str, ...]]
    derive: Callable[[Mapping[str, str], str, Claims], None] | None = None
    strict: bool = False
    needs: tuple[str, ...] = ()

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Whether it left its marks in the environment."""
        return any(environ.get(mark) for mark in self.marks) and all(environ.get(name) for name in self.needs)
