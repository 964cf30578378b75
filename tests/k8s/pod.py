"""A pod that runs: its container, its end, and its termination message."""

import re
import shlex
import subprocess
import tempfile
import time
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from containers import Container, Containers, docker
from kubectl import Document
from kubelet import docker_words
from policy import Ended
from volumes import Volumes

MESSAGE_BYTES, LOG_BYTES, LOG_LINES = 4096, 2048, 80  # kubelet's limits


class Pod:
    """A pod of one container. It is started with this object."""

    def __init__(
        self,
        document: Document,
        index: int,
        documents: list[Document],
        claims: dict[str, str],
        more: list[str],
        undo: ExitStack,
    ) -> None:
        """`claims`: volumes by the names of their claims; `more`: more words for Docker."""
        self.document, self.index, self._undo = document, index, undo
        self.name: str = document["metadata"]["name"]
        spec = document["spec"]
        [self._container] = spec["containers"]
        self.grace: int = spec.get("terminationGracePeriodSeconds", 30)
        self.disrupted = self.told = False
        mounts = Volumes(spec, claims, undo).flags(self._container)
        self._folder = Path(undo.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        self._folder.chmod(0o755)
        self._message = self._folder / "termination-log"
        self._message.touch()
        self._message.chmod(0o666)
        message = ["--volume", f"{self._message}:/dev/termination-log"]
        self._words = shlex.join(docker_words(document, documents, [*mounts, *message, *more]))
        self.restarts, self._before, self._fell = 0, "", 0.0
        self.container: Container = Containers(undo).start(self._words)

    @property
    def text(self) -> str:
        """All it has written."""
        return self._before + self.container.text

    @property
    def running(self) -> bool:
        """Whether it has not ended: kubelet starts a container that failed again under `restartPolicy: OnFailure`."""
        return self._up or (self._in_place and not self.told and self.container.state("ExitCode") != "0")

    @property
    def _up(self) -> bool:
        return self.container.state("Status") != "exited"

    @property
    def _in_place(self) -> bool:
        return bool(self.document["spec"]["restartPolicy"] == "OnFailure")

    def keep_up(self, haste: float) -> None:
        """Kubelet's part under OnFailure: another container in the place of one that failed, with the volumes as they are, after
        a back-off of 10 s, twice as long each time, which passes `haste` times as fast.
        """
        if self._up or not self.running:
            return
        self._fell = self._fell or time.monotonic()
        if time.monotonic() - self._fell >= min(10.0 * 2**self.restarts, 300.0) / haste:
            self._before, self._fell, self.restarts = self.text, 0.0, self.restarts + 1
            self.container = Containers(self._undo).start(self._words)

    @cached_property
    def ended(self) -> Ended:
        """How it ended, once it has, and when that was seen first."""
        assert not self.running, self.name
        code = int(self.container.state("ExitCode"))
        return Ended(self.name, self.index, self._container["name"], code, self.disrupted, time.monotonic())

    @property
    def message(self) -> str:
        """Its termination message, as kubelet reads it after the end."""
        written = self._message.read_bytes()[-MESSAGE_BYTES:]
        fallback = self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not written and fallback and self.ended.code:
            written = "\n".join(self.text.splitlines()[-LOG_LINES:]).encode()[-LOG_BYTES:]
        return written.decode(errors="replace")

    @property
    def resumed(self) -> int | None:
        """The step of the snapshot that its newest attempt went on from, if it did."""
        told = re.findall(r"resuming from \S*step-(\d+)", self.text)
        return int(told[-1]) if told else None

    @property
    def holds(self) -> int:
        """How often its rank has been held."""
        return self.text.count("fault: hold")

    def let_go(self, file: str) -> None:
        """Make the file that its rank waits for."""
        docker("exec", self.container.name, "touch", file)

    def kill(self) -> None:
        """SIGKILL to its first process: everything in it ends without a word."""
        docker("kill", "--signal", "KILL", self.container.name)

    def stop(self) -> None:
        """SIGTERM now, SIGKILL after the grace; does not wait."""
        if not self.told:
            command = ["docker", "stop", "--time", str(self.grace), self.container.name]
            stopping = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            self._undo.callback(stopping.wait)
        self.told = True

    def evict(self) -> None:
        """What a drained node or a preemption does: the condition DisruptionTarget, then the pod is told to end."""
        self.disrupted = True
        self.stop()

    def results(self) -> Path:
        """The only run on its volume, copied out."""
        copy = self._folder / "checkpoints"
        docker("cp", f"{self.container.name}:/checkpoints/.", str(copy))
        [run] = (path for path in copy.iterdir() if path.is_dir())
        return run

    def snapshots(self) -> list[int]:
        """The steps of the snapshots that it has, the oldest first; while it runs, too."""
        look = ["docker", "exec", self.container.name, "bash", "-c", "ls -d /checkpoints/*/snapshots/step-*[0-9]"]
        done = subprocess.run(look, capture_output=True, text=True)
        return sorted(int(line.rpartition("-")[2]) for line in done.stdout.split())
