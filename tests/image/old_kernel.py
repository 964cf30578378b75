"""A seccomp profile in which system calls do not exist that came after the oldest kernel that Slipway supports."""

import json
from pathlib import Path

# Linux 4.18, of Red Hat Enterprise Linux 8. What came later, with its version: man 2 syscalls.
LATER = (
    "clone3", "close_range", "epoll_pwait2", "faccessat2", "fsconfig", "fsmount", "fsopen", "fspick",
    "futex_waitv", "io_uring_enter", "io_uring_register", "io_uring_setup", "landlock_create_ruleset", "mount_setattr",
    "move_mount", "open_tree", "openat2", "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "process_madvise",
    "process_mrelease", "set_mempolicy_home_node",
)  # fmt: skip
ENOSYS = 38


def write_profile(path: Path) -> Path:
    """Write the profile for `docker run --security-opt seccomp=FILE`."""
    rule = {"names": LATER, "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    return path
