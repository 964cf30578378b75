"""What `enroot start` does: namespaces of the user's own, the image at / and read-only, its login shell, then its rc script."""

import json
import os
import pwd
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypedDict

from kernel import NO_NEW_PRIVS, NODEV, NOEXEC, NOSUID, RDONLY, call, change_root, unshare
from options import Wanted
from root import make_root

PATIENCE = 30.0  # s; pyxis itself waits for ever
STOPPED = (
    "sh",
    "-c",
    "kill -STOP $$ ; exit 0",
)  # what pyxis runs in a container, behind the ENTRYPOINT where it is asked to
FLAGS = {"ro": RDONLY, "rw": 0, "nosuid": NOSUID, "nodev": NODEV, "noexec": NOEXEC}
RC = """\
mkdir -p {workdir} 2> /dev/null
cd {workdir} && unset OLDPWD || exit 1
exec {entrypoint} "$@"
"""


class Image(TypedDict):
    """A prepared image: its layers' common folder, and what its configuration says."""

    root: str
    env: dict[str, str]
    entrypoint: list[str]
    workdir: str


class ContainerError(Exception):
    """Why there is no container."""


def start(image: Image, wanted: Wanted, job: dict[str, str]) -> int:
    """Start the container's process and return its id once it has stopped itself. Raises ContainerError."""
    log = os.memfd_create("enroot-log")
    pid = os.fork()
    if not pid:
        try:
            for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
                os.dup2(file, number)
            become(image, wanted, job)
        except BaseException as error:  # nothing here may go on as if it were the task
            os.write(2, f"enroot-mount: {error}\n".encode())
        os._exit(1)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            return pid
        if ended:
            code = os.waitstatus_to_exitcode(status)
            said = os.pread(log, 100_000, 0).decode(errors="replace").splitlines()
            raise ContainerError("\n    ".join([f"container start failed with error code: {code}", *said]))
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise ContainerError(
        "the ENTRYPOINT did not become what is behind it, so it never stopped: real pyxis would wait for ever"
    )


def become(image: Image, wanted: Wanted, job: dict[str, str]) -> NoReturn:
    """Become the container's login shell with its rc script."""
    os.umask(0o022)
    user = None  # whom a host does not know, its containers do not know either, and he has no home there
    with suppress(KeyError):
        user = pwd.getpwuid(os.getuid()) if "stranger" not in wanted.hooks else None
    lower = Path(image["root"])
    entrypoint = shlex.join(image["entrypoint"]) if wanted.entrypoint else ""
    files = {"/etc/rc": RC.format(workdir=shlex.quote(image["workdir"] or "/"), entrypoint=entrypoint)}
    environ = image["env"] | {name: job[name] for name in wanted.env if job.get(name) and name != "PATH"}
    environ.setdefault("TERM", job.get("TERM", "dumb"))
    mounts = [(source, target, read_flags(flags)) for source, target, flags in wanted.mounts]
    if wanted.mount_home:
        environ["HOME"] = job["HOME"]
        mounts.append((job["HOME"], job["HOME"], NOSUID))
    shell = "/bin/sh"
    if user:
        entry = ":".join(str(field) for field in user)
        files["/etc/passwd"] = f"{entry}\n{(lower / 'etc/passwd').read_text()}"
        if os.access(lower / user.pw_shell[1:], os.X_OK):
            shell = user.pw_shell
        environ = {"HOME": user.pw_dir, "SHELL": shell, "USER": user.pw_name, "LOGNAME": user.pw_name} | environ

    unshare()
    # Any folder does as a scratch place: it is hidden in these namespaces alone.
    change_root(make_root(Path(wanted.images).parent / "steps", lower, files, [user.pw_dir] if user else [], mounts))
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    default_signals()
    os.execve(shell, [f"-{Path(shell).name}", "/etc/rc", *STOPPED], environ)


def read_flags(words: str) -> int:
    """The flags of a mount, written with + between them."""
    unknown = [word for word in words.split("+") if word and word not in FLAGS]
    if unknown:
        raise ContainerError(
            f"the stand-in in the tests does not have the mount flag {unknown[0]}, only {', '.join(FLAGS)}"
        )
    return sum({FLAGS[word] for word in words.split("+") if word})


def known_image(wanted: Wanted) -> Image:
    """The image that was asked for. Raises ContainerError where the tests have prepared no such image."""
    image: Image | None = json.loads(Path(wanted.images).read_text()).get(wanted.image)
    if image is None:
        raise ContainerError(
            f"failed to import docker image: {wanted.image} is not among those that the tests prepared"
        )
    return image


def default_signals() -> None:
    """Take back that Python ignores two signals: what is ignored stays so in the next program."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
