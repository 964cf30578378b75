"""A process between launcher and torchrun that ends everything below it when the launcher is gone, whatever sessions it has.

A launcher ends all its descendants itself. One that is killed with SIGKILL cannot: torchrun and the workers end with it
(PR_SET_PDEATHSIG), but what a user's script started in sessions of its own would go on. It costs a fork of a Python process that
has imported next to nothing.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from slipway.launch.own_processes import OwnProcesses
from slipway.launch.process_tree import adopt_orphans

PR_SET_PDEATHSIG = 1  # linux/prctl.h
GONE = signal.SIGRTMIN + 1  # from the kernel: the launcher is gone


def end_with(parent: int, number: int) -> None:
    """Have the kernel send a signal to this process when its `parent` ends (prctl(2)); exit where it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(1)


def stand_between(launcher: int) -> None:
    """Go on in a child of this process, which stays behind as the reaper and ends as the child does.

    `launcher` is the process id of the parent. It may be process 1 of a container.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody is told of a child's end
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {GONE, signal.SIGCHLD})
    end_with(launcher, GONE)
    adopt_orphans()
    own, below, child = os.getpid(), OwnProcesses(), os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        end_with(own, signal.SIGKILL)
        return
    close_files()  # the launcher reads the workers' pipes until nobody has them open
    while True:
        if signal.sigwait({GONE, signal.SIGCHLD}) == GONE:
            below.end()
            os._exit(1)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    below.end_unmarked()  # all that is below is known here to be our own; the launcher knows it by its mark
                    end_as(ended[1])


def close_files(spared: Collection[int] = ()) -> None:
    """Close what this process has open beside its standard streams."""
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in spared:
            with suppress(OSError):  # the listing's own
                os.close(number)


def end_as(status: int) -> None:
    """End as another process did, by its wait status: with its exit code, or by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    sys.stdout.flush()
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
