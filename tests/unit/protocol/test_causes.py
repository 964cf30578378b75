"""What torch, NCCL, gloo and CUDA say, word for word, and whose fault that is."""

import pytest
from nccl_texts import CLOSED, DUPLICATE, SHM, nccl_error

from slipway.protocol.causes import cause_of, in_one_line, is_time_out


@pytest.mark.parametrize(
    ("name", "last", "word"),
    [
        ("ncclInvalidUsage", DUPLICATE, "configuration"),
        ("ncclInvalidUsage", "Failed to initialize any NET plugin", "configuration"),
        ("ncclInvalidArgument", "Broadcast : invalid root 9 (root should be in the 0..8 range)", "configuration"),
        ("ncclInternalError", "Bootstrap : no socket interface found", "configuration"),
        ("ncclSystemError", "NET/Socket : no interface found", "configuration"),
        ("ncclInternalError", "NET/IB : No IP interface found.", "configuration"),
        ("ncclSystemError", SHM, "unhealthy"),
        (
            "ncclSystemError",
            "Error: failed to extend /dev/shm/nccl-AbCdEf to 33030532 bytes, error: No space left on device (28)",
            "unhealthy",
        ),
        ("ncclSystemError", "socketPollConnect to 10.0.0.7<48123> failed with error Connection refused", "peer"),
        ("ncclSystemError", "socketPollConnect to 10.0.0.7<48123> failed with error No route to host", "peer"),
        (
            "ncclSystemError",
            "socketProgress: connect to 10.0.0.7<4> returned Connection timed out, exceeded error retry count after 35 attempts",
            "peer",
        ),
        ("ncclSystemError", "Call to ibv_create_qp failed with error Cannot allocate memory errno 12", "failed"),
        ("ncclUnhandledCudaError", "Failed to CUDA calloc async 608 bytes", "failed"),
        ("ncclUnhandledCudaError", "Cuda failure 2 'out of memory'", "failed"),
        ("ncclUnhandledCudaError", "Cuda failure 'an illegal memory access was encountered'", "failed"),
        ("ncclUnhandledCudaError", "Cuda failure 'uncorrectable NVLink error detected during the execution'", "unhealthy"),
        ("ncclUnhandledCudaError", "Cuda failure 'unspecified launch failure'", "unhealthy"),
        ("ncclUnhandledCudaError", "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'", "unhealthy"),
        ("ncclInternalError", "Proxy append mismatch", "failed"),
        ("ncclInternalError", "[Service thread] Accept failed Connection reset by peer", "peer"),
        ("ncclRemoteError", CLOSED, "peer"),
        ("ncclRemoteError", "socketProgressOpt: Call to recv from node7<48123> failed : Broken pipe", "peer"),
    ],
)  # fmt: skip
def test_an_error_of_nccl_is_judged_by_its_name_and_its_last_error(name: str, last: str, word: str) -> None:
    text = nccl_error(name, last)
    assert cause_of(f"DistBackendError: {text}") == word
    line = in_one_line(text)
    assert line == f"{name}: Last error: {last}"
    assert cause_of(f"DistBackendError: {line}") == word, "of what is told to other nodes as well"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "unhealthy"),
        ("AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution\nSearch for", "unhealthy"),
        ("AcceleratorError: CUDA error: unspecified launch failure", "unhealthy"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update", "unhealthy"),
        ("RuntimeError: CUDA error: device-side assert triggered", "failed"),
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", "failed"),
        ("RuntimeError: CUDA driver error: out of memory", "failed"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "failed"),
        ("RuntimeError: Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:144] Connection refused", "peer"),
        (
            "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
            "by key '0', but store->get('0') got error: Connection was likely closed",
            "peer",
        ),
        ("DistBackendError: NCCL communicator was aborted on rank 1. ", "peer"),
        (
            "NCCL communicator was aborted on rank 1.  Original reason for failure was: "
            + nccl_error("ncclUnhandledCudaError", "Cuda failure 'uncorrectable ECC error encountered'"),
            "unhealthy",
        ),
        ("DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.", "peer"),
        ("ValueError: the connection timed out", "failed"),
        ("", "failed"),
    ],
)  # fmt: skip
def test_so_is_what_torch_gloo_and_cuda_say(text: str, word: str) -> None:
    assert cause_of(text) == word


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("bad batch\n  of seven\n\n", "bad batch of seven"),
        ("x" * 1500, "x" * 1199 + "…"),
        ("\n  bad batch ", "bad batch"),
        ("", ""),
        ("NCCL error in: x.cpp:1, unhandled, NCCL version 2.27.5\nncclSystemError: x\nLast error: Unknown NCCL Error\n",
         "ncclSystemError: Last error: Unknown NCCL Error"),
        ("[Rank 1] Process group watchdog thread terminated with exception: " + nccl_error("ncclRemoteError", CLOSED),
         f"[Rank 1] Process group watchdog thread terminated with exception: ncclRemoteError: Last error: {CLOSED}"),
        ("NCCL error in: x.cpp:1, Unknown NCCL error!", "NCCL error in: x.cpp:1, Unknown NCCL error!"),
    ],
)  # fmt: skip
def test_a_message_becomes_one_line_that_says_what_went_wrong(text: str, line: str) -> None:
    assert in_one_line(text) == line


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete", True),
        ("RuntimeError: Timed out waiting 1800000ms for send operation to complete", True),
        ("DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0/0", True),
        ("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms", True),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)", True),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:11174", False),
        ("[Rank 1] Watchdog caught collective operation timeout, CUDA error: uncorrectable ECC error encountered", False),
        ("TimeoutError: the read operation timed out", False),
    ],
)  # fmt: skip
def test_the_time_out_of_a_collective_is_told_from_other_echoes(text: str, answer: bool) -> None:
    assert is_time_out(text) is answer
