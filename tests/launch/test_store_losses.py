"""All machines of a job and their disks are lost, again and again at random moments: it resumes from its store, with equal bits."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from kept import Kept
from launchers import Launcher
from stand_in_rules import Rule, Rules
from test_store import JOB, kill, weights
from waiting import wait_until

from slipway.store.layout import claim_name

SEEDS, STEPS, LOSSES, KEEP = (48, 129), 60, 5, 2  # five losses of each job, ten in all


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SEEDS)
def test_both_nodes_and_their_disks_are_lost_at_random_moments_and_the_weights_are_those_of_an_undisturbed_run(
    node: Callable[..., Launcher], rules: Rules, tmp_path: Path, kept: Kept, seed: int
) -> None:
    print(f"seed {seed}")
    dice, words = random.Random(seed), (*JOB, "--steps", str(STEPS), "--keep", str(KEEP), "--runs")
    calm = [node(rank, 2, *words, f"calm-{rank}") for rank in (0, 1)]
    assert [job.end() for job in calm] == [0, 0], calm[0].text
    [before] = (tmp_path / "calm-0").iterdir()

    def start(*rule: Rule) -> list[Launcher]:
        more = ("--store", kept.address, "--resume", "auto")
        told = kept.variables | (rules.variables(*rule, torch=True) if rule else {})
        return [node(rank, 2, *words, f"disk-{rank}", *more, **told) for rank in (0, 1)]

    resumed, complete, lost = 0, set[int](), list[tuple[int, int]]()
    for life in range(1, LOSSES + 1):
        held = Rule("hold", step=min(resumed + dice.randint(1, 15), STEPS - 1), attempt=life)
        jobs = start(held)
        rules.wait_for(held, jobs[0])
        [run] = (path.name for path in (tmp_path / "disk-0").iterdir())
        objects, saved = (
            dice.randint(0, 6),
            (held.step - 1) // 10 * 10,
        )  # a rank is held before the snapshot of its step

        def is_time(run: str = run, life: int = life, objects: int = objects, saved: int = saved) -> bool:
            mine = [name for name in kept.store.find(run) if f"/attempt-{life:08d}/" in name]
            claimed = claim_name(run, life) in kept.store.find(f"{run}/claims")
            return claimed and (len(mine) >= objects or max(kept.steps(run), default=0) >= saved)

        wait_until(is_time, lambda: f"the claim, and {objects} objects or step {saved}:\n{jobs[0].text}")  # noqa: B023
        for rank, job in enumerate(jobs):
            kill(job)
            shutil.rmtree(tmp_path / f"disk-{rank}")
        found = kept.steps(run)
        complete |= {*found}
        assert {*sorted(complete)[-KEEP:]} <= {*found}, "a complete snapshot goes when as many newer ones are complete"
        resumed = max(found, default=0)
        lost.append((held.step, resumed))
    print(f"lost at step, newest in the store: {lost}")
    last = start()
    assert [job.end() for job in last] == [0, 0], last[0].text + last[1].text
    assert not resumed or f"fetched the snapshot of step {resumed}" in last[0].text
    for rank in (0, 1):
        assert weights(tmp_path / f"disk-{rank}" / run, STEPS) == weights(before, STEPS)
