"""torch's flight recorder: NCCL's last collectives of each rank as a file, on a time-out or when the launcher asks for it.

With TORCH_NCCL_DEBUG_INFO_PIPE_FILE torch makes a named pipe for each rank, its value with the rank and `.pipe` behind, and a
thread that needs nothing of the others looks into it once a second (DumpPipe in ProcessGroupNCCL.hpp, torch 2.10).
"""

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress

DUMP_SECONDS = (
    3.0  # that ranks have from the request to the end: torch's look (TORCH_NCCL_COORD_CHECK_MILSEC), and writing
)
SIZE, OLD_SIZE, COLLECTIVES = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"
PIPES = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


def record(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the variables that make NCCL's last collectives a file per rank, `prefix` with the rank behind, on a time-out.

    What the user set stands, under the names before torch 2.9 as well.
    """
    rows = (
        (SIZE, OLD_SIZE, COLLECTIVES),
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
    )
    return {name: value for name, older, value in rows if not (environ.get(name) or environ.get(older))}


class Pipes:
    """The pipes of this node's ranks. They lie in a private folder: a run directory may be on a disk that knows no pipes."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks, self._prefix = tuple(ranks), ""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make torch listen; none where no folder can be made. The user's own pipes are used."""
        self._prefix = environ.get(PIPES, "")
        if not self._prefix:
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="slipway-", ignore_cleanup_errors=True)
            except OSError:
                return {}
            self._prefix = f"{self._folder.name}/rank-"
        # DumpPipe knows the old name of the size alone. torch says once that it is deprecated, and prefers the new one.
        return {PIPES: self._prefix, OLD_SIZE: environ.get(SIZE) or environ.get(OLD_SIZE) or COLLECTIVES}

    def ask(self) -> bool:
        """Ask all ranks for their files, and wait for none. Returns whether one listens."""
        answers = [_write(f"{self._prefix}{rank}.pipe") for rank in self._ranks if self._prefix]
        return any(answers)

    def close(self) -> None:
        """Remove the folder."""
        if self._folder:
            self._folder.cleanup()


def _write(pipe: str) -> bool:
    with suppress(OSError):  # none was made, or nobody has it open for reading (ENXIO)
        number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(number, b"dump") > 0
        finally:
            os.close(number)
    return False
