"""Run simulations of the launchers' protocol.

.venv/bin/python tests/sim/simulate.py --seed 17          # one, with a log of all that happened
.venv/bin/python tests/sim/simulate.py --seeds 300        # many; prints those that broke a rule
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from story import UNRANKED, WITH_SPARES, Job, Story, tell
from world import World


def replay(seed: int, *stories: Story) -> str:
    """The command that runs a simulation again."""
    kind = "" if not stories else " --unranked" if stories == UNRANKED else " --spares"
    return f".venv/bin/python tests/sim/simulate.py --seed {seed}{kind}"


def simulate(seed: int, folder: Path, *stories: Story) -> tuple[World, BaseException | None]:
    """Run the simulation with this number, of one of these stories or of any; its world, and what went wrong."""
    world = World(seed, folder)

    jobs: list[Job] = []

    async def story() -> None:
        jobs.extend(await tell(world, *stories))

    try:
        world.play(story())
        for job in jobs:
            if job.starts:
                launchers = {one.rank: one for one in job.current.values()}
                world.rules.finish(job.order, launchers, job.due, job.attempts)
            else:
                world.rules.never_started(job.order, job.current)
    except Exception as error:
        return world, error
    return world, None


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first number (default 0)")
    parser.add_argument("--first", action="store_true", help="end with the first that broke a rule")
    parser.add_argument("--seeds", type=int, default=1, help="how many numbers from there on (default 1)")
    parser.add_argument("--spares", action="store_true", help="jobs with spare nodes")
    parser.add_argument("--unranked", action="store_true", help="jobs whose launchers find out their ranks")
    chosen = parser.parse_args()
    began, virtual, wrong = time.perf_counter(), 0.0, 0
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        with tempfile.TemporaryDirectory() as folder:
            stories = WITH_SPARES if chosen.spares else UNRANKED if chosen.unranked else ()
            world, error = simulate(seed, Path(folder), *stories)
        virtual += world.loop.time()
        if chosen.seeds == 1:
            for at, who, what in world.lines:
                print(f"{at:10.3f}  {who:<14}  {what}")
        if error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {error}\n  replay it: {replay(seed, *stories)}")
            if chosen.first:
                break
    real = time.perf_counter() - began
    print(
        f"{chosen.seeds} simulations, {wrong} wrong; {virtual:.0f} virtual seconds in {real:.1f} s, {time.process_time():.1f} s of CPU"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
