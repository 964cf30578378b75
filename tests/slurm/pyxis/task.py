"""What pyxis does in every task, between Slurm's fork and the command: start the container once, join it, become the command.

`task.py WANTED COMMAND…`, started by the real srun. As with pyxis the container is no process that lives beside the task:
the first task of a node forks one that makes the namespaces, ends up as the image's `sh` and stops itself; each task reads
its variables, joins its namespaces and becomes the command; the last one lets it go on, to its end. It was the first task's
child: the command there has a child that it never started, and that has ended.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from container import ContainerError, Image, default_signals, known_image, start
from kernel import enter, environment_of
from options import HOOKS, IMAGES, Wanted

LOCALE = ("LANG", "LANGUAGE", "LC_ALL")


def main() -> NoReturn:
    """Become the command, inside."""
    wanted, command = Wanted(**json.loads(sys.argv[1])), sys.argv[2:]
    job = environment_of(os.getpid())
    try:
        with holder(wanted, job) as pid:
            environ = merged(job, environment_of(pid), wanted.env)
            folder = os.open(f"/proc/{pid}/cwd", os.O_RDONLY)
            enter(pid)
            try:
                os.chdir(wanted.workdir or folder)
            except OSError as error:
                raise ContainerError(f"couldn't chdir to {wanted.workdir}: {error.strerror}") from None
    except (ContainerError, OSError) as error:
        fail(f"pyxis: {error}\npyxis: couldn't start container", 1)
    default_signals()
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        fail(f"execve(): {command[0]}: {error.strerror}", error.errno or 1)


@contextmanager
def holder(wanted: Wanted, job: dict[str, str]) -> Iterator[int]:
    """The process that holds the container of this node and step: whichever task comes first starts it.

    The tasks of a node join one after the other, under a lock.
    """
    folder = os.open(Path(wanted.images).parent / "steps", os.O_DIRECTORY)  # reached in other namespaces, too
    name = f"{job['SLURM_JOB_ID']}.{job['SLURM_STEP_ID']}-{job.get('SLURM_RESTART_COUNT', 0)}-{job['SLURM_NODEID']}"
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder)
    fcntl.flock(file, fcntl.LOCK_EX)
    pid, joined = map(int, os.read(file, 100).split() or (0, 0))
    try:
        if not pid:
            pid = -1  # for the others, if it does not start
            pid = start(hooked(wanted, job), wanted, job)
        if pid < 0:
            raise ContainerError("another task could not start it")
        yield pid
    finally:
        os.pwrite(file, f"{pid} {joined + 1}".encode(), 0)
        if joined + 1 == tasks_here(job):
            os.unlink(name, dir_fd=folder)
            if pid > 0:
                os.kill(pid, signal.SIGCONT)
        os.close(file)


def hooked(wanted: Wanted, job: dict[str, str]) -> Image:
    """The image, with the variables that a site's hooks add to its own."""
    image = known_image(wanted)
    if {"pyxis", "enroot"} & set(wanted.hooks):
        image["env"]["PYTORCH_VERSION"] = "2.10.0"  # as other images of PyTorch have it
    if "enroot" in wanted.hooks:  # its 50-slurm-pytorch.sh runs once per node: nothing here is a task's
        listed = ["scontrol", "show", "hostnames", job["SLURM_STEP_NODELIST"]]
        image["env"] |= {
            "MASTER_ADDR": subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()[0],
            "MASTER_PORT": str(61_000 + int(job["SLURM_JOB_ID"]) % 4_536),
            "WORLD_SIZE": job["SLURM_NTASKS"],
            "OMP_NUM_THREADS": "1",
        }
    return image


def merged(job: dict[str, str], inside: dict[str, str], kept: list[str]) -> dict[str, str]:
    """The job's variables and the container's, which win but for those of --container-env."""
    environ = {name: value for name, value in job.items() if name not in LOCALE or name in kept}
    environ |= {name: value for name, value in inside.items() if name not in kept or name not in environ}
    if "PYTORCH_VERSION" in environ:  # pyxis asks for no more, wherever that comes from
        environ |= {"RANK": environ["SLURM_PROCID"], "LOCAL_RANK": environ["SLURM_LOCALID"]}
    return {name: value for name, value in environ.items() if name not in (IMAGES, HOOKS)}


def tasks_here(job: dict[str, str]) -> int:
    """How many tasks the step has on this node: SLURM_STEP_TASKS_PER_NODE is `2(x3),1`."""
    counts: list[int] = []
    for part in job["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, _, repeat = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(repeat or 1)
    return counts[int(job["SLURM_NODEID"])]


def fail(message: str, code: int) -> NoReturn:
    """Say it as Slurm's step daemon does, and end."""
    for line in message.splitlines():
        print(f"slurmstepd: error: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
