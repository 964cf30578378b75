"""Containers of the image under test, started as people start them: what one types behind `docker run`."""

import os
import re
import secrets
import shlex
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass

from waiting import wait_until

IMAGE = os.environ.get("IMAGE", "slipway:dev")
PATIENCE = 240.0  # s; a machine under load needs many seconds for two imports of torch, and docker for each look
# Room in /dev/shm and results on a volume (which goes with the container): nothing to warn about.
WELL = "--shm-size 1g --volume /checkpoints"
# What of a warning is the same everywhere.
NO_VOLUME, IN_MEMORY = "is not a mounted volume", "is on a tmpfs, in memory"
SMALL_SHM, NOEXEC = "/dev/shm holds 64 MB", "/tmp is mounted noexec"
# Ours ("slipway: warning: …"), Python's (logging, warnings, exceptions), tini's, and those of torch's C++ ("[W1121 …").
LOUD = re.compile(r"\bWARN|\bERROR\b|Traceback|[Ww]arning: |\b[WE]\d{3,4} \d\d:")


def docker(*words: str) -> str:
    """Run `docker …` and return what it prints; fails where it fails."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, errors="replace", timeout=PATIENCE)
    assert done.returncode == 0, f"docker {shlex.join(words)}: {done.stderr}"
    return done.stdout


def fresh_name() -> str:
    """A name for a container, a network or an image of a test."""
    return f"slipway-test-{secrets.token_hex(4)}"


def as_oneself() -> str:
    """The option by which what a container writes into a folder of ours is our own; root's tests take the image's user."""
    return f"--user {os.getuid()}:0" if os.getuid() else ""


def command_line(line: str) -> list[str]:
    """The words of what one types behind `docker run`; IMG stands for the image."""
    return [IMAGE if word == "IMG" else word for word in shlex.split(line)]


@dataclass(frozen=True)
class Container:
    """A container that was started. `warns` are parts of the warnings it is to give, and of no others."""

    name: str
    warns: tuple[str, ...]

    @property
    def streams(self) -> tuple[str, str]:
        """All it has written to stdout and to stderr."""
        logs = ["docker", "logs", self.name]
        done = subprocess.run(logs, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=True)
        return done.stdout, done.stderr

    @property
    def stdout(self) -> str:
        return self.streams[0]

    @property
    def text(self) -> str:
        """The workers' output, then the launcher's."""
        return "".join(self.streams)

    @property
    def closing(self) -> list[str]:
        """What the launcher itself said."""
        return [line.removeprefix("slipway: ") for line in self.streams[1].splitlines()]

    def wait_for(self, words: str) -> None:
        """Wait until it says something."""
        wait_until(lambda: self.has_said(words), lambda: f"{words!r}:\n{self.text}", PATIENCE, every=0.3)

    def has_said(self, words: str, times: int = 1) -> bool:
        """Whether it said something so many times. AssertionError where it has ended and cannot any more."""
        runs = self.state("Running") == "true"
        said = self.text.count(words) >= times
        assert said or runs, f"ended without {words!r}:\n{self.text}"
        return said

    def wait(self, code: int = 0) -> "Container":
        """Wait for its end with this exit code; fails on a loud line that was not expected, or that did not come."""
        assert int(docker("wait", self.name)) == code, self.text
        loud = [line for line in self.text.splitlines() if LOUD.search(line)]
        unexpected = [line for line in loud if not any(words in line for words in self.warns)]
        assert not unexpected, self.text
        assert all(any(words in line for line in loud) for words in self.warns), self.text
        return self

    def state(self, what: str) -> str:
        """A field of its state, as `docker inspect` tells it."""
        return docker("inspect", "--format", f"{{{{.State.{what}}}}}", self.name).strip()


class Containers:
    """The `container` fixture: `container("IMG linear")` runs to the end, `container.start(…)` leaves it running."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def start(self, line: str, *, warns: tuple[str, ...] = (), name: str = "") -> Container:
        """Start a container with what one types behind `docker run`."""
        container = Container(name or fresh_name(), warns)
        self._undo.callback(docker, "rm", "--force", "--volumes", container.name)
        docker("run", "--detach", "--name", container.name, *command_line(line))
        return container

    def __call__(self, line: str, *, warns: tuple[str, ...] = (), code: int = 0) -> Container:
        """Run a container to its end, which must have this exit code."""
        return self.start(line, warns=warns).wait(code)
