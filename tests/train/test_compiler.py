"""--compile is refused before training starts where its compiler is missing; who did not type it trains uncompiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.backends.distributed import DDPOptimizer
from training_jobs import Run

from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.arithmetic import SMALLEST_BUCKET, decide_compile


@pytest.fixture
def path(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """An environment in which just these programs are installed."""

    def make(*names: str, **environ: str) -> dict[str, str]:
        for name in names:
            (tmp_path / name).touch(mode=0o755)
        return {"PATH": str(tmp_path), **environ}

    return make


Path_ = Callable[..., dict[str, str]]


def compile_nothing(graph: Any, _: Any) -> Any:
    """A compiler for torch."""
    return graph


@pytest.mark.parametrize(
    ("wanted", "device", "installed", "compiled"),
    [
        (None, "cpu", ("gcc", "g++"), False),
        (False, "cuda", ("gcc", "g++"), False),
        (True, "cpu", ("g++",), True),
        (True, "cuda", ("gcc",), True),
        (None, "cuda", ("clang",), True),
        (None, "cuda", (), False),
    ],
)
def test_a_model_is_compiled_where_that_is_wanted_and_possible(
    path: Path_, wanted: bool | None, device: str, installed: tuple[str, ...], compiled: bool
) -> None:
    assert decide_compile(wanted, device, path(*installed)) is compiled


@pytest.mark.parametrize(
    ("device", "installed", "environ", "says"),
    [
        ("cpu", ("gcc",), {}, ["on a CPU needs a C++ compiler (", "GPUs need only gcc", "apt-get install g++)"]),
        ("cpu", ("g++",), {"CXX": "my-c++"}, ["my-c++ is not installed"]),
        (
            "cuda",
            ("g++",),
            {},
            ["on a GPU needs a C compiler", "neither gcc nor clang is installed", "apt-get install gcc libc6-dev)"],
        ),
        ("cpu", (), {"SLIPWAY_IMAGE": "1.2"}, ["in an image of your own (images/extend/Dockerfile: apt-get install g++)"]),
    ],
)  # fmt: skip
def test_compile_without_its_compiler_says_what_to_install_and_what_else_to_do(
    path: Path_, device: str, installed: tuple[str, ...], environ: dict[str, str], says: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        decide_compile(True, device, path(*installed, **environ))
    for words in [*says, "leave --compile out"]:
        assert words in str(caught.value)


@pytest.mark.parametrize("wanted", [True, None])
def test_buckets_are_as_large_as_torchs_compiler_wants_them(path: Path_, wanted: bool | None) -> None:
    environ = path("gcc")
    assert decide_compile(wanted, "cuda", environ, SMALLEST_BUCKET) is True
    with pytest.raises(
        ConfigurationError, match=r"--bucket-mb 0.99 is too small .* Type --bucket-mb 1, or --no-compile"
    ):
        decide_compile(wanted, "cuda", environ, 0.99)
    assert decide_compile(False, "cuda", environ, 0.99) is False
    DDPOptimizer(int(SMALLEST_BUCKET * 2**20), compile_nothing)
    with pytest.raises(AssertionError, match="First bucket"):
        DDPOptimizer(int(0.99 * 2**20), compile_nothing)


def test_a_job_with_smaller_ones_ends_with_that_reason(
    job: Callable[..., Run], path: Path_, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path("g++")["PATH"])
    monkeypatch.delenv("CXX", raising=False)
    run = job("linear", "--compile", "--bucket-mb", 0.5, "--steps", 1)
    assert {outcome["outcome"] for outcome in run.outcomes} == {"configuration"}, run.output
    assert "--bucket-mb 0.5 is too small" in run.outcomes[0]["message"]


def test_a_job_ends_with_that_reason_before_it_trains(
    train: Callable[..., Run], path: Path_, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path("gcc")["PATH"])
    monkeypatch.delenv("CXX", raising=False)
    run = train("linear", "--compile", "--steps", 1)
    assert run.exit_code == 1
    assert run.outcomes[0]["outcome"] == "configuration"
    assert "leave --compile out" in run.outcomes[0]["message"]
    assert not (run.folder / "metrics.jsonl").exists()
