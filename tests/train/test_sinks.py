"""The sinks of metrics: each gets the same numbers, and one that fails never ends a training.

In place of wandb and mlflow, which the tests do not install, modules of the same names record what they are asked.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from training_jobs import Run

from slipway.options import parse
from slipway.options.linear import LinearOptions
from slipway.protocol.mistake import ConfigurationError
from slipway.train.observe.sinks import Sinks, open_sinks

Start = Callable[..., Run]
TINY = ("--dataset-size", 128, "--steps", 8, "--log-every", 2)


class Recorder:
    """A sink that fails at a step."""

    name, where = "recorder", ""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at
        self.seen: list[tuple[int, Mapping[str, float]]] = []
        self.closed = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("server gone")
        self.seen.append((step, values))

    def write_text(self, step: int, name: str, text: str) -> None:
        self.seen.append((step, {name: len(text)}))

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        self.seen.append((step, {name: picture.numel()}))

    def close(self) -> None:
        self.closed += 1


def test_one_that_fails_is_reported_once_and_left_out(tmp_path: Path) -> None:
    good, bad, said = Recorder(), Recorder(fails_at=2), list[str]()
    sinks = Sinks(tmp_path / "metrics.jsonl", [("good", lambda: good), ("bad", lambda: bad)], said.append)
    for step in (1, 2, 3):
        sinks.write(step, loss=float(step))
    sinks.write_text(3, "sample", "abc")
    sinks.close()
    assert [step for step, _ in good.seen] == [1, 2, 3, 3]
    assert [step for step, _ in bad.seen] == [1]
    assert (good.closed, bad.closed) == (1, 1)
    (line,) = said
    assert "recorder (ConnectionError: server gone); training continues" in line
    assert [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_one_that_cannot_be_opened_is_reported_once(tmp_path: Path) -> None:
    def broken() -> Recorder:
        raise ImportError("no such library")

    said = list[str]()
    sinks = Sinks(tmp_path / "metrics.jsonl", [("bad", broken)], said.append)
    sinks.write(1, loss=1.0)
    sinks.close()
    (line,) = said
    assert "no more metrics for bad (ImportError: no such library)" in line


def test_ranks_other_than_0_write_nothing_and_open_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    sinks = open_sinks(None, 0, "wandb", {}, print)
    sinks.write(1, loss=1.0)
    sinks.close()
    assert capsys.readouterr().out == ""


class Service(types.ModuleType):
    """A module that records its calls, and those of what it returns."""

    def __init__(self, name: str, calls: list[tuple[str, Any]], run_id: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="stand-in")
        self._calls, self.id, self.url = calls, run_id, None
        self.info = types.SimpleNamespace(run_id=run_id)

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **named: Any) -> Any:
            self._calls.append((name, named or words))
            return self

        return call


@pytest.fixture(params=["wandb", "mlflow"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[tuple[str, Any]]]:
    calls = list[tuple[str, Any]]()
    monkeypatch.setitem(sys.modules, request.param, Service(request.param, calls, "run-7"))
    return request.param, calls


def logged(name: str, calls: list[tuple[str, Any]]) -> list[tuple[int, float]]:
    """Steps and losses as the service got them."""
    if name == "wandb":
        rows = [words[0] for call, words in calls if call == "log"]
        return [(row["step"], row["loss"]) for row in rows if "loss" in row]
    return [(named["step"], None) for call, named in calls if call == "log_metrics"]  # type: ignore[misc]


@pytest.mark.pull
def test_a_service_gets_every_line_and_a_resumed_run_is_the_same_one_there(train: Start, service: Any) -> None:
    name, calls = service
    run = train("linear", *TINY, "--log-to", name)
    assert run.exit_code == 0, run.output
    steps = [int(line["step"]) for line in run.metrics if "loss" in line]
    assert [step for step, _ in logged(name, calls)][: len(steps)] == steps
    assert (run.folder / f"{name}.id").read_text().strip() == "run-7"
    begin = "init" if name == "wandb" else "start_run"
    assert [named.get("id", named.get("run_id")) for call, named in calls if call == begin] == [None]
    again = train("linear", *TINY[:2], "--steps", 12, "--log-every", 2, "--log-to", name, resume="auto")
    assert again.exit_code == 0, again.output
    assert [named.get("id", named.get("run_id")) for call, named in calls if call == begin] == [None, "run-7"]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("wandb", r"--log-to wandb needs the Python package wandb.* -m pip install wandb"),
        ("mlflow", "--log-to mlflow needs"),
        ("comet", r"'comet' is none of wandb, mlflow"),
        ("wandb,comet", r"'comet' is none of"),
    ],
)
def test_what_is_not_installed_or_not_known_is_an_error_before_the_start(
    typed: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Exception, match=why) as raised:
        parse(LinearOptions, ["--log-to", typed])
    assert isinstance(raised.value, ConfigurationError) or "is none of" in str(raised.value)


def test_in_the_image_a_layer_is_built_for_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("SLIPWAY_IMAGE", "0.1.0")
    with pytest.raises(
        ConfigurationError,
        match=r"printf 'FROM slipway:dev\\nUSER root\\nRUN .* \| docker build --tag slipway:with-wandb -$",
    ):
        parse(LinearOptions, ["--log-to", "wandb"])
