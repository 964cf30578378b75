"""`slipway check`: is this node fit for a job, and with several nodes, are all of them? Without training."""

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from slipway.cli.launching import CONTEXT, launcher_options
from slipway.launch.attempt.terminal import say
from slipway.launch.closing import tell_pod
from slipway.launch.resolve.container_checks import default_runs, results_folder
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.sources import read_sources
from slipway.options.numbers import Whole
from slipway.protocol.errors import EXITS

if TYPE_CHECKING:  # the probes and the network code take as long to import as the rest of a launcher
    from slipway.check.finding import NodeReport

MEETING_SECONDS = "60"  # that nodes wait for each other, unless the user says; nobody waits ten minutes for a check


def run_check(as_json: bool, local: bool, burn: int | None, **options: Any) -> None:
    """Test whether this node is ready for a job, and with several nodes (WORLD_SIZE above 1) whether all are.

    Trains nothing and leaves no files behind. On several nodes, start it on all of them like the job itself: each prints its
    own findings, and the problems of the others.

    Exit code 0: nothing is wrong with this node, except for warnings. 77: this node is unhealthy (GPU, driver, /dev/shm,
    disk). 78: wrong configuration, or the nodes cannot connect or communicate. Peers of a node whose own
    checks find it unhealthy show its findings and end with 0.
    """
    from slipway.check.examination import examine, look_at_host
    from slipway.check.finding import exit_code, findings_lines
    from slipway.check.nodes import InterruptedCheckError
    from slipway.launch.rendezvous.messages import ERROR

    environ = dict(os.environ)
    host, early = look_at_host(environ)
    sources = read_sources(options, {"SLIPWAY_RUNS": default_runs(host), "SLIPWAY_RENDEZVOUS_TIMEOUT": MEETING_SECONDS})
    for line in sources.file_lines:
        say(line)
    try:
        own, reports = examine(environ, host, sources, early, local, burn or 0)
    except InterruptedCheckError as stopped:
        tell_pod(stopped.code, str(stopped))
        sys.exit(stopped.code)
    click.echo(as_text(reports, own) if not as_json else as_list(reports))
    if code := exit_code(own.findings):
        errors = [finding for finding in own.findings if finding.level == ERROR]
        tell_pod(code, "\n".join(findings_lines(errors)))
    sys.exit(code)


def check_first(job: Job) -> int:
    """What `run --check` does before anything is started: the quick probes. The exit code, 0 for a node that is fit."""
    from slipway.check.finding import exit_code, findings_lines
    from slipway.check.quick import quick_check

    findings = quick_check(job.environ, job.host, job.devices, results_folder(job.sources), job.plan.topology)
    for line in findings_lines(findings):
        say(line)
    code = exit_code(findings)
    if code:
        say(f"nothing is started: {EXITS[code].meaning} ({code})")
        tell_pod(code, "\n".join(findings_lines(findings)))
    return code


def as_list(reports: Sequence["NodeReport"]) -> str:
    """The output of --json: a list of nodes with their findings."""
    from slipway.check.finding import findings_json

    nodes = [
        {
            "node": report.rank,
            "host": report.host,
            "findings": findings_json(report.findings),
        }
        for report in reports
    ]
    return json.dumps(nodes, indent=1)


def as_text(reports: Sequence["NodeReport"], own: "NodeReport") -> str:
    """The table, coloured: all rows of this node; of the others what is wrong, and what the exchange with them showed."""
    from slipway.check.finding import exit_code, findings_lines, summary, terminal_width
    from slipway.check.nodes import EXCHANGE
    from slipway.launch.rendezvous.messages import ERROR, WARNING

    lines = []
    for report in reports:
        rows = report.findings
        if report is not own:
            rows = tuple(row for row in rows if row.level in (ERROR, WARNING) or row.what == EXCHANGE)
        here = " (this node)" if len(reports) > 1 and report is own else ""
        lines.append(
            f"node {'?' if report.rank is None else report.rank}, {report.host}{here}: {summary(report.findings)}"
        )
        lines += findings_lines(rows, colour=True, width=terminal_width())
    ill = [str(report.node_rank) for report in reports if report is not own and exit_code(report.findings)]
    others = f", but not all others are (node {', '.join(ill)})" if ill else ""
    code = exit_code(own.findings)
    return "\n".join(
        [*lines, f"exit code {code}: {EXITS[code].meaning if code else f'this node is fit for a job{others}'}"]
    )


JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON: a list of nodes with their findings.")
LOCAL = click.Option(["--local"], is_flag=True, help="Check only this node, even if the environment describes several.")
BURN = click.Option(
    ["--burn"],
    type=Whole(min=1),
    default=None,
    metavar="SECONDS",
    help="Also let each device solve problems with known results for this many seconds, to find one that computes wrongly.",
)
check = click.Command(
    "check",
    callback=run_check,
    params=[JSON, LOCAL, BURN, *(option for option in launcher_options() if option.name != "SLIPWAY_CHECK")],
    help=run_check.__doc__,
    epilog="\b\nExample: slipway check --local",
    context_settings=CONTEXT,
)
