"""torchrun, started in this process, that tells the launcher which workers it has and how each of them ended.

Started by the launcher as `python -m slipway.process.agent LAUNCHER EVENTS LOGS ERRORS EARLY LINK FILES TORCHRUN-ARGUMENTS…`, or
forked from the standby (standby.py). LAUNCHER is its process id, EVENTS the number of a pipe for JSON lines, LOGS a
comma-separated list of pipes (stdout and stderr of each worker in turn), ERRORS a folder for the error files of
`torch.distributed.elastic`'s @record. EARLY is for warm.py: whether workers begin early (1 or 0), the first one's rank here, and
how many there are on all nodes. LINK is the number of a socket for a process that is left for the next attempt, empty where none
is wanted; FILES are the numbers of further files that workers get, as the launcher has them open. The first `--` ends torchrun's
own arguments: what follows is the worker's command, which torchrun's parser never sees. This module and torchrun.py are the
only ones that know both the launcher and torch.
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from slipway.process import warm
from slipway.process.standby import Standby, fork_standby
from slipway.process.tree import stand_between


@dataclass(frozen=True)
class AgentConfig:
    """What the launcher tells an agent; see above."""

    launcher: int
    events: int
    pipes: tuple[int, ...]
    errors: str
    workers: warm.WorkerGroup
    link: int | None
    options: tuple[str, ...]  # torchrun's
    command: tuple[str, ...]  # each worker's

    @classmethod
    def read(cls, argv: Sequence[str]) -> "AgentConfig":
        """Of the words behind the module's name."""
        launcher, events, logs, errors, early, link, files, *arguments = argv
        begins, rank, world_size = map(int, early.split(","))
        pipes, more = (tuple(int(number) for number in text.split(",") if number) for text in (logs, files))
        end = arguments.index("--")
        options, command = tuple(arguments[:end]), tuple(arguments[end + 1 :])
        workers = warm.WorkerGroup(command if begins else (), rank, world_size, pipes, more)
        parking = int(link) if link else None
        return cls(int(launcher), int(events), pipes, errors, workers, parking, options, command)

    @property
    def arguments(self) -> list[str]:
        """What torchrun passes to the worker's program; where it fills in ${local_rank} it would make one $ of two."""
        return [word.replace("$$", "$$$$") for word in self.command[1:]]


def main(argv: Sequence[str]) -> int:
    """Run torchrun to its end; 0, or 1 when a worker failed."""
    if len(argv) == 2:
        return wait_as_standby(*map(int, argv))
    terms = AgentConfig.read(argv)
    stand_between(terms.launcher)
    begun = terms.workers.begin()
    import_torch()
    if terms.link is not None:
        if work := fork_standby(terms.link, terms.launcher, begun, begin_again):
            return work()
        os.close(terms.link)
    return run_torchrun(terms, begun)


def import_torch() -> None:
    """Import what torchrun needs."""
    with warm.no_collection():
        from torch.distributed import run  # noqa: F401
        from torch.distributed.launcher import api  # noqa: F401


def wait_as_standby(launcher: int, link: int) -> int:
    """On a spare node, be the process from which its first attempt is forked; in what is forked from it, what that has to do."""
    import_torch()
    return Standby(socket.socket(fileno=link), launcher, begin_again).serve()()


def run_torchrun(terms: AgentConfig, begun: Sequence[warm.Worker]) -> int:
    """Run it in this process, with workers that have `begun` or, where none have, that it starts. Does not return."""
    from slipway.process import torchrun  # with torch, which workers that begin early import at the same time

    code = torchrun.run_torchrun(terms, begun)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # to take down Python with torch in it takes 0.3 s, for which the next attempt would wait


def begin_again(argv: Sequence[str], script: warm.Script | None = None) -> Callable[[], int]:
    """What a process has to do that was forked from the standby, as an agent or as one of its workers.

    `script`: what a worker does of a process that was started as a script (script_standby.py).
    """
    terms = AgentConfig.read(argv)
    stand_between(terms.launcher)
    begun = terms.workers.fork(script)
    return begun if callable(begun) else partial(run_torchrun, terms, begun)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
