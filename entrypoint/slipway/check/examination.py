"""The whole check: this node's quick probes, its devices' matrix products, and with several nodes the meeting of all."""

import socket
from collections.abc import Mapping

from slipway.check.disk import TEMPORARY
from slipway.check.finding import NodeReport, misconfigured, probe, sick, skipped
from slipway.check.machine import look_at_notices
from slipway.check.nodes import OTHERS, meet
from slipway.check.products import look_at_burn, look_at_products
from slipway.check.quick import quick_check
from slipway.launch.attempt.terminal import say
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.catalog import CHECK
from slipway.launch.resolve.container_checks import results_folder
from slipway.launch.resolve.devices import Devices, read_devices
from slipway.launch.resolve.host import Host, read_host, read_mounts
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import make_plan
from slipway.launch.resolve.runtimes import detect_runtime
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import Topology, resolve_topology
from slipway.protocol.errors import CONFIGURATION, UNHEALTHY, LaunchError

NEEDED = (TEMPORARY, "MASTER_ADDR", "MASTER_PORT")  # rows; where these are configured wrongly the nodes cannot meet


def look_at_host(environ: Mapping[str, str]) -> tuple[Host, tuple[Finding, ...]]:
    """This host; where it lacks even a folder for temporary files, what can be known without one, and a row."""
    try:
        return read_host(environ), ()
    except LaunchError as error:
        bare = Host(socket.gethostname(), 0, detect_runtime(environ), {}, environ.get("SLIPWAY_IMAGE"), read_mounts())
        return bare, (misconfigured(TEMPORARY, str(error)),)


def examine(
    environ: Mapping[str, str], host: Host, sources: Sources, early: tuple[Finding, ...], local: bool, burn: int = 0
) -> tuple[NodeReport, tuple[NodeReport, ...]]:
    """This node's report, and those of all nodes, by node rank; `early` are rows known before, `local` leaves out the others,
    and each device computes for `burn` seconds.

    Raises InterruptedCheckError for a stop.
    """
    devices = read_devices(environ)
    topology, trouble = (None, ()) if local else find_place(sources, devices, host)
    say("check: driver, limits, disks and names of this node")
    findings = (*early, *trouble, *quick_check(environ, host, devices, results_folder(sources), topology))
    findings += probe("interruption notices", lambda: look_at_notices(sources, host, environ))
    count = len(devices.gpus)
    say(f"check: matrix product on {f'{count} GPU' + 's' * (count > 1) if count else 'the CPU'}")
    findings += probe("matrix product", lambda: look_at_products(devices, {**environ, **host.mended}))
    if burn:
        say(f"check: burn, {burn} s")
        findings += probe("burn", lambda: look_at_burn(devices, {**environ, **host.mended}, burn))
    own = NodeReport(topology.node_rank if topology else 0, socket.gethostname(), findings)
    if local or (topology and topology.nodes == 1):
        return own, (own,)
    if topology is None or (reason := why_not_together(own, topology)):
        reason = reason if topology else "not checked because of the error in this job's settings"
        own = NodeReport(own.node_rank, own.host, (*findings, skipped(OTHERS, reason)))
        return own, (own,)
    say(f"check: meeting the other nodes ({topology.nodes} in all), then an all-reduce")
    return meet(Job(make_plan(topology, CHECK, (), sources), sources, devices, environ, None, host), own)


def find_place(sources: Sources, devices: Devices, host: Host) -> tuple[Topology | None, tuple[Finding, ...]]:
    """This node's place in the job, or the row that says why it has none."""
    try:
        return resolve_topology(sources, devices, host), ()
    except LaunchError as error:
        row = sick if error.code == UNHEALTHY else misconfigured
        return None, (row("job", str(error)),)


def why_not_together(own: NodeReport, topology: Topology) -> str:
    """Why the nodes cannot meet, as far as this one knows; empty where they can."""
    if topology.process:
        return "there is a launcher per process here; start the check once per node (srun --ntasks-per-node=1)"
    lacking = [row.what for row in own.findings if row.code == CONFIGURATION and row.what in NEEDED]
    return f"not checked because of the error in {lacking[0]}" if lacking else ""
