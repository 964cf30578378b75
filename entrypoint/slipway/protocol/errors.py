"""The one table of exit codes, the error that carries one, and what a disk is to blame for.

Manifests, sbatch files and documents are tested against `EXITS`; nothing else in the project states a code's meaning.

To add a code:

1. A constant and a row of `EXITS` here, its word in `protocol/outcomes.py` (with `GOOD` there, and the order in `judge`, if the
   job ended as asked), its text and what to do in `launch/verdict/block.py` (`ENDINGS`, `ADVICE_BY_WORD`), and in `RETRYABLE`
   in `launch/verdict/restarts.py` if the launcher restarts the job after it.
2. Who ends with it: the launcher by a `LaunchError`; a worker by an exception, which `outcome_word` in
   `train/worker/launcher.py` makes a word (for a loop with slipway.resume also `EXPLAINED` in `train/user/run.py`); a script by
   what it prints, in `protocol/causes.py`, or by its exit code, in `_cause` of `launch/attempt/ending.py`; a node there; the
   process that copies by `kind` in `store/copier.py`.
3. Places that treat 77 as a special case, each to be decided: `launch/verdict/verdict.py`, `launch/verdict/block.py`,
   `launch/next_attempt.py`, `launch/rendezvous/coordinator.py`, `launch/rendezvous/messages.py`, `check/nodes.py`,
   `check/finding.py`, `check/examination.py`, `check/selftest.py`, `check/selftest_trial.py`.
4. What a scheduler does (`then` of the row): `values` in k8s/base/single/job.yaml and k8s/overlays/download/job.yaml;
   slurm/train.sbatch, unless it is not requeued; the comment in compose/compose.yaml, if it names the code. RENEW_GOLDEN=1 writes
   the golden files again, and with them k8s/job.yaml, k8s/jobset and k8s/trainer.
5. Tests with lists of codes: `test_errors.py`, `test_verdict.py` and a case in `test_ending.py`, below `tests/unit`;
   `tests/k8s/test_semantics.py`, `tests/chaos/checks.py`, and those of the scheduler. docs/exit-codes.md and docs/cli.md
   are generated again; by hand the tables in README, AGENTS.md, slurm/README.md, k8s/README.md and docs/troubleshooting.md, and
   a line in CHANGELOG. If scripts may end with it: the sentences in docs/reference.py and docs/coming-from.md. If the launcher
   restarts after it: those in docs/fault-tolerance.md, recipes.md, one-to-many.md and internals.md.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

from slipway.protocol.outcomes import Word

FINISHED = 0
FAILED = 1
USAGE = 2
STOPPED = 75
PEER = 76
UNHEALTHY = 77
CONFIGURATION = 78
CANCELLED = 79
NO_PROGRESS = 93


class Exit(NamedTuple):
    """What an exit code means: `word` names it in outcome files, `then` is what a scheduler should do."""

    word: str
    meaning: str
    then: str


EXITS = MappingProxyType(
    {
        FINISHED: Exit(Word.FINISHED, "finished", "nothing"),
        FAILED: Exit(Word.FAILED, "the workload failed for a reason of its own", "retry within its limit"),
        USAGE: Exit(Word.USAGE, "wrong command line", "not retry"),
        STOPPED: Exit(
            Word.STOPPED,
            "stopped by a signal (SIGTERM, SIGUSR1, SIGHUP) or an interruption notice, snapshot saved",
            "requeue",
        ),
        PEER: Exit(Word.PEER, "a peer was lost, never came, or hangs", "retry"),
        UNHEALTHY: Exit(Word.UNHEALTHY, "this node is unhealthy (GPU, driver, /dev/shm, disk)", "retry elsewhere"),
        CONFIGURATION: Exit(Word.CONFIGURATION, "wrong configuration", "not retry"),
        CANCELLED: Exit(
            Word.CANCELLED, "stopped for good by its user (slipway stop, Ctrl-C), snapshot saved", "not retry"
        ),
        NO_PROGRESS: Exit(
            Word.NO_PROGRESS, "no progress (crash loop, non-finite losses, no loadable snapshot)", "not retry"
        ),
    }
)

CODE_OF = MappingProxyType({row.word: code for code, row in EXITS.items()})


# What the disk is to blame for: it is full or broken, and whoever wrote did nothing wrong.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


# What says that no process or thread can be made here any more (RLIMIT_NPROC, pids.max): EAGAIN of clone(2), and Python's words.
# EAGAIN has the same text where a file is locked.
NO_MORE_PROCESSES = r"(?i)^(?!.*\b[a-z]*lock\b).*(resource temporarily unavailable|can't start new thread)"
MORE_PROCESSES = (
    "raise this node's limit of processes and threads: `ulimit -u`, --ulimit nproc and --pids-limit of docker run, podPidsLimit "
    "of the kubelet; fewer threads: OMP_NUM_THREADS=1"
)


class LaunchError(Exception):
    """Something a person has to mend. `code` is the exit code; the message says what to type. `missing`: a path that was named
    and is not there.
    """

    def __init__(self, message: str, code: int = CONFIGURATION, *, missing: str = "") -> None:
        super().__init__(message)
        self.code, self.missing = code, missing


def code_of(error: OSError) -> int:
    """The exit code for what the system refuses: a full or broken disk and a limit of processes are the node's fault."""
    return UNHEALTHY if error.errno in {*DISK_ERRORS, errno.EAGAIN} else CONFIGURATION


@contextlib.contextmanager
def told_if_unreadable(remedy: str) -> Iterator[None]:
    """Raise LaunchError where the system does not let this user look at a file or folder that somebody named; `remedy` says what
    to type. Also a decorator.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        file = os.fsdecode(error.filename)
        text = f"{file} cannot be read by user {os.getuid()}: {error.strerror}. {remedy}"
        raise LaunchError(text, code_of(error)) from None
