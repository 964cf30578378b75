"""A compose project on the real engine, in a checkout's root as `cp .env.example .env` leaves it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waiting import wait_until

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("IMAGE") or "slipway:dev"
ENVIRON = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("DOCKER_")}

ONE_NODE = "compose/compose.yaml"
CPU = "compose/compose.yaml:compose/cpu.yaml"
TWO_NODES = "compose/two-nodes.yaml"
# They last until they are stopped, however fast the machine is; with snapshots soon, and points for a chart.
GPT = "gpt --preset tiny --layers 2 --context 64 --steps 1000000 --save-every 10 --log-every 5"
SHORT = "gpt --preset tiny --layers 2 --context 64 --steps 20 --eval-samples 16 --sample-tokens 20"
LINEAR = "linear --steps 1000000 --save-every 100"


def docker(*words: str, timeout: float = 60) -> str:
    """The output of a docker command that must work."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=timeout, check=False, env=ENVIRON)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


class Project:
    """`project("up", "--detach")` is `docker compose up --detach` in its root. Keywords are variables of the shell."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.root, self.name = root, f"slipway-test-{secrets.token_hex(4)}"
        shutil.copytree(ROOT / "compose", root / "compose", symlinks=True)
        lines = [f"{name}={value}" for name, value in {"IMAGE": IMAGE, **settings}.items()]
        example = (ROOT / ".env.example").read_text(encoding="utf-8")
        (root / ".env").write_text("\n".join([example, *lines, ""]), encoding="utf-8")

    def __call__(self, *words: str, code: int = 0, timeout: float = 120, **shell: str) -> str:
        """Return what a command prints; it must end with `code`."""
        command = ["docker", "compose", "--ansi", "never", "--project-name", self.name, *words]
        done = subprocess.run(
            command,
            cwd=self.root,
            env=ENVIRON | shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def type_in(self, command: str) -> str:
        """What a shell in its root prints for a command as it was told; it must be well."""
        words, environ = ["bash", "-euo", "pipefail", "-c", command], ENVIRON | {"COMPOSE_PROJECT_NAME": self.name}
        done = subprocess.run(
            words,
            cwd=self.root,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def container(self, service: str) -> dict[str, Any]:
        """What `docker inspect` says of a service's container."""
        found: dict[str, Any] = json.loads(docker("inspect", self("ps", "--all", "--quiet", service).strip()))[0]
        return found

    def logs(self, service: str) -> str:
        """All that a service's container said, earlier starts included."""
        return self("logs", "--no-log-prefix", service)

    def wait_for_text(self, service: str, text: str) -> None:
        """Wait until a service says something."""
        self.wait(lambda: text in self.logs(service), repr(text), service)

    def wait_for_steps_after_resuming(self, service: str) -> None:
        """Wait until a service that resumed a run has taken steps of its own: a stop before that has nothing to save."""

        def trains() -> bool:
            return bool(re.search(r"step \d+/", self.logs(service).partition("resuming from ")[2]))

        self.wait(trains, "steps after it resumed", service)

    def wait(self, holds: Callable[[], object], what: str, service: str) -> None:
        """Wait until something holds, or fail with all that a service said."""
        wait_until(holds, lambda: f"{what}:\n{self.logs(service)}", every=0.2)

    def wait_for_snapshot(self, service: str) -> None:
        """Wait until the run has a snapshot."""
        docker_id = self.container(service)["Id"]
        look = ["docker", "exec", docker_id, "sh", "-c", "ls -d /checkpoints/*/snapshots/step-*"]

        def saved() -> bool:
            return subprocess.run(look, capture_output=True, check=False, env=ENVIRON).returncode == 0

        self.wait(saved, "a snapshot", service)

    def kill(self, service: str) -> None:
        """Kill the container's first process as the kernel would; `docker kill` counts as a wish of the user's."""
        pid = self.container(service)["State"]["Pid"]
        docker("run", "--rm", "--pid=host", "--user=0", "--entrypoint=bash", IMAGE, "-c", f"kill -KILL {pid}")

    def wait_for_end(self, service: str) -> dict[str, Any]:
        """Wait until a service has ended and is not started again; return what `docker inspect` says of it then."""

        def ended() -> bool:
            return bool(self.container(service)["State"]["Status"] == "exited")

        self.wait(ended, "its end", service)
        return self.container(service)

    def copy_out(self, service: str) -> Path:
        """Copy the only run out of the volume, as the README says; return where it lies now."""
        self("cp", f"{service}:/checkpoints/.", "runs")
        (run,) = (self.root / "runs").iterdir()
        return run

    def remove(self) -> None:
        """Take away all that it made."""
        self("--profile", "tensorboard", "down", "--volumes", "--remove-orphans", "--timeout", "0")
