"""Faults of a container, on a real engine: the job runs in the image, with its results in the scene's folder."""

import os
import shlex
import signal
import threading

from containers import Container, Containers, as_oneself, docker
from scene import INSIDE, JOB, Scene, faults
from waiting import wait_until


class ContainerJob:
    """A container, with what the table asks of any job."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.wait_for = container.wait_for

    @property
    def text(self) -> str:
        return self.container.text

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines(keepends=True)

    @property
    def closing(self) -> list[str]:
        return [line[9:].rstrip() for line in self.lines if line.startswith("slipway: ")]

    def end(self, timeout: float) -> int:
        """The exit code, once the engine will not start it again."""
        wait_until(
            lambda: self.container.state("Status") == "exited",
            lambda: f"the end of the container:\n{self.text}",
            timeout,
            every=0.2,
        )
        return int(self.container.state("ExitCode"))


def start(scene: Scene, options: str, *wanted: dict[str, object]) -> ContainerJob:
    """Start the job in a container with more of docker's options, and wait for the first of the faults, if any."""
    harm = faults("/checkpoints/run", "/checkpoints/go", *wanted)
    job = shlex.join(("run", "--run-dir", "/checkpoints/run", "--max-restarts", "0", *JOB))
    volumes = f"--volume {scene.folder}:/checkpoints --volume {INSIDE}:/inside:ro"
    variables = f"--env PYTHONPATH=/inside --env NPROC_PER_NODE=2 --env {shlex.quote('FAULTS=' + harm)}"
    line = f"--shm-size 1g {as_oneself()} {volumes} {variables} {options} IMG {job}"
    container = ContainerJob(Containers(scene.stack).start(line))
    if wanted:
        container.wait_for("fault: ")
    return container


HOLD = {"do": "hold", "beat": ("train", 25, 3)}


def killed_and_restarted(scene: Scene) -> ContainerJob:
    """Its first process is killed from the host, in the middle of step 26, and the engine starts it again."""
    job = start(scene, "--restart on-failure", HOLD)
    scene.harm()
    scene.release()
    os.kill(int(job.container.state("Pid")), signal.SIGKILL)
    return job


def docker_stop(scene: Scene) -> ContainerJob:
    """`docker stop -t 60`, and the snapshot takes 40 s."""
    slow = {"do": "wait", "seconds": 40, "event": ("open", r"\.step-00000026\.writing/model", 1)}
    job = start(scene, "", HOLD, slow)
    scene.harm()
    threading.Thread(target=docker, args=("stop", "-t", "60", job.container.name)).start()
    scene.wait_for_file("node-0/stop")
    scene.release()
    return job


def out_of_memory(scene: Scene) -> ContainerJob:
    """A rank eats all that `docker run --memory` allows."""
    job = start(scene, "--memory 1500m --memory-swap 1500m", {"do": "eat", "rank": 1, "beat": ("train", 25, 1)})
    scene.harm()
    return job
