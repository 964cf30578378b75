"""What torch, NCCL, gloo and CUDA say where something goes wrong, and what that means for the job: the one table of such texts.

Read at torch 2.10 (torch/csrc/distributed/c10d/NCCLUtils.cpp, TCPStore, gloo's transport), NCCL 2.27 (nccl.h, src/bootstrap.cc,
src/transport/shm.cc, src/misc/socket.cc) and CUDA 12 (cudaGetErrorString).
"""

import errno
import re
from enum import StrEnum
from typing import Self

from slipway.protocol.errors import DISK_ERRORS, MORE_PROCESSES, NO_MORE_PROCESSES
from slipway.protocol.outcomes import Word

DRIVER_TOO_OLD = r"driver on your system is too old|driver version is insufficient"
NO_DEVICE = r"no CUDA-capable device|No CUDA GPUs|no GPUs found!|Found no NVIDIA driver"
SMALL_SHM = r"shared memory|/dev/shm"  # a data loader's, and NCCL's
NO_INTERFACE = r"no (socket |IP )?interface found|No usable listening interface"

# Of gloo's, torch's store's and NCCL's waiting for another process.
TIME_OUT = (
    r"Timed out waiting \d+ms for (recv|send)|gloo/.*(timed out|timeout)|wait timeout after \d+ms"
    r"|failed to pass monitoredBarrier in|Watchdog caught collective operation timeout|NCCL timeout in"
)

# From the particular to the general: the first that is found counts. NCCL's own name for an error stands before its text.
_TABLE = tuple(
    (re.compile(said, re.IGNORECASE | re.DOTALL), word)
    for said, word in (
        # Of a file that a script imports: the same at every start.
        (r"^(SyntaxError|IndentationError|TabError): ", Word.CONFIGURATION),
        # A wrong number of processes, a network that there is not: the same at the next attempt.
        (rf"ncclInvalidUsage|ncclInvalidArgument|nccl.*({NO_INTERFACE})", Word.CONFIGURATION),
        # The node: its memory for exchange, its GPUs, its driver.
        (rf"unable to allocate shared memory|ncclSystemError.*({SMALL_SHM}|No space left)", Word.UNHEALTHY),
        (
            r"uncorrectable (ECC|NVLink) error|hardware (stack )?error|hardware failure|(GPU|device) is lost",
            Word.UNHEALTHY,
        ),
        (r"unspecified launch failure|CUDA unknown error", Word.UNHEALTHY),
        (NO_DEVICE, Word.UNHEALTHY),
        (rf"{DRIVER_TOO_OLD}|unsupported display driver|driver initialization failed", Word.UNHEALTHY),
        (r"CUDA driver is a stub|attempted on non supported HW|system not yet initialized", Word.UNHEALTHY),
        # What is left of CUDA's is the workload's own: too little memory, a kernel that is wrong.
        (r"ncclUnhandledCudaError", Word.FAILED),
        # Another process went away or does not answer, and says itself why.
        (
            r"ncclRemoteError|remote process exited|closed by (remote )?peer|Connection reset by peer|Broken pipe",
            Word.PEER,
        ),
        (r"ncclSystemError.*(refused|reset|timed out|unreachable|no route to host|retry count)", Word.PEER),
        (r"ncclSystemError|ncclInternalError", Word.FAILED),
        (
            r"Socket Timeout|failed to recv, got 0 bytes|DistNetworkError|DistStoreError|retrieving ncclUniqueId",
            Word.PEER,
        ),
        (r"gloo/.*(reset|refused)|NCCL communicator was aborted", Word.PEER),
        (TIME_OUT, Word.PEER),
    )
)
_TIMED_OUT = re.compile(TIME_OUT, re.IGNORECASE | re.DOTALL)
_NCCLS = re.compile(r"ncclRemoteError|ncclSystemError|remote process exited")
LONGEST = 1200  # characters of a message that are told
_NCCL_ERROR = re.compile(r"\b(nccl[A-Z]\w+): [^\n]*(?:\n\s*Last error:\s*([^\n]*))?")


def cause_of(text: str) -> Word:
    """What an error means, by its name and message: CONFIGURATION, UNHEALTHY, PEER (an echo of another failure), else FAILED."""
    return next((word for said, word in _TABLE if said.search(text)), Word.FAILED)


def is_time_out(text: str) -> bool:
    """Whether an error is the time-out of a collective: PEER, and nothing in it that says more."""
    return cause_of(text) == Word.PEER and _TIMED_OUT.search(text) is not None


def is_remote(text: str) -> bool:
    """Whether an error says that another process is gone or does not answer, by NCCL's judgement or by a time that is over.

    A script could do nothing about that. gloo says the same of a process that only left early: it closed the connection.
    """
    return cause_of(text) == Word.PEER and (is_time_out(text) or _NCCLS.search(text) is not None)


class Sign(StrEnum):
    """What such a text says beyond that, with its pattern and what helps: the first that has advice counts. Without a pattern it
    is what was seen otherwise. {shared_memory}, {package} and {another_disk} are what to ask of whatever runs a container."""

    pattern: str | re.Pattern[str]
    advice: str

    def __new__(cls, value: str, pattern: str | re.Pattern[str] = "", advice: str = "") -> Self:
        """A sign that is written as this value."""
        sign = str.__new__(cls, value)
        sign._value_, sign.pattern, sign.advice = value, pattern, advice
        return sign

    # fmt: off
    MEMORY = "memory", "", "give the container more memory, or use a smaller batch or fewer data-loader workers"
    SHARED_MEMORY = "shared-memory", SMALL_SHM, "give /dev/shm more room: {shared_memory}"
    PROCESSES = "processes", NO_MORE_PROCESSES, MORE_PROCESSES
    GPU_MEMORY = (
        "gpu-memory", "OutOfMemoryError", "use a smaller batch (--batch-size), or a part of it at a time (--accumulate)",
    )
    PACKAGE = (
        "package", r"\bModuleNotFoundError: No module named '",
        "{package}. A package is usually called like its module; if the module is a file of yours, start in its folder or set "
        "PYTHONPATH",
    )
    # Of argparse, click and typer.
    ARGUMENTS = (
        "arguments",
        r"(?m)^([^\s:]+: error: |Error: )(unrecognized arguments|the following arguments are required|argument |No such option"
        r"|Missing (option|argument|parameter)|Invalid value for|Got unexpected extra argument)",
        "correct the script's own arguments, those after its name: every start would fail there",
    )
    SYNTAX = "syntax", r"\b(Syntax|Indentation|Tab)Error: ", "correct that line: every start would fail there"
    DENIED = (
        "denied", rf"\[Errno ({errno.EACCES}|{errno.EPERM})\]",
        "let this user write to the run directory again (ls -ld), and continue with --resume auto",
    )
    DISK_BROKEN = (
        "disk-broken", rf"\[Errno ({errno.EROFS}|{errno.EIO})\]|Read-only file system",
        "look at this disk (mount, dmesg): it is read-only, such as a folder mounted with :ro, or broken; the job can continue "
        "elsewhere with --resume auto",
    )
    DISK_FULL = (
        "disk-full", rf"\[Errno ({'|'.join(map(str, sorted(DISK_ERRORS)))})\]|No space left on device",
        "free some space on that disk, or {another_disk}; then start again, with --resume auto if it has a snapshot",
    )
    SAME_GPU = (
        "same-gpu", "Duplicate GPU",
        "NCCL needs a GPU for each process: use fewer processes (--nproc-per-node), or --backend gloo",
    )
    INTERFACE = (
        "interface", NO_INTERFACE,
        "set NCCL_SOCKET_IFNAME to a network interface of this node (`ip -brief address` lists them), or unset it",
    )
    OLD_DRIVER = "old-driver", DRIVER_TOO_OLD  # what helps depends on the text (variants.py)
    DEVICE = "device", NO_DEVICE
    WRONG_RESULTS = (
        "wrong-results", r"\bUnhealthyError: ",
        "type `slipway check --burn 60` on this node before it is used again; the job can continue elsewhere with --resume auto",
    )
    # What may be gone at the next attempt, though the first step was never reached. The last is gloo's, of a network interface
    # that is down while its cable or container is cut off.
    PASSING = (
        "passing",
        r"(?i)Address already in use|EADDRINUSE|Temporary failure in name resolution|Stale file handle"
        r"|Resource temporarily unavailable|busy or unavailable|Connection refused|timed out|Unable to find address for",
    )
    ECHO = "echo"  # another process went away or does not answer, and reports why
    REMOTE = "remote"  # an echo that a script can do nothing about
    RECORDED = "recorded"  # NCCL's last collectives were asked for
    # fmt: on


CONFIGURED = (Sign.SYNTAX, Sign.DENIED)  # their advice helps only where they were judged to be a wrong configuration


def find_signs(text: str) -> tuple[Sign, ...]:
    """The signs in a text, in the order of Sign."""
    found = {sign for sign in Sign if sign.pattern and re.search(sign.pattern, text)}
    found |= {Sign.ECHO} if cause_of(text) == Word.PEER else set()
    found |= {Sign.REMOTE} if is_remote(text) else set()
    return tuple(sign for sign in Sign if sign in found)


def in_one_line(text: str) -> str:
    """A message without its line breaks, at most LONGEST characters. Of NCCL's errors, which say next to nothing in their first
    line, the name and the last error.
    """
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if "NCCL error" in first and (found := _NCCL_ERROR.search(text)):
        before, _, _ = first.partition("NCCL error")
        return f"{before}{found[1]}" + (f": Last error: {found[2].strip()}" if found[2] else "")
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
