"""A launcher's lock on its node's folder in a run directory (process/folder_lock.py), and the message if another has it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.run import Run, cannot_make
from slipway.process.folder_lock import STILL, FolderLock, Holder, is_alive, name_of, read_holder, this_process
from slipway.protocol.errors import CODE_OF, MORE_PROCESSES, UNHEALTHY, LaunchError

if TYPE_CHECKING:
    from slipway.launch.attempt.stops import Stops


def lock_file(run: Run, plan: Plan) -> Path:
    """The file in which a launcher says that it holds its node's folder; one per process where it was started so."""
    return run.node(plan.topology.node_rank, plan.topology.process_rank).lock


def refuse_held(file: Path, stops: Stops, patience: float = STILL) -> None:
    """Raise LaunchError (78) while the process that a file names is alive; 75 or 79 where a stop comes meanwhile."""
    holder = read_holder(file)
    if not is_alive(file, stops.wait, patience):
        return
    if stop := stops.first:
        raise LaunchError(f"{stop.name} came before anything was started.", CODE_OF[stops.word])
    run = file.parent.parent
    raise LaunchError(
        f"The run directory {run} is in use by {name_of(holder)}. Wait for it, end it with "
        f"`slipway stop {shlex.quote(str(run))}`, or choose another folder with --run-dir."
    )


class RunLock(FolderLock):
    """This launcher's hold on its node's folder in a run directory, as a context manager."""

    def __init__(
        self, file: Path, say: Callable[[str], None], stops: Stops, patience: float = STILL, job: str = ""
    ) -> None:
        """`file` is what `lock_file` of the run says. Who holds it for the same `job`, a nonce, is no part of it any more:
        its nodes have agreed on this launcher in its place.
        """
        super().__init__(file)
        self._say, self._stops, self._patience, self._job = say, stops, patience, job

    def __enter__(self) -> RunLock:
        """Take it. Raises LaunchError: 78 while another process holds it, 77 or 78 where it cannot be written."""
        try:
            self.take(this_process(time.time(), self._job), self._make_way)
        except OSError as error:
            raise cannot_make(error) from None
        except RuntimeError as error:
            raise LaunchError(f"The launcher cannot continue: {error}. Remedy: {MORE_PROCESSES}.", UNHEALTHY) from None
        return self

    def _make_way(self, holder: Holder | None) -> None:
        if self._job and holder and holder.job == self._job:
            self._say(f"{name_of(holder)} was lost; this launcher takes its place")
            return
        refuse_held(self._file, self._stops, self._patience)
        self._say(f"{name_of(holder)} ended without a report; this launcher takes over the run directory")

    def __exit__(self, *_: object) -> None:
        """Let go."""
        self.release()
