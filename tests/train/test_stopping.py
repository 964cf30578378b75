"""A stop is honoured in every phase: the ranks agree, save, and what goes on later loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from training_jobs import Job, Run, raise_stop_flag

from slipway.protocol.snapshots import list_snapshots
from slipway.train.snapshots.snapshot import verify_snapshot

Start = Callable[..., Job]
LINEAR = ("--dataset-size", 512, "--log-every", 1, "--steps", 30)


@pytest.mark.pull
@pytest.mark.parametrize(
    ("phase", "at", "options", "hold", "last"),
    [
        ("first-step", 0, ("--accumulate", 2), ["part", 1], 2),
        ("train", 2, ("--accumulate", 8), ["part", 17], 5),
        ("evaluate", 4, ("--eval-every", 4, "--dataset-size", 40_000), ["evaluate", 1], 4),
        # The snapshot of step 4 is held, and that of step 8 waits for it.
        ("save", 8, ("--save-every", 4), ["save", 1], 9),
        ("data", 0, ("--workers", 1), ["data", 1], 4),
    ],
)
def test_a_stop_in_any_phase_leaves_a_snapshot(
    start: Start, phase: str, at: int, options: tuple[object, ...], hold: list[object], last: int
) -> None:
    job = start("linear", *LINEAR, *options, hold=hold)
    job.wait_for(phase, at)
    raise_stop_flag(job.folders[0])
    run = job.end()[0]
    assert run.exit_code == 0, run.output
    assert [outcome["outcome"] for outcome in run.outcomes] == ["stopped", "stopped"]
    step = run.outcomes[0]["step"]
    assert at <= step <= last
    assert {outcome["snapshot"] for outcome in run.outcomes} == {f"step-{step:08d}"}
    assert run.snapshots[0] == f"step-{step:08d}"
    verify_snapshot(run.folder / "snapshots" / run.snapshots[0])


@pytest.mark.pull
def test_a_stop_during_set_up_takes_no_step(start: Start, tmp_path: Path) -> None:
    raise_stop_flag(tmp_path / "job", "cancelled")
    run = start("linear", *LINEAR).end()[0]
    assert [(outcome["outcome"], outcome["step"]) for outcome in run.outcomes] == [("cancelled", 0)] * 2
    assert run.snapshots == ["step-00000000"]
    assert not run.metrics


@pytest.mark.parametrize("steps", [4, 8])
def test_an_evaluation_that_was_left_is_made_up_for(start: Start, steps: int) -> None:
    options = ("--dataset-size", 40_000, "--log-every", 1, "--eval-every", 4, "--steps", steps)
    job = start("linear", *options, hold=["evaluate", 1])
    job.wait_for("evaluate", 4)
    raise_stop_flag(job.folders[0])
    assert [line for line in job.end()[0].metrics if "val_loss" in line] == []
    resumed = start("linear", *options, resume="auto").end()[0]
    assert resumed.outcomes[0]["outcome"] == "finished", resumed.output
    assert [line["step"] for line in resumed.metrics if "val_loss" in line] == list(range(4, steps + 1, 4))
    again = start("linear", *options, resume="auto").end()[0]
    assert again.outcomes[0]["message"] == f"was already finished at step {steps}"


@pytest.mark.pull
def test_training_goes_on_while_a_slow_disk_takes_a_snapshot(start: Start) -> None:
    job = start("linear", *LINEAR, "--steps", 5000, "--save-every", 10, hold=["save", 1])
    job.wait_for("save", 20)
    assert list_snapshots(job.folders[0] / "snapshots") == [], "the one of step 10 is not there yet"
    raise_stop_flag(job.folders[0])
    run = job.end()[0]
    assert run.outcomes[0]["step"] in (20, 21)
    assert run.snapshots[0] == run.outcomes[0]["snapshot"]


@pytest.mark.core
def test_a_full_disk_ends_the_job_at_the_next_step_with_that_reason(start: Start) -> None:
    run = start("linear", *LINEAR, "--steps", 100_000, "--save-every", 10, full_disk=20).end()[0]
    assert run.exit_code == 1
    by_rank = {outcome["outcome"]: outcome for outcome in run.outcomes}
    assert by_rank.keys() == {"unhealthy", "peer"}, run.output
    assert "No space left on device" in by_rank["unhealthy"]["message"]
    assert by_rank["unhealthy"]["snapshot"] == "step-00000010"
    assert by_rank["unhealthy"]["step"] < 40
    assert run.snapshots == ["step-00000010"]


@pytest.mark.pull
def test_a_failed_snapshot_at_the_end_is_no_success_and_nobody_is_waited_for_then(start: Start) -> None:
    """`destroy_process_group` may take as long as a collective may, where peers are still connected."""
    run: Run = start("linear", *LINEAR, full_disk=30, stuck=True).end()[0]
    assert run.exit_code == 1
    assert {outcome["outcome"] for outcome in run.outcomes} == {"unhealthy", "peer"}
    assert "another rank could not write its snapshot" in str(run.outcomes)


@pytest.mark.pull
def test_no_exchange_among_ranks_lasts_as_long_as_a_slow_disk_takes(start: Start) -> None:
    start("linear", *LINEAR).end()
    run = start("linear", *LINEAR, "--steps", 40, resume="auto", exchanges_while_loading=20).end()[0]
    assert [outcome["step"] for outcome in run.outcomes] == [40, 40], run.output
