"""What NCCL says, word for word, in the exceptions of torch."""

# The exceptions of torch 2.10 (C10D_NCCL_CHECK and getNcclErrorDetailStr in NCCLUtils) with the last errors of NCCL 2.27.5.
INTERPRETED = {
    "ncclUnhandledCudaError": (
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "Call to CUDA function failed.",
    ),
    "ncclSystemError": (
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "System call (e.g. socket, malloc) or external library call failed or device error. ",
    ),
    "ncclInternalError": (
        "internal error - please report this issue to the NCCL developers",
        "Internal check failed.",
    ),
    "ncclInvalidArgument": (
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "Invalid value for an argument.",
    ),
    "ncclInvalidUsage": (
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "This usually reflects invalid usage of NCCL library.",
    ),
    "ncclRemoteError": (
        "remote process exited or there was a network error",
        "A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
}


def nccl_error(name: str, last: str) -> str:
    """An error of NCCL's as torch raises it."""
    short, long = INTERPRETED[name]
    file = "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94"
    return f"NCCL error in: {file}, {short}, NCCL version 2.27.5\n{name}: {long}\nLast error:\n{last}"


DUPLICATE = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 50000"
CLOSED = "socketProgress: Connection closed by remote peer node7<48123>"
SHM = "Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 9637888), error: No space left on device (28)"
