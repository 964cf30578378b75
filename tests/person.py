"""An ordinary user in an empty folder, who pastes what the documentation, a run or a message says to type."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import IMAGE

ORDINARY = 4711  # neither root nor 1000, the image's own user
SOCKET = Path("/var/run/docker.sock")
PATIENCE = 590.0  # s; what is typed at once may be a page with ten starts of torch


class Person:
    """An ordinary user in an empty folder, who may talk to the engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix: list[str] = []
        self.environ = {**os.environ, "HOME": str(folder), "DOCKER_CONFIG": str(folder / ".docker"), "IMAGE": IMAGE}
        if os.getuid() == 0:
            os.chown(folder, ORDINARY, ORDINARY)
            self.prefix = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", f"--groups={SOCKET.stat().st_gid}"]

    def copies(self, source: Path, name: str) -> None:
        """Have a file or folder of the checkout's, as `git clone` leaves it."""
        subprocess.run([*self.prefix, "cp", "--recursive", source, self.folder / name], check=True)

    def types(self, command: str, code: int = 0, **variables: str) -> str:
        """What is printed for a pasted command, which must end with this code."""
        command = re.sub(r"(?<!\S)slipway:dev(?!\S)", IMAGE, command)
        done = subprocess.run(
            [*self.prefix, "bash", "-euo", "pipefail", "-c", command], cwd=self.folder, text=True, timeout=PATIENCE, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environ | variables,
        )  # fmt: skip
        assert done.returncode == code, f"{command}\nended with {done.returncode}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def person() -> Iterator[Person]:
    """An ordinary user, with a folder outside of pytest's: those are closed to others, again by each session that begins."""
    with tempfile.TemporaryDirectory(prefix="slipway-person-", ignore_cleanup_errors=True) as above:
        Path(above).chmod(0o755)
        folder = Path(above, "empty")
        folder.mkdir()
        yield Person(folder)
