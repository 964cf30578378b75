"""Real launchers as processes: `slipway(...)` runs one to its end, `start(...)` leaves it running."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launchers import OWN_SCRIPT, Launcher


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Start `slipway` in a folder of the test's own, with a clean environment; whatever is left is killed at the end."""
    running: list[Launcher] = []

    def launch(*words: str, before: tuple[str, ...] = (), **variables: str) -> Launcher:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "slipway", *words],
            cwd=tmp_path,
            env={**kept, "PYTHONWARNINGS": "ignore", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        running.append(Launcher(process))
        return running[-1]

    yield launch
    for launcher in running:
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.wait()


@pytest.fixture
def slipway(start: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Run `slipway` to its end; the exit code is in `.process.returncode`."""

    def launch(*words: str, before: tuple[str, ...] = (), **variables: str) -> Launcher:
        launcher = start(*words, before=before, **variables)
        launcher.end()
        return launcher

    return launch


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A user's own program: plain torch.distributed, without any import of ours."""
    path = tmp_path / "own.py"
    path.write_text(OWN_SCRIPT)
    return path
