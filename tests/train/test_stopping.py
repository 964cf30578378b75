"""What a stop and a slow disk do to a training, beyond the rows of tests/faults/table.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from training_jobs import Job, Run, raise_stop_flag

from slipway.protocol.snapshots import list_snapshots

Start = Callable[..., Job]
LINEAR = ("--dataset-size", 512, "--log-every", 1, "--steps", 30)


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
