"""How far an attempt came, and for how long it trained beyond all before it."""

import json
from pathlib import Path

import pytest

from slipway.launch.run_directory.bookkeeping import Milestones
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.node_directory import Beat
from slipway.protocol.files import STEPS
from slipway.protocol.phases import Phase


@pytest.mark.parametrize(
    ("before", "seen", "trained"),
    [
        (0, {1.0: (0, 0), 2.0: (1, 1), 5.0: (9, 8)}, 3.0),
        (0, {1.0: (0, 0), 9.0: (0, 0)}, 0.0),
        (20, {1.0: (10, 10), 30.0: (20, 20)}, 0.0),  # steps made again
        (20, {1.0: (10, 10), 30.0: (20, 21), 34.0: (24, 24)}, 4.0),
        (0, {1.0: (1, 1), 2.0: (5, 5), 400.0: (5, 5)}, 1.0),  # it stood still
        (0, {1.0: (1, 1), 2.0: (9, 9), 3.0: (4, 4), 7.0: (9, 9), 8.0: (10, 10)}, 7.0),  # it went back to a snapshot
        (0, {1.0: (), 2.0: (-5,)}, 0.0),
    ],
)
def test_only_steps_that_were_never_done_before_count(
    before: int, seen: dict[float, tuple[int, ...]], trained: float
) -> None:
    milestones = Milestones(0.0, before)
    for now, steps in seen.items():
        milestones.take({rank: Beat(rank, step=step) for rank, step in enumerate(steps)}, now)
    assert milestones.trained == trained
    assert milestones.reached == max(step for steps in seen.values() for step in (0, *steps))


def test_a_heartbeat_that_tells_of_more_steps_than_any_job_has_is_cut_short() -> None:
    milestones = Milestones(0.0, 0)
    milestones.take({0: Beat(0, step=10**17)}, 1.0)
    assert milestones.reached == STEPS


def test_a_script_ran_until_it_stood_still_or_its_end_was_noticed() -> None:
    milestones = Milestones(100.0, 0)
    milestones.poll(101.0, started=False, ending=False)
    assert (milestones.ran, milestones.started) == (0.0, None)
    milestones.poll(102.0, started=True, ending=False)
    milestones.poll(160.0, started=True, ending=False)
    assert milestones.ran == 58.0
    milestones.poll(400.0, started=True, ending=False, still=230.0)  # nothing moved since 170
    assert milestones.ran == 68.0
    milestones.poll(760.0, started=True, ending=True)  # the time-out of its process group
    milestones.poll(765.0, started=True, ending=True)
    assert (milestones.ran, milestones.noticed, milestones.started) == (68.0, 760.0, 102.0)


def test_the_first_rank_of_a_node_speaks_for_all_of_a_workload_of_ours() -> None:
    milestones = Milestones(100.0, 7)
    assert milestones.seen(101.0, builtin=True).spoke is None
    beats = {
        rank: Beat(
            rank, Phase.TRAIN, 9, monotonic=float(rank), first=5, spent={Phase.TRAIN: 3.0}, again=1.0, waited={9: 2.0}
        )
        for rank in (9, 8)
    }
    milestones.take(beats, 110.0)
    milestones.take({}, 111.0)  # its file is just being replaced
    seen = milestones.seen(120.0, builtin=True)
    assert (seen.begun, seen.ended, seen.spoke, seen.spent) == (100.0, 120.0, 8.0, {Phase.TRAIN: 3.0})
    assert (seen.first, seen.reached, seen.before, seen.again, seen.waited) == (5, 9, 7, 1.0, {9: 2.0})
    assert milestones.seen(120.0, builtin=False).spoke is None


@pytest.mark.parametrize(
    ("files", "step"),
    [
        ({}, 0),
        ({"snapshots/step-00000040/manifest.json": "{}"}, 40),
        ({"outcome.json": '{"attempts": [{"reached": 57}, {"reached": "x"}, 7, {}]}'}, 57),
        ({"node-1/heartbeat/rank-3.json": '{"phase": "train", "step": 61, "monotonic": 1.0}'}, 61),
        ({"outcome.json": json.dumps({"attempts": [{"reached": 10**17}, {"reached": 3}]})}, 3),
        ({"outcome.json": '{"attempts": 7}'}, 0),
    ],
)
def test_how_far_a_run_ever_came_is_read_from_what_is_left_of_it(
    tmp_path: Path, files: dict[str, str], step: int
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert RunDirectory(tmp_path).highest_step == step
