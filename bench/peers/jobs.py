"""A side of `bench/gpt.py` as the bench sees it: processes that are given a turn, and answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from peers.plan import PIPE, PLAN, PROCESSES, Plan
from slipway.launch.resolve.connectivity import free_port

PATIENCE = 600  # seconds for one answer; whoever compiles needs minutes


class Job:
    """The processes of one side, with a pipe to the first."""

    def __init__(self, module: str, plan: Plan) -> None:
        """Start `peers.MODULE`; it waits for its first turn."""
        self._folder = Path(plan.folder) / module
        self._folder.mkdir()
        self._output = self._folder / "output.txt"
        self._pipe, theirs = Pipe()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "peers.ranks", module],
                env=self._environ(plan) | {PIPE: str(theirs.fileno())},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        theirs.close()

    def _environ(self, plan: Plan) -> dict[str, str]:
        return dict(os.environ) | {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port(0)),
            "WORLD_SIZE": str(PROCESSES),
            "LOCAL_WORLD_SIZE": str(PROCESSES),
            "SLIPWAY_RUN_DIR": str(self._folder),
            "SLIPWAY_NODE_DIR": str(self._folder),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(plan.folder) / "compiled"),
            PLAN: plan.write(),
        }

    def take_turn(self) -> Any:
        """What the side answers after its turn."""
        self._pipe.send("go")
        return self.answer()

    def answer(self) -> Any:
        """What the side says next. Raises RuntimeError with its last lines where it ended, or says nothing."""
        with suppress(EOFError):
            for _ in range(PATIENCE):
                ended = self._process.poll() is not None
                if self._pipe.poll(1.0):
                    return self._pipe.recv()
                if ended:
                    break
        said = self._output.read_text(errors="replace").splitlines()[-30:]
        raise RuntimeError("\n".join([f"{self._folder.name} does not answer:", *said]))

    def close(self) -> None:
        """End its processes."""
        self._pipe.close()
        with suppress(ProcessLookupError):  # all of them came to their end
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
