"""Seeded simulations of the launchers' protocol: whatever happens to the nodes, no rule (rules.py) is broken.

SIM_SEEDS says how many (200 by default), SIM_SEED the first one. What failed is replayed by its number, with a log of
all that happened:

    .venv/bin/python tests/sim/simulate.py --seed NUMBER
"""

import asyncio
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from simulate import replay, simulate
from story import (
    UNRANKED,
    WITH_SPARES,
    Job,
    Story,
    attacked,
    bereaved,
    hurried,
    in_turn,
    overlooked,
    stunned,
    two_leaders,
    unheard,
    woken,
)
from stub_processes import SOURCES
from virtual_launcher import Order
from world import World

from slipway.launch.rendezvous.coordinator import SETTLE_SECONDS
from slipway.protocol.errors import PEER

FIRST, SEEDS = int(os.environ.get("SIM_SEED", "0")), int(os.environ.get("SIM_SEEDS", "200"))
CHUNK = 20  # seeds of one test: few enough for its time-out on a busy machine, and several processes can share them


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_no_rule_is_broken(first: int, tmp_path: Path) -> None:
    play(range(first, min(first + CHUNK, FIRST + SEEDS)), tmp_path)


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 3 * CHUNK))
def test_no_rule_is_broken_in_jobs_with_spare_nodes(first: int, tmp_path: Path) -> None:
    """A third of the seeds."""
    play(range(first, min(first + CHUNK, FIRST + SEEDS)), tmp_path, *WITH_SPARES)


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 2 * CHUNK))
def test_launchers_that_find_out_their_ranks_have_one_each(first: int, tmp_path: Path) -> None:
    """Half of the seeds."""
    play(range(first, min(first + CHUNK, FIRST + SEEDS)), tmp_path, *UNRANKED)


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 5 * CHUNK))
def test_somebody_without_the_token_changes_nothing(first: int, tmp_path: Path) -> None:
    """A fifth of the seeds."""
    play(range(first, min(first + CHUNK, FIRST + SEEDS)), tmp_path, attacked)


@pytest.mark.parametrize("seed", [1001438, 2001363])
def test_a_node_that_is_replaced_was_lost_when_it_fell_silent(seed: int, tmp_path: Path) -> None:
    """Frozen, or with its machine started again: another node was harmed before the replacement came, and is not to blame."""
    play(range(seed, seed + 1), tmp_path)


@pytest.mark.parametrize("seed", [3014786, 3015286])
def test_a_launcher_that_was_frozen_gives_way_to_the_one_that_has_run_in_its_place_since(
    seed: int, tmp_path: Path
) -> None:
    """Both come back when an attempt has ended, the frozen one first."""
    play(range(seed, seed + 1), tmp_path)


def test_an_attempt_may_begin_with_what_a_node_sent_before_it_was_frozen(tmp_path: Path) -> None:
    """Node 0 was cut off until then. The attempt fails, and that node is to blame."""
    play(range(3005674, 3005675), tmp_path)


def play(seeds: range, folder: Path, *stories: Story) -> None:
    """Simulate each of them, of these stories or of any."""
    wrong = {}
    for seed in seeds:
        _, error = simulate(seed, folder / str(seed), *stories)
        if error:
            wrong[seed] = f"{type(error).__name__}: {error}\n  replay it: {replay(seed, *stories)}"
    assert not wrong, "\n".join(f"seed {seed}: {text}" for seed, text in wrong.items())


def test_a_launcher_that_was_frozen_and_replaced_is_not_counted_beside_spare_nodes(tmp_path: Path) -> None:
    play(range(FIRST, FIRST + 20), tmp_path, woken)


def test_nodes_that_are_lost_one_after_another_are_replaced_at_once_whichever_leads(tmp_path: Path) -> None:
    play(range(FIRST, FIRST + 6), tmp_path, in_turn)


def test_who_ran_beside_a_lost_node_0_is_waited_for_by_another_one_that_finds_spare_nodes_first(tmp_path: Path) -> None:
    play(range(FIRST, FIRST + 12), tmp_path, hurried)


def test_a_new_node_0_that_finds_all_but_one_of_those_that_ran_does_not_wait_for_the_window(tmp_path: Path) -> None:
    play(range(FIRST, FIRST + 6), tmp_path, bereaved)


def test_a_node_0_that_was_frozen_and_takes_all_for_lost_ends_no_job(tmp_path: Path) -> None:
    play(range(FIRST, FIRST + 12), tmp_path, stunned)


def test_a_node_0_that_was_cut_off_starts_no_attempt_with_one_that_replaces_another_in_a_running_attempt(
    tmp_path: Path,
) -> None:
    play(range(FIRST, FIRST + 12), tmp_path, overlooked)


def test_an_attempt_that_nobody_but_its_leader_heard_of_keeps_its_number(tmp_path: Path) -> None:
    play(range(FIRST, FIRST + 12), tmp_path, unheard)


def test_a_seed_is_the_same_simulation_in_every_process() -> None:
    """Though Python hashes texts in another way in each, which shows in the order of a set of them."""
    logs = [log_of(5, hash_seed) for hash_seed in ("1", "2")]
    assert len(logs[0]) > 20
    assert logs[0] == logs[1]


def log_of(seed: int, hash_seed: str) -> list[str]:
    """What happened in the simulation of this seed, in a process of its own."""
    words = [sys.executable, str(Path(__file__).with_name("simulate.py")), "--seed", str(seed)]
    environ = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": SOURCES}
    ended = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()[:-1]  # the last line says how long it took


def test_all_launchers_that_came_name_the_missing_node_and_end_with_76(tmp_path: Path) -> None:
    world, came = World(0, tmp_path), (0, 1, 3)
    job = Job(world, Order("trainer", nodes=4, least=4, shared=False, token="", steps=1, save_every=1))

    async def start() -> None:
        for rank in came:
            job.start(rank)

    world.play(start())
    for rank in came:
        launcher = job.current[rank]
        lines = [what for _, who, what in world.lines if who == launcher.process.name]
        waiting = [line for line in lines if line.startswith("waiting for ")]
        assert waiting[0] == "waiting for nodes: 3 of 4 after 3 s; missing node rank 2 (for at most 600 s)", lines
        assert launcher.code == PEER, lines
        gave_up = "error: waiting for nodes: 3 of 4 after 600 s; missing node rank 2; gave up after 600 s."
        assert any(line.startswith(gave_up) for line in lines), lines


@pytest.mark.parametrize("later", [1.0, 3 * SETTLE_SECONDS])
def test_a_launcher_that_did_not_fit_may_leave_and_come_back_mended(later: float, tmp_path: Path) -> None:
    world = World(0, tmp_path)
    order = Order("trainer", nodes=3, least=3, shared=False, token="", steps=1, save_every=1)
    job = Job(world, order)

    async def start() -> None:
        job.start(0)
        job.order = dataclasses.replace(order, nodes=4, least=4)
        job.start(1)
        while await world.message("welcome", "trainer") is not job.current[1].process:
            pass  # it was node 0's own
        await asyncio.sleep(SETTLE_SECONDS / 2)
        job.current[1].process.kill()
        job.order = order
        await asyncio.sleep(later)
        for rank in (1, 2):
            job.start(rank)

    world.play(start())
    assert [job.current[rank].code for rank in range(3)] == [0, 0, 0], world.lines


def test_two_node_0s_that_never_meet_each_lead_a_half_of_an_elastic_job(tmp_path: Path) -> None:
    """No rule promises more: with disks of their own the halves have nothing that tells which of them may resume."""
    for seed in range(3):
        _, error = simulate(seed, tmp_path / str(seed), two_leaders)
        assert re.search("attempt 2 is of .* on . nodes and of .* on .", str(error)), f"seed {seed}: {error}"
