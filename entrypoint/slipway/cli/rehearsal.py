"""One job of `slipway selftest`: a workload of ours as anybody starts it, but for the module that its processes run.

python -m slipway.cli.rehearsal FAULT WORKLOAD [options]     # FAULT: see train/workloads/selftest.py
"""

import sys

from slipway.cli.arguments import read_job
from slipway.cli.cli import open_streams
from slipway.launch.job import run_job
from slipway.launch.resolve.catalog import rehearsed
from slipway.launch.resolve.plan import make_plan
from slipway.protocol.errors import LaunchError


def main(fault: str, *words: str) -> int:
    """Run the job to its end; its exit code."""
    open_streams()
    try:
        job = read_job(words, {})
        workload = rehearsed(job.plan.workload, fault)
        return run_job(job._replace(plan=make_plan(job.plan.topology, workload, job.plan.arguments, job.sources)))
    except LaunchError as error:
        print(f"slipway: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
