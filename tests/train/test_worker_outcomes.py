"""How endings are told apart, and when the stop flag is believed."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import torch
import torch.distributed as dist
from nccl_texts import CLOSED, DUPLICATE, INTERPRETED, SHM, nccl_error
from training_jobs import worker_environment

from slipway.protocol.causes import Sign, find_signs
from slipway.protocol.marks import LOG_ALONE
from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop import metrics
from slipway.train.loop.metrics import Progress, clock, keep_metrics, short
from slipway.train.snapshots.snapshot import NewerFormatError, SnapshotError
from slipway.train.text.language import read_until_end
from slipway.train.text.tokenizer import ByteTokenizer
from slipway.train.worker import context as module
from slipway.train.worker.context import STOPS, Context, open_context
from slipway.train.worker.launcher import (
    NoProgressError,
    PeerError,
    StopFlag,
    describe_failure,
    outcome_word,
    read_stop_flag,
)

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ValueError("x"), "failed"),
        (RuntimeError("The size of tensor a must match; the driver timed out"), "failed"),
        (torch.OutOfMemoryError("CUDA out of memory"), "failed"),
        (ConfigurationError("x"), "configuration"),
        (click.UsageError("x"), "configuration"),
        (NewerFormatError("x"), "configuration"),
        (SnapshotError("x"), "no-progress"),
        (NoProgressError("x"), "no-progress"),
        (PeerError("x"), "peer"),
        (OSError(errno.ENOSPC, "No space left on device"), "unhealthy"),
        (OSError(errno.ENOENT, "x"), "failed"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "unhealthy"),
        (RuntimeError("No CUDA GPUs are available"), "unhealthy"),
        (dist.DistBackendError(nccl_error("ncclUnhandledCudaError", "Cuda failure 'hardware stack error'")), "unhealthy"),
        (dist.DistBackendError(nccl_error("ncclUnhandledCudaError", "Failed to CUDA calloc async 608 bytes")), "failed"),
        (dist.DistBackendError(nccl_error("ncclInvalidUsage", DUPLICATE)), "configuration"),
        (dist.DistBackendError(nccl_error("ncclSystemError", SHM)), "unhealthy"),
        (dist.DistBackendError(nccl_error("ncclInternalError", "Proxy append mismatch")), "failed"),
        (dist.DistBackendError(nccl_error("ncclRemoteError", CLOSED)), "peer"),
        (RuntimeError("unable to allocate shared memory(shm) for file"), "unhealthy"),
        (RuntimeError("can't start new thread"), "unhealthy"),
        (OSError(errno.EAGAIN, "unable to lock file, errno = 11, Resource temporarily unavailable"), "failed"),
        (dist.DistNetworkError("Resource temporarily unavailable"), "peer"),
        (RuntimeError("Resource temporarily unavailable"), "unhealthy"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "unhealthy"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:4040"), "peer"),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv"), "peer"),
        (dist.DistBackendError("NCCL error: remote process exited"), "peer"),
        (dist.DistNetworkError("The client socket has timed out"), "peer"),
    ],
)  # fmt: skip
def test_an_exception_is_classified(error: BaseException, word: str) -> None:
    assert outcome_word(error) == word


def test_the_last_error_of_nccl_is_what_is_told() -> None:
    outcome = describe_failure(dist.DistBackendError(nccl_error("ncclInvalidUsage", DUPLICATE)), 0, None)
    assert outcome.exception == f"DistBackendError: ncclInvalidUsage: Last error: {DUPLICATE}"
    assert outcome.message == f"ncclInvalidUsage: Last error: {DUPLICATE}"


def test_where_a_worker_failed_is_the_last_place_in_the_users_own_code(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import json\ndef read():\n    try:\n        {}['a']\n    except KeyError as e:\n        json.loads(e)\n"
    )
    names: dict[str, Callable[[], None]] = {}
    exec(compile(own.read_text(), own, "exec"), names)  # a user's file with a place of its own
    with pytest.raises(TypeError) as caught:
        names["read"]()
    outcome = describe_failure(caught.value, 0, None)
    assert outcome.where
    assert outcome.where.startswith("own.py:6 in read; raised in json/__init__.py:")
    assert outcome.exception
    assert outcome.exception.endswith("; first came KeyError: 'a'")


TEXTS = {
    "torch/lib/libtorch_cuda.so": (
        *(f"{name}: {long}" for name, (_, long) in INTERPRETED.items()),
        "Last error:", "Watchdog caught collective operation timeout", "retrieving ncclUniqueId", "NCCL timeout in",
        "NCCL communicator was aborted", "no GPUs found!",
    ),
    "torch/lib/libc10_cuda.so": ("driver on your system is too old", "driver initialization failed"),
    "nvidia/nccl/lib/libnccl.so.2": (
        *(short for short, _ in INTERPRETED.values()),
        "Duplicate GPU detected", "Failed to initialize any NET plugin", "no socket interface found", "no interface found",
        "No IP interface found", "No usable listening interface", "Connection closed by remote peer", "shared memory segment",
        "/dev/shm/nccl-", "exceeded error retry count", "Failed to CUDA calloc",
    ),
    "nvidia/cuda_runtime/lib/libcudart.so.12": (
        "uncorrectable ECC error", "uncorrectable NVLink error", "unspecified launch failure", "hardware stack error",
        "or a hardware error", "no CUDA-capable device", "driver version is insufficient", "unsupported display driver",
        "CUDA driver is a stub", "attempted on non supported HW", "system not yet initialized",
    ),
}  # fmt: skip


@pytest.mark.parametrize("library", TEXTS)
def test_the_installed_libraries_say_it_in_these_words(library: str) -> None:
    file = Path(torch.__file__).parents[1] / library
    if not file.exists():
        pytest.skip("this torch has no CUDA")
    with file.open("rb") as whole, mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as content:
        assert [text for text in TEXTS[library] if content.find(text.strip().encode()) < 0] == []


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('{"outcome": "stopped", "signal": "SIGTERM"}', "stopped"),
        ('{"outcome": "cancelled"}', "cancelled"),
        ('{"outcome": "later"}', "stopped"),
        ("{}", "stopped"),
        ("[]", "stopped"),
        ("", "stopped"),
        (None, None),
    ],
)
def test_a_stop_flag_is_read(tmp_path: Path, content: str | None, word: str | None) -> None:
    if content is not None:
        (tmp_path / "stop").write_text(content)
    assert read_stop_flag(tmp_path / "stop") == word


def test_a_disk_that_is_away_for_a_moment_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(path: Path, **_: object) -> os.stat_result:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    (tmp_path / "stop").write_text("{}")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", away)
        assert read_stop_flag(tmp_path / "stop") is None
    assert read_stop_flag(tmp_path / "stop") == "stopped"


def test_workers_on_other_devices_end_before_they_exchange_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Context, "gather_number", lambda self, number: [0, 1])
    monkeypatch.setattr(
        Context, "share_text", lambda self, text, source=0: text if source else text.replace("cpu", "cuda")
    )
    with pytest.raises(SystemExit), open_context(worker_environment(tmp_path, "none")):
        pytest.fail("it began")
    assert (
        "Rank 1 differs from rank 0 in its device (cpu instead of cuda). Start all nodes with"
        in capsys.readouterr().err
    )


def test_a_single_process_sees_its_flag_at_once(tmp_path: Path) -> None:
    flag = StopFlag(tmp_path / "stop", None)
    assert flag.finish_stop_exchange() == (None, False)
    flag.begin_stop_exchange(late=True)
    (tmp_path / "stop").write_text('{"outcome": "cancelled"}')
    assert flag.finish_stop_exchange() == ("cancelled", True)


def test_the_ranks_answer_is_not_read_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exchange:
        def __init__(self, number: torch.Tensor, *_: object, **__: object) -> None:
            self.number = number

        def wait(self) -> None:
            self.number.copy_(torch.tensor([2, 1, 5, 7, -6]))

    monkeypatch.setattr("slipway.train.worker.launcher.dist.all_reduce", Exchange)
    flag = StopFlag(None, object())  # type: ignore[arg-type]
    assert flag.finish_stop_exchange() == (None, False)
    flag.begin_stop_exchange()
    assert flag.take_steps_to_trace() == 0
    assert flag.finish_stop_exchange() == ("cancelled", True)
    assert (flag.take_steps_to_trace(), flag.take_steps_to_trace()) == (5, 0)
    assert flag.places == (6, 7)


def test_metrics_of_steps_that_will_be_taken_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    keep_metrics(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    keep_metrics(tmp_path / "missing", 2)


@pytest.mark.parametrize("bar", [False, True])
def test_progress_is_lines_and_on_a_terminal_a_bar_below_them(capsys: pytest.CaptureFixture[str], bar: bool) -> None:
    progress = Progress(10, 4, True, bar, "tokens", 128)
    progress.advance()
    assert progress.speed(5) > 0
    progress.report(5, "loss 1.0", "lr 0.1")
    progress.advance()
    progress.say("evaluated")
    progress.close()
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "evaluated"
    assert ("5/10" in printed.err) is bar
    assert "step 5/10  loss 1.0  lr 0.1  " in printed.out
    assert "tokens/s" in printed.out
    assert "\n" not in printed.err, "a bar stays in its row, and is taken away"


@pytest.mark.parametrize("bar", [False, True])
def test_without_a_terminal_the_first_step_is_shown_at_once(capsys: pytest.CaptureFixture[str], bar: bool) -> None:
    Progress(1000, 150, True, bar, "tokens", 128).begin(151, 50)
    shown = "step 151/1000  done; a line with the loss comes every 50 steps\n"
    assert capsys.readouterr().out == ("" if bar else shown)


def test_a_terminal_shows_a_few_of_the_lines_and_the_log_has_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(100, 0, True, True, "tokens", 1)
    for step in range(5, 101, 5):
        if step == 50:
            monkeypatch.setattr(metrics, "UNSEEN", 0.0)
        progress.report(step, "loss 1.0", "")
        monkeypatch.setattr(metrics, "UNSEEN", 600.0)
    lines = capsys.readouterr().out.splitlines()
    mark = LOG_ALONE.decode()
    assert len(lines) == 20
    shown = [int(line.split()[1].partition("/")[0]) for line in lines if not line.startswith(mark)]
    assert shown == [20, 40, 50, 70, 90], "every fifth of the run, and what nobody has seen for long"


def test_other_workers_of_a_node_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(10, 0, False, False, "tokens", 128)
    progress.report(5, "loss 1.0", "")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (62.4, "1:02"), (3600 + 605, "1:10:05")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(3.14159, "3.14"), (950, "950"), (55_321, "55.3k"), (1.2e6, "1.2M")])
def test_rates_have_three_digits(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(("code", "ends", "word"), [(None, 0, "finished"), (0, 0, "finished"), (2, 1, "failed")])
def test_a_script_may_exit_in_the_middle(tmp_path: Path, code: int | None, ends: int, word: str) -> None:
    with pytest.raises(SystemExit) as end, open_context(worker_environment(tmp_path, "none")):
        sys.exit(code)  # as argparse does after --help, or for an option that it does not know
    assert end.value.code == ends
    assert json.loads((tmp_path / "node-0" / "outcome" / "rank-0.json").read_text())["outcome"] == word


def test_an_outcome_that_a_full_disk_refuses_names_the_disk_in_the_line_that_the_launcher_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/runs/gpt-1/node-0/outcome/rank-0.json")

    def refuse(*_: object) -> None:
        raise full

    monkeypatch.setattr(module, "write_outcome", refuse)
    with pytest.raises(SystemExit), open_context(worker_environment(tmp_path, "none")):
        raise ConfigurationError("no data")
    first, last = capsys.readouterr().err.splitlines()
    assert first == "no data"
    assert last.startswith("[Errno 28] No space left on device: '/runs/gpt-1/node-0/outcome/rank-0.json': ")
    assert Sign.DISK_FULL in find_signs(last), "the launcher understands it"


def test_no_model_steers_the_terminal_that_shows_what_it_writes() -> None:
    written = [*b"a\x1b[2J\tb\r\n\x7f\xc2\x9b", 0, *b"more"]
    assert read_until_end(ByteTokenizer(), written, 1) == "a\ufffd[2J\tb\r\n\ufffd\ufffd"


def test_a_stop_that_reaches_every_process_does_not_end_a_worker_that_asked_for_the_flag(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in STOPS]
    with open_context(worker_environment(tmp_path, "none")) as context:
        for number in STOPS:
            os.kill(os.getpid(), number)
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()  # what a script starts itself can be ended as ever
        assert child.wait(30) == -signal.SIGTERM
    assert context.outcome.outcome == "finished"
    assert [signal.getsignal(number) for number in STOPS] == before


def test_a_script_keeps_its_own_handlers(tmp_path: Path) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        with open_context(worker_environment(tmp_path, "none")):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [signal.SIGUSR1]
