"""One run from plan to exit code: choose the run directory, start, supervise, tell how it ended."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from slipway import __version__
from slipway.launch.ending import tell_ending
from slipway.launch.plan import Plan
from slipway.launch.rundir import OUTCOME_FILE, AlreadyFinishedError, Run, choose_run, prepare_run, write_json
from slipway.launch.settings import Sources
from slipway.launch.supervise import Attempt, Stops
from slipway.launch.verdict import Verdict, judge
from slipway.launch.verdict_block import as_json, block


def say(line: str) -> None:
    """Print a line of the launcher's own."""
    print(f"slipway: {line}", file=sys.stderr, flush=True)


def run_job(plan: Plan, sources: Sources, environ: Mapping[str, str]) -> int:
    """Run the plan to its end and return the exit code. Raises LaunchError before anything was started."""
    say(plan.topology.arithmetic)
    for note in plan.topology.notes:
        say(note)
    try:
        run = choose_run(plan, sources, time.time())
    except AlreadyFinishedError as finished:
        say(str(finished))
        return 0
    with Stops() as stops:
        prepare_run(run, plan, __version__, time.time())
        say(f"{plan.workload.name}: run directory {_shown(run.path)}")
        attempt = Attempt(plan, run, float(sources.value("SLIPWAY_GRACE_SECONDS")), say, stops)
        facts = attempt.supervise(plan.environment(environ))
        verdict = judge([tell_ending(facts, attempt.node_dir, time.time())])
    return close(verdict, plan, run)


def close(verdict: Verdict, plan: Plan, run: Run) -> int:
    """Write the verdict down, print it and return this node's exit code."""
    if plan.topology.node_rank == 0:
        write_json(run.path / OUTCOME_FILE, as_json(verdict, 0))
    for line in block(verdict):
        say(line)
    return verdict.code(plan.topology.node_rank)


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
