"""What torch, NCCL, gloo and CUDA say where something goes wrong, and what that means for the job: the one table of such texts.

Read at torch 2.10 (torch/csrc/distributed/c10d/NCCLUtils.cpp, TCPStore, gloo's transport), NCCL 2.27 (nccl.h, src/bootstrap.cc,
src/transport/shm.cc, src/misc/socket.cc) and CUDA 12 (cudaGetErrorString).
"""

import re

from slipway.protocol.outcomes import Word

# CUDA 12 runs on this driver and newer ones: https://docs.nvidia.com/deploy/cuda-compatibility/, minor version compatibility.
OLDEST_DRIVER = "525.60.13"
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
        (r"^(exit code \d+: )?(SyntaxError|IndentationError|TabError): ", Word.CONFIGURATION),
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
    """What an error means, by the exception's name and its message: CONFIGURATION, UNHEALTHY, PEER, else FAILED.

    PEER is an echo: it says nothing about the process that reports it.
    """
    return next((word for said, word in _TABLE if said.search(text)), Word.FAILED)


def is_time_out(text: str) -> bool:
    """Whether an error is the time-out of a collective: PEER, and nothing in it that says more."""
    return cause_of(text) == Word.PEER and _TIMED_OUT.search(text) is not None


def is_remote(text: str) -> bool:
    """Whether an error says that another process is gone or does not answer, by NCCL's judgement or by a time that is over.

    A script could do nothing about that. gloo says the same of a process that only left early: it closed the connection.
    """
    return cause_of(text) == Word.PEER and (is_time_out(text) or _NCCLS.search(text) is not None)


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
