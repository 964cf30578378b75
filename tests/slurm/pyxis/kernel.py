"""System calls for which Python has no function of its own in every version that we support."""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000  # linux/sched.h
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, SLAVE = 1, 2, 4, 8, 32, 4_096, 16_384, 1 << 19  # linux/mount.h
DETACH = 2  # umount2(2)
NO_NEW_PRIVS = 38  # prctl(2)
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: str | Path | int | None) -> None:
    """Call a function of the C library that returns 0 or sets errno; raises OSError."""
    given = [ctypes.c_ulong(each) if isinstance(each, int) else each and os.fsencode(each) for each in arguments]
    if getattr(_libc, name)(*given):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}: {', '.join(str(each) for each in arguments)}")


def unshare() -> None:
    """Enter a user namespace in which this user is who he was, and a mount namespace of it."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    call("mount", None, "/", None, REC | SLAVE, None)


def enter(pid: int) -> None:
    """Join the user and mount namespaces of a process."""
    spaces = [
        (os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind)
        for name, kind in (("user", CLONE_NEWUSER), ("mnt", CLONE_NEWNS))
    ]
    for space, kind in spaces:
        call("setns", space, kind)
        os.close(space)


def bind(source: str, place: Path, flags: int) -> None:
    """Show a file or folder, with what is mounted below it, in another place."""
    call("mount", source, place, None, BIND | REC, None)
    forbidden = os.statvfs(place).f_flag & (RDONLY | NOSUID | NODEV | NOEXEC)  # there, and so it must stay
    call("mount", None, place, None, REMOUNT | BIND | flags | forbidden, None)


def change_root(root: Path) -> None:
    """Make a mount point / and let go of all that was there."""
    os.chdir(root)
    call("pivot_root", ".", ".")
    call("umount2", ".", DETACH)
    os.chdir("/")


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with; Python adds to its own where there is no locale."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)
