"""All machines of a job and their disks are lost, again and again at random moments: it resumes from its store, with equal bits."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules
from test_store import JOB, kill, weights
from waiting import wait_until

from slipway.store.address import parse_store
from slipway.store.catalog import Catalog
from slipway.store.objects import ObjectStore, open_store

SEED, STEPS, LOSSES = 48, 60, 10


def newest_in(store: ObjectStore, run: str) -> int:
    """The step of the newest complete snapshot, 0 without one."""
    catalog = Catalog(store, run)
    catalog.look()
    return next((each[0].place.step for each in catalog.sets()), 0)


@pytest.mark.timeout(1200)
def test_both_nodes_and_their_disks_are_lost_at_random_moments_and_the_weights_are_those_of_an_undisturbed_run(
    node: Callable[..., Launcher],
    rules: Rules,
    tmp_path: Path,
) -> None:
    print(f"seed {SEED}")
    dice, words = random.Random(SEED), (*JOB, "--steps", str(STEPS), "--runs")
    calm = [node(rank, 2, *words, f"calm-{rank}") for rank in (0, 1)]
    assert [job.end() for job in calm] == [0, 0], calm[0].text
    [before] = (tmp_path / "calm-0").iterdir()
    address = f"file://{tmp_path}/store"
    (tmp_path / "store").mkdir()
    store, resumed, steps = open_store(parse_store(address)), 0, []

    def start(*rule: Rule) -> list[Launcher]:
        kept = ("--store", address, "--resume", "auto")
        told = rules.variables(*rule, torch=True) if rule else {}
        return [node(rank, 2, *words, f"disk-{rank}", *kept, **told) for rank in (0, 1)]

    for life in range(1, LOSSES + 1):
        held = Rule("hold", step=min(resumed + dice.randint(1, 15), STEPS - 1), attempt=life)
        jobs = start(held)
        rules.wait_for(held, jobs[0])
        [run] = (path.name for path in (tmp_path / "disk-0").iterdir())
        objects = len(store.find(run)) + dice.randint(0, 6)
        saved = held.step // 10 * 10
        wait_until(
            lambda: len(store.find(run)) >= objects or newest_in(store, run) >= saved,  # noqa: B023
            lambda: f"{objects} objects, or step {saved}:\n{jobs[0].text}",  # noqa: B023
        )
        for rank, job in enumerate(jobs):
            kill(job)
            shutil.rmtree(tmp_path / f"disk-{rank}")
        steps.append((held.step, newest_in(store, run)))
        assert steps[-1][1] >= resumed, "what was there is still there"
        resumed = steps[-1][1]
    print(f"lost at step, newest in the store: {steps}")
    last = start()
    assert [job.end() for job in last] == [0, 0], last[0].text + last[1].text
    assert f"fetched the snapshot of step {resumed}" in last[0].text
    for rank in (0, 1):
        assert weights(tmp_path / f"disk-{rank}" / run, STEPS) == weights(before, STEPS)
