"""Jobs that come to a standstill, judged by what their recorders hold: the small ones of recorded_jobs.py, which has 2,000."""

import json
import pickle
from pathlib import Path

import pytest
from recorded_jobs import RecordedJob, find, verdict

from slipway.launch.hangs.hang import find_hang
from slipway.launch.hangs.recorder_files import read_recorder_files


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_culprits_are_named_and_no_healthy_rank_alone(first: int) -> None:
    found = {}
    for seed in range(first, first + 10):
        job = RecordedJob(seed, largest=32)
        found[seed] = verdict(job, find(job))
    assert not [seed for seed, how in found.items() if how in ("wrong", "alone")]


@pytest.mark.parametrize("seed", [524, 1052, 1531])
def test_jobs_that_an_earlier_rule_judged_wrong(seed: int) -> None:
    """Sends that go beside, recvs behind what holds a rank up, and ranks that wait for each other."""
    job = RecordedJob(seed)
    assert verdict(job, find(job)) == "group"


def test_a_job_that_was_over_before_its_failure_hangs_nowhere() -> None:
    job = RecordedJob(1916)
    assert verdict(job, find(job)) == "over"


@pytest.mark.parametrize("write", [pickle.dumps, lambda record: json.dumps(record).encode()], ids=["pickle", "json"])
def test_files_say_the_same(tmp_path: Path, write: object) -> None:
    job = RecordedJob(3, largest=16)
    for rank in range(job.shape.ranks):
        (tmp_path / f"_dump_{rank}").write_bytes(write(job.recorder(rank)))  # type: ignore[operator]
    read, direct = read_recorder_files(tmp_path), find(job)
    assert read.notes == ()
    hang = find_hang(read.dumps)
    assert hang is not None
    assert direct is not None
    assert hang.ranks + hang.among == direct.ranks + direct.among
