"""Runs a script as a first attempt does, and as a warm one: with what its first run reported of its imports, in a process that has
imported torch before. Without a launcher: what starts and forks the processes is the launcher's own code.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers import PYTHON
from ports import take_ports
from waiting import PATIENCE, wait_until

from slipway.launch.attempt import warm_standby
from slipway.launch.attempt.child import AGENT
from slipway.launch.attempt.warm_standby import WarmStandby
from slipway.process.tree import OwnProcesses, adopt_orphans
from slipway.protocol.imports import Imports

PLACE = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "2",
    "CUDA_VISIBLE_DEVICES": "", "SLIPWAY_ATTEMPT": "1",
}  # fmt: skip
ALL = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLIPWAY_ATTEMPT")  # the same in the launcher


@dataclass(frozen=True)
class Ran:
    """A run of a script: its stdout, its stderr, its exit code, and how it imported torch."""

    out: str
    error: str
    code: int
    imports: Imports


class Listening:
    """In the launcher's place: takes what a watcher reports."""

    def __init__(self) -> None:
        self.name, self.imports = f"slipway-test-{secrets.token_hex(8)}", Imports()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            link, _ = self._socket.accept()
            with link, link.makefile("rb") as lines:
                for line in lines:
                    said = json.loads(line)
                    self.imports = self.imports.take(said["imports"]) if "imports" in said else self.imports

    def close(self) -> Imports:
        """All that was reported."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()
        return self.imports


def environment(folder: Path, more: Mapping[str, str], **place: str) -> dict[str, str]:
    """The variables of a script that runs in a folder."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, **PLACE, "SLIPWAY_NODE_DIR": str(folder), **more, **place}


def without_place(environ: Mapping[str, str]) -> dict[str, str]:
    """What torchrun has, before it adds where a worker is."""
    return {name: value for name, value in environ.items() if name not in PLACE or name in ALL}


def run_cold(words: Sequence[str], folder: Path, more: Mapping[str, str]) -> Ran:
    """As the first attempt starts it."""
    listening = Listening()
    told = environment(folder, more, SLIPWAY_WATCHER=listening.name)
    ended = subprocess.run(
        [PYTHON, "-u", *words],
        cwd=folder,
        env=told,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
    imports = listening.close()
    return Ran(ended.stdout.decode(), ended.stderr.decode(), ended.returncode, imports)


@contextlib.contextmanager
def script_standby(
    words: Sequence[str], folder: Path, more: Mapping[str, str], imports: Imports
) -> Iterator[WarmStandby]:
    """The process that waits for the next attempt, once it has imported everything."""
    adopt_orphans()
    warm_standby.LOADING = warm_standby.ANSWER = PATIENCE
    before = Path.cwd()
    with WarmStandby(OwnProcesses(), wanted=True) as standby:
        told = without_place(environment(folder, more))
        os.chdir(folder)
        try:
            standby.start_script([PYTHON, "-u", *words], told, imports)
        finally:
            os.chdir(before)

        def waits() -> bool:
            standby.poll()
            return standby.waits or standby.pid is None

        wait_until(waits, "the script_standby process")
        if standby.waits and imports.dynamo == "":
            standby.load("torch._dynamo")
        yield standby


def run_warm(
    standby: WarmStandby, words: Sequence[str], folder: Path, more: Mapping[str, str], attempt: str = "2"
) -> Ran:
    """As the next attempt starts it, in torchrun's hands."""
    told = without_place(environment(folder, more, SLIPWAY_ATTEMPT=attempt))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error, tempfile.TemporaryFile() as log:
        events, telling = os.pipe()
        listening = Listening()
        told["SLIPWAY_WATCHER"] = listening.name
        torchrun = [
            "--nnodes=1", "--node-rank=0", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={take_ports(1)}",
            "--max-restarts=0", "--signals-to-handle=SIGQUIT", "--no-python", "--", PYTHON, "-u", *words,
        ]  # fmt: skip
        terms = (str(os.getpid()), str(telling), f"{out.fileno()},{error.fileno()}", str(folder), "0,0,1", "", "")
        files = {number: number for number in (telling, out.fileno(), error.fileno())}
        nothing = os.open(os.devnull, os.O_RDONLY)
        files |= {0: nothing, 1: log.fileno(), 2: log.fileno()}
        agent = standby.fork((*AGENT, *terms, *torchrun), told, files)
        assert agent, standby.why
        agent.wait(PATIENCE)
        for number in (telling, nothing):
            os.close(number)
        with os.fdopen(events) as file:
            said = [json.loads(line) for line in file]
        codes = [failure["exitcode"] for event in said if event["event"] == "failed" for failure in event["failures"]]
        out.seek(0), error.seek(0), log.seek(0)
        if not any(event["event"] == "started" for event in said):
            raise AssertionError(log.read().decode())
        imports = listening.close()
        return Ran(out.read().decode(), error.read().decode(), codes[0] if codes else 0, imports)
