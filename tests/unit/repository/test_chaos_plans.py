"""What `make chaos` does follows from its seed; the jobs themselves take minutes."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "chaos"))

from plans import FOR_GOOD, SIGNALS, STARTS, make_plan

MANY = [make_plan(7, number, engine=True) for number in range(400)]


def test_a_seed_and_a_number_give_the_same_plan_and_others_give_others() -> None:
    assert make_plan(7, 3, engine=True) == MANY[3]
    assert make_plan(8, 3, engine=True) != MANY[3] != MANY[4]


def test_all_kinds_of_harms_come_to_nodes_that_are_there() -> None:
    harms = [harm for plan in MANY for harm in plan.harms]
    assert {harm.act for harm in harms} == {*SIGNALS, "kill", "stop", "pause", "cut"}
    roles = {"launcher", "reaper", "torchrun", "worker", "standby", "tini", "container"}
    assert {harm.target.partition(" ")[0] for harm in harms} == roles
    assert all(
        harm.node < plan.nodes and len(plan.again) == plan.nodes * STARTS for plan in MANY for harm in plan.harms
    )
    assert {len(plan.harms) for plan in MANY} == {1, 2, 3, 4}


def test_what_can_be_undone_is_for_good_now_and_then_but_never_a_frozen_reaper() -> None:
    undone = [harm for plan in MANY for harm in plan.harms if harm.act in ("SIGSTOP", "pause", "cut")]
    share = sum(harm.lasts is None for harm in undone) / len(undone)
    assert share == pytest.approx(FOR_GOOD, abs=0.1)
    assert all(harm.lasts for harm in undone if harm.target == "reaper")
