"""Where each rank is, and when that means a hang: only changes count, and only time in which the launcher polled."""

import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import make_devices, make_host, make_sources, plan_for

from slipway.launch.hangs.hang import HangDetector
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.node_directory import Beat, NodeDirectory
from slipway.protocol.phases import BEFORE_FIRST_STEP, Phase


def write(node: Path, rank: int, content: str | dict[str, Any]) -> None:
    file = NodeDirectory(node).heartbeat_file(rank)
    file.parent.mkdir(exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_beat_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, 3, {"phase": "train", "step": 7, "steps": 20, "monotonic": 12.5, "pid": 99, "beats": 31})
    write(tmp_path, 4, {"phase": "setup", "step": 0, "steps": None, "monotonic": 1})
    assert NodeDirectory(tmp_path).beats((3, 4, 5)) == {
        3: Beat(3, Phase.TRAIN, 7, 20, 12.5, 99, 31),
        4: Beat(4, Phase.SETUP, 0, None, 1.0, None),
    }


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"phase": 1, "step": 1, "monotonic": 1}', '{"phase": "train", "monotonic": 1}']
)
def test_a_beat_that_makes_no_sense_is_none(tmp_path: Path, content: str) -> None:
    write(tmp_path, 0, content)
    assert NodeDirectory(tmp_path).beats((0,)) == {}


def look(detector: HangDetector, seconds: range, *beats: Beat) -> None:
    for now in seconds:
        detector.poll({beat.rank: beat for beat in beats}, float(now))


def standing(*beats: Beat, limit: float = 10.0, until: int = 1000) -> int | None:
    """The second in which it is a hang; the beats never change."""
    detector = HangDetector([beat.rank for beat in beats], limit, 0.0)
    for now in range(1, until):
        look(detector, range(now, now + 1), *beats)
        if detector.hangs:
            return now
    return None


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_may_stand_still_for_its_own_time(phase: Phase) -> None:
    # The first look finds a change; from then on it stands still, and longer than allowed is a hang.
    assert standing(Beat(0, phase, 1, None, 5.0)) == 10 * phase.patience + 2


@pytest.mark.parametrize("phase", Phase)
def test_a_short_limit_does_not_hold_for_a_start(phase: Phase) -> None:
    detector = HangDetector([0], 1.0, 0.0, start=20.0)
    look(detector, range(1, 15), Beat(0, phase, 1, None, 5.0))
    assert detector.hangs is (phase not in BEFORE_FIRST_STEP)
    look(detector, range(15, 300), Beat(0, phase, 1, None, 5.0))
    assert detector.hangs, "each has an end"


@pytest.mark.parametrize(("limit", "start", "hangs"), [(0.0, 1.0, True), (1.0, 0.0, False)])
def test_each_limit_may_be_none(limit: float, start: float, hangs: bool) -> None:
    detector = HangDetector([0], limit, 0.0, start)
    look(detector, range(1, 100), Beat(0, Phase.SETUP, 1, None, 5.0))
    assert detector.hangs is hangs


@pytest.mark.parametrize(
    ("words", "environ", "training", "starting"),
    [
        ("gpt", {}, 300.0, 300.0),
        ("gpt", {"SLIPWAY_HANG_SECONDS": "10"}, 10.0, 300.0),
        ("gpt", {"SLIPWAY_HANG_SECONDS": "3600"}, 3600.0, 3600.0),
        ("gpt", {"SLIPWAY_HANG_SECONDS": "0"}, 0.0, 0.0),
        ("gpt", {"SLIPWAY_START_SECONDS": "60"}, 300.0, 60.0),
        ("gpt", {"SLIPWAY_START_SECONDS": "0"}, 300.0, 0.0),
    ],
)
def test_starting_has_a_limit_of_its_own(words: str, environ: dict[str, str], training: float, starting: float) -> None:
    job = Job(plan_for((words,), environ), make_sources(environ), make_devices(), environ, None, make_host())
    assert (job.patience, job.start_patience) == (training, starting)


def test_a_rank_that_never_wrote_stands_in_setup() -> None:
    detector = HangDetector([0], 10.0, 0.0)
    look(detector, range(1, 31))
    assert not detector.hangs
    look(detector, range(31, 32))
    assert detector.hangs


def test_0_waits_for_ever() -> None:
    assert standing(Beat(0, Phase.TRAIN, 1), limit=0.0) is None


def test_a_rank_that_works_is_waited_for_by_the_others() -> None:
    """Rank 0 saves for long, and rank 1 waits in `train`: no hang before rank 0's own time is over."""
    assert standing(Beat(0, Phase.SAVE, 5), Beat(1, Phase.TRAIN, 5)) == 10 * Phase.SAVE.patience + 2


def test_any_change_begins_anew() -> None:
    detector = HangDetector([0, 1], 10.0, 0.0)
    for now in range(1, 200):
        look(detector, range(now, now + 1), Beat(0, Phase.TRAIN, 1), Beat(1, Phase.TRAIN, now // 5))
        assert not detector.hangs


def test_waiting_for_data_is_no_progress_however_often_it_is_said() -> None:
    detector = HangDetector([0], 10.0, 0.0)
    for now in range(1, 13):
        look(detector, range(now, now + 1), Beat(0, Phase.DATA, 4, None, now))
    assert detector.hangs
    look(detector, range(13, 14), Beat(0, Phase.DATA, 5, None, 13))
    assert not detector.hangs


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """A container that was frozen, a launcher whose reader paused."""
    detector = HangDetector([0], 10.0, 0.0)
    look(detector, range(1, 2), Beat(0, Phase.TRAIN, 1))
    detector.poll({0: Beat(0, Phase.TRAIN, 1)}, 5000.0)
    assert not detector.hangs


def test_a_clock_that_is_set_back_is_no_hang_and_hides_none() -> None:
    """What a beat says about time is only compared for change."""
    assert standing(Beat(0, Phase.TRAIN, 1, None, -1e9)) == standing(Beat(0, Phase.TRAIN, 1, None, 1e9)) == 12


@pytest.mark.parametrize(
    ("beats", "states", "behind", "says"),
    [
        ([Beat(0, Phase.TRAIN, 9, 20), Beat(1, Phase.TRAIN, 8, 20)], {}, (1,), "behind: rank 1 (step 8 of 20, train, for 0 s)"),
        ([Beat(0, Phase.TRAIN, 9), Beat(1, Phase.TRAIN, 9)], {}, (0, 1), "none is behind the others"),
        ([Beat(0, Phase.TRAIN, 9, beats=31), Beat(1, Phase.TRAIN, 9, beats=30)], {}, (1,), "behind: rank 1 (step 9, train"),
        ([Beat(0, Phase.TRAIN, 9, beats=30), Beat(1, Phase.DATA, 9, beats=30)], {}, (1,), "behind: rank 1 (step 9, data"),
        ([Beat(0, Phase.TRAIN, 8, None, 0, 70), Beat(1, Phase.TRAIN, 9, None, 0, 71)], {71: "T"}, (1,), "SIGSTOP"),
        ([Beat(0, Phase.TRAIN, 8, None, 0, 70), Beat(1, Phase.TRAIN, 9, None, 0, 71)], {71: "R", 70: "S"}, (0,), "step 8, train"),
        ([Beat(rank, Phase.SAVE, 3) for rank in range(9)], {}, tuple(range(9)), "and 5 more"),
    ],
)  # fmt: skip
def test_the_ranks_that_lag_behind_are_named(
    beats: list[Beat], states: dict[int, str], behind: tuple[int, ...], says: str
) -> None:
    detector = HangDetector([beat.rank for beat in beats], 10.0, 0.0)
    look(detector, range(1, 2), *beats)
    found = detector.stragglers(lambda pid: states.get(pid, ""))
    assert tuple(beat.rank for beat in found) == behind
    assert says in detector.describe(found, lambda pid: states.get(pid, ""))


@pytest.mark.parametrize(
    ("beat", "begun", "moved"),
    [
        (Beat(0, Phase.SETUP, 0), 0, False),
        (Beat(0, Phase.FIRST_STEP, 0), 0, False),
        (Beat(0, Phase.TRAIN, 1), 0, True),
        (Beat(0, Phase.LOAD, 500), 0, False),  # the step of the snapshot that it resumes from
        (Beat(0, Phase.DATA, 500), 500, False),
        (Beat(0, Phase.DATA, 501), 500, True),
        (Beat(0, Phase.SAVE, 501), 500, True),
        (Beat(0, Phase.TRAIN, 495), 500, True),  # the newest snapshot was damaged, and it went on from one before
    ],
)
def test_an_attempt_has_moved_once_a_rank_took_a_step(beat: Beat, begun: int, moved: bool) -> None:
    detector = HangDetector([0, 1], 10.0, 0.0)
    look(detector, range(1, 2), beat)
    assert detector.started(begun) is moved
