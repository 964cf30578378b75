"""Launchers as processes of their own, on this host or inside network namespaces."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import slipway

STUB = Path(__file__).parent / "stub.py"
# Where this very slipway lies, installed or not.
SOURCES = str(Path(slipway.__path__[0]).parent)


class Process:
    """A stub launcher; `namespace` is a network namespace to run it in."""

    def __init__(self, namespace: str | None = None, **options: Any) -> None:
        prefix = ["ip", "netns", "exec", namespace] if namespace else []
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-u", str(STUB), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": SOURCES},
        )
        self.log = ""

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._process.stdout:
            self._process.stdout.close()

    def wait_for_start(self, seconds: float = 20.0) -> dict[str, Any]:
        """What the rendezvous gave this launcher."""
        assert self._process.stdout
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            line = self._process.stdout.readline()
            assert line, f"ended before the start: {self.log}"
            self.log += line
            if line.startswith('{"start"'):
                return dict(json.loads(line)["start"])
        raise AssertionError(f"no start: {self.log}")

    def kill(self) -> None:
        """SIGKILL, as an out-of-memory kill or `docker kill` sends it."""
        self._process.kill()
        self._process.wait(10)

    def finish(self, seconds: float = 60.0) -> int:
        """The exit code; the log holds all that was printed."""
        self.log += self._process.communicate(timeout=seconds)[0]
        return self._process.returncode
