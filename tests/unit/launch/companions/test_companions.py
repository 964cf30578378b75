"""What accompanies a job: loaded if it is asked for, called in order, and never in the way of the job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Slipway, make_devices, make_host, make_sources, plan_for

from slipway.launch.companions.companion import SLOWEST, Companion, Companions
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.process.machine import Clock
from slipway.protocol.errors import LaunchError
from slipway.protocol.outcomes import Word

EXAMPLES = Path(__file__).parents[4] / "examples"
STOPS: Any = None  # no companion here needs them
ENDED = judge([Outcome(0, "n0", Word.FINISHED, 0.0)])


def job(**environ: str) -> Job:
    return Job(plan_for(environ=environ), make_sources(environ), make_devices(), environ, None, make_host())


def of(said: list[str], **environ: str) -> Companions:
    return Companions.of(job(**environ), STOPS, said.append)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, "none", 1)


def test_one_is_loaded_if_its_setting_is_set() -> None:
    assert of([])._all == {}
    asked = of([], SLIPWAY_METRICS_PORT="9400", SLIPWAY_NOTIFY="https://chat.example/x")
    assert [type(each).__name__ for each in asked._all.values()] == ["Metrics", "Notices"]


def test_a_plan_loads_none(slipway: Slipway) -> None:
    assert slipway("plan", "linear", SLIPWAY_COMPANIONS="no_such:thing").code == 0


def test_the_example_writes_down_what_happens(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    said: list[str] = []
    with of(said, SLIPWAY_COMPANIONS="companion:open_diary") as companions:
        companions.begin(run, job().plan.topology)
        assert companions.poll(run) == ""
        companions.hang(run, "hang: behind: rank 1")
        companions.end(run, ENDED)
    written = [line.partition(" ")[2] for line in (run.path / "diary.txt").read_text().splitlines()]
    assert written == ["attempt 1 begins on node 0", "hang: behind: rank 1", "ended: finished"]
    assert said == []


class Theirs(Companion):
    """One that notes each call, and does something at some."""

    def __init__(self, at: dict[str, Any]) -> None:
        self.calls, self.at = list[str](), at

    def __enter__(self) -> Theirs:
        self._do("enter")
        return self

    def begin(self, *_: object) -> None:
        self._do("begin")

    def poll(self, *_: object) -> str:
        return str(self._do("poll") or "")

    def _do(self, name: str) -> Any:
        self.calls.append(name)
        return self.at[name]() if name in self.at else None


def theirs(monkeypatch: pytest.MonkeyPatch, said: list[str], at: dict[str, Any]) -> tuple[Companions, Theirs]:
    made = Theirs(at)
    module = type(sys)("their_module")
    module.make = lambda *_: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_module", module)
    return of(said, SLIPWAY_COMPANIONS="their_module:make"), made


def test_one_that_fails_is_named_once_and_asked_no_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    companions, made = theirs(monkeypatch, said, {"poll": lambda: 1 / 0})
    with companions:
        companions.begin(run, job().plan.topology)
        assert [companions.poll(run), companions.poll(run)] == ["", ""]
        companions.begin(run, job().plan.topology)
    assert made.calls == ["enter", "begin", "poll"]
    [line] = said
    assert line == (
        "warning: the job continues without the companion their_module:make: ZeroDivisionError: division by zero"
    )


def test_one_that_is_slow_is_dropped_as_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said, now = list[str](), [0.0]
    companions, made = theirs(monkeypatch, said, {"poll": lambda: now.__setitem__(0, now[0] + 2 * SLOWEST)})
    companions._clock = Clock(monotonic=lambda: now[0])
    companions.poll(run)
    companions.poll(run)
    assert (made.calls, [line.rpartition(": ")[2] for line in said]) == (["poll"], ["poll took 2.0 s"])


def test_a_reason_to_leave_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(["", "another launcher continues the run", ""])
    companions, _ = theirs(monkeypatch, [], {"poll": lambda: next(reasons)})
    assert [companions.poll(run) for _ in range(3)] == ["", *["another launcher continues the run"] * 2]


@pytest.mark.parametrize("place", ["no_such_module:make", "os.path:no_such_function", "os"])
def test_one_that_cannot_be_loaded_is_refused_with_its_name(place: str) -> None:
    with pytest.raises(LaunchError, match=f"SLIPWAY_COMPANIONS: {place} cannot be loaded: ") as refused:
        of([], SLIPWAY_COMPANIONS=place)
    assert refused.value.code == 78


def test_one_may_refuse_the_job_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise LaunchError("no budget is left", 78)

    said: list[str] = []
    companions, _ = theirs(monkeypatch, said, {"enter": refuse})
    with pytest.raises(LaunchError, match="no budget is left"), companions:
        pass
    assert said == []
