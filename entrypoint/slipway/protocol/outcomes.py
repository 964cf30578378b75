"""How a worker, a node or a job ended, in the words of outcome files. What each means to a scheduler says errors.py."""

from enum import StrEnum


class Word(StrEnum):
    """The ends that there are. `LOST` is a node that went away without a word."""

    FINISHED = "finished"
    FAILED = "failed"
    USAGE = "usage"
    STOPPED = "stopped"
    PEER = "peer"
    UNHEALTHY = "unhealthy"
    CONFIGURATION = "configuration"
    CANCELLED = "cancelled"
    NO_PROGRESS = "no-progress"
    LOST = "lost"


GOOD = frozenset({Word.FINISHED, Word.STOPPED, Word.CANCELLED})
