"""The command line, called in this process as a user would, on a node without GPUs and with four cores."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins import Answer, Slipway, make_devices
from worker_output import MakeOutput, Output

from slipway.cli import arguments, cli
from slipway.launch.attempt.stops import STOP_WORDS
from slipway.launch.attempt.supervise import Attempt
from slipway.launch.resolve import host
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.runtimes import detect_runtime


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that lacks nothing and runs in no container, whatever this machine is."""
    monkeypatch.setattr(host, "size_of", lambda folder: 64 << 30)  # /dev/shm
    monkeypatch.setattr(host, "may_execute", lambda folder: True)
    monkeypatch.setattr(host, "read_mounts", dict)
    monkeypatch.setattr(host, "detect_runtime", lambda environ: detect_runtime(environ, Path("/no-container")))


@pytest.fixture
def slipway(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Slipway]:
    """Calls `slipway`: words, `devices`, and environment variables as keywords. The working directory is empty.

    A call that would start training is a mistake of the test: these tests run without torch.
    """

    handlers = {number: signal.getsignal(number) for number in STOP_WORDS}  # a job that has ended ignores these signals

    def refuse(*_: object) -> None:
        raise AssertionError("training was started")

    monkeypatch.setattr(Attempt, "supervise", refuse)
    monkeypatch.setattr(cli, "require_packages", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    for name in set(os.environ) - {"PATH", "HOME", "PYTEST_CURRENT_TEST"}:
        monkeypatch.delenv(name)

    def call(*words: str, devices: Devices | None = None, **environ: str) -> Answer:
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            patch.setattr(arguments, "read_devices", lambda environ: devices or make_devices())
            patch.setattr(sys, "argv", ["slipway", *words])
            with pytest.raises(SystemExit) as ended:
                cli.main()
        out, err = capfd.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def make_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeOutput:
    """Makes workers' output with its logs in the test's folder; `terminal` says whether our stderr is one."""

    def make(
        ranks: tuple[int, ...] = (0, 1), node_rank: int = 0, alone: bool = False, terminal: bool = False
    ) -> Output:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
        return Output(ranks, node_rank, alone, tmp_path)

    return make
