"""The part of a check for which nodes meet: the rendezvous, in which each learns what the others found, then an all-reduce; and
the reports of all nodes.

It is a job like any other (workload `check` in catalog.py) in a folder of temporary files. Each launcher sends its node's
findings with its info; its workers write what the all-reduce showed into the run directory.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from slipway.check.finding import NodeReport, misconfigured, ok, sick, warning
from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.terminal import say
from slipway.launch.job import Attempts
from slipway.launch.node import enter
from slipway.launch.node_rank import claim_rank
from slipway.launch.rendezvous.membership import draw_table, find_differences
from slipway.launch.rendezvous.messages import Finding, Peer
from slipway.launch.resolve.catalog import CHECK
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import make_plan
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.records import NodeEnd
from slipway.launch.several_nodes import SeveralNodes
from slipway.protocol.errors import CANCELLED, PEER, STOPPED, UNHEALTHY, LaunchError
from slipway.protocol.files import CHECK_FILE
from slipway.protocol.outcomes import Word

EXCHANGE_SECONDS = 180.0  # seconds for torchrun, two imports of torch, and the all-reduce
RUN = "run"  # the run directory in the folder of temporary files
GRACE_SECONDS = "5"  # seconds; there is nothing to save
FIREWALL = "open all TCP ports between the nodes, and see which network interfaces they use (NCCL_DEBUG=INFO)"
TOGETHER = "start the check on all nodes at once; with --rendezvous-timeout S they wait longer for each other"
OTHERS, EXCHANGE = "other nodes", "all-reduce"  # rows


class InterruptedCheckError(Exception):
    """The check was stopped; `code` is the exit code for that."""

    def __init__(self, code: int) -> None:
        super().__init__(f"stopped with exit code {code}")
        self.code = code


def meet(job: Job, own: NodeReport) -> tuple[NodeReport, tuple[NodeReport, ...]]:
    """This node's report, with the rank that it has found out, and those of all nodes, by node rank; this node's alone, with an
    error row, where they cannot meet.

    Raises InterruptedCheckError for a stop.
    """
    with tempfile.TemporaryDirectory(prefix="slipway-check-") as name:
        folder = Path(name)
        seconds = job.seconds("SLIPWAY_RENDEZVOUS_TIMEOUT") + EXCHANGE_SECONDS
        peers, trouble, rank = start(passing(job, folder), folder / RUN, seconds, own)
        reports = assemble(
            dataclasses.replace(own, node_rank=rank), peers, RunDirectory(folder / RUN).content(CHECK_FILE), trouble
        )
        return next(report for report in reports if report.node_rank == rank), reports


def passing(job: Job, folder: Path) -> Job:
    """The job that nodes meet in, with all it leaves in `folder`."""
    options = {"SLIPWAY_RUNS": folder, "SLIPWAY_RUN_DIR": folder / RUN, "SLIPWAY_RESUME": "none"}
    quiet = {"SLIPWAY_MAX_RESTARTS": "0", "SLIPWAY_GRACE_SECONDS": GRACE_SECONDS, "SLIPWAY_CHECK": "0"}
    given = {name: str(value) for name, value in (options | quiet).items()}
    sources = job.sources._replace(options={**job.sources.options, **given})
    topology = job.plan.topology
    everybody = topology.nodes + topology.spares  # spare nodes are checked like all others
    topology = topology._replace(notes=(), nodes=everybody, least=everybody, spares=0, group_rank=topology.node_rank)
    # Without an image there is no warning that the results, which are temporary, do not outlive the container.
    host = job.host._replace(image=None)
    return job._replace(plan=make_plan(topology, CHECK, (), sources), sources=sources, host=host)


def start(job: Job, folder: Path, seconds: float, own: NodeReport) -> tuple[Sequence[Peer], Finding | None, int]:
    """Run the job to its end, for at most `seconds`; who met, a row for what went wrong, and this node's rank. Raises
    InterruptedCheckError.
    """
    peers: Sequence[Peer] = ()
    clock = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))  # a stop, as the launcher understands it
    clock.daemon = True
    clock.start()
    try:
        with stdout_to_stderr(), Stops() as stops, ExitStack() as stack:
            job, listening = claim_rank(job, stops) if job.plan.topology.is_open else (job, None)
            nodes = stack.enter_context(SeveralNodes(job, stops, own.findings, listening=listening))
            say(job.plan.topology.arithmetic)
            code = Attempts(job, enter(job, stack), nodes, stops, stack).run()
            peers = nodes.peers
        late, refusal = clock.finished.is_set(), ""
    except LaunchError as error:
        late, code, refusal = clock.finished.is_set(), error.code, str(error)
    finally:
        clock.cancel()
    rank = job.plan.topology.node_rank
    if late:
        late_row = misconfigured(OTHERS, f"they had not exchanged their findings within {seconds:.0f} s", FIREWALL)
        return peers, late_row, rank
    if code in (STOPPED, CANCELLED):
        raise InterruptedCheckError(code)
    if refusal:
        row = sick if code == UNHEALTHY else misconfigured
        return peers, row(OTHERS, refusal, TOGETHER if code == PEER else ""), rank
    if not code:
        return peers, None, rank
    found = judge_outcome(RunDirectory(folder).first_cause, rank)
    if str(folder) in found.advice:  # which is temporary
        found = dataclasses.replace(found, advice="the output of its processes is above")
    return peers, found, rank


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Keep what workers and libraries print out of the table, which goes to stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def judge_outcome(first: NodeEnd | None, node_rank: int) -> Finding:
    """The row for a job that started and did not end well, from the first cause of that. Pure."""
    if first is None:
        return misconfigured(OTHERS, "the job that connects the nodes failed; its output says why")
    found = f"node {first.node_rank} ({first.host}): {first.evidence or first.word}"
    row = sick if first.word == Word.UNHEALTHY and first.node_rank == node_rank else misconfigured
    return row(OTHERS, found, first.advice)


def assemble(
    own: NodeReport, peers: Sequence[Peer], exchange: Mapping[str, Any], trouble: Finding | None
) -> tuple[NodeReport, ...]:
    """All nodes' reports, by node rank, with what the exchange showed; `trouble` goes to our own.

    `peers` are the launchers that met, this one among them, and `exchange` is the content of `check.json`: empty where the
    processes did not get that far.
    """
    reports = []
    for index, peer in enumerate(sorted(peers, key=lambda peer: peer.info.node_rank)):
        rows = [judge_exchange(exchange, index)] if exchange else []
        if peer.info.node_rank != own.node_rank:
            reports.append(NodeReport(peer.info.node_rank, peer.info.host, (*peer.info.findings, *rows)))
        else:
            own = dataclasses.replace(own, findings=(*own.findings, *compare_nodes(peers), *rows))
    if trouble:
        own = dataclasses.replace(own, findings=(*own.findings, trouble))
    return tuple(sorted((*reports, own), key=lambda report: report.node_rank))


def judge_exchange(exchange: Mapping[str, Any], index: int) -> Finding:
    """The row of the all-reduce for one node, by its place among all."""
    links, slow = exchange.get("links") or [], exchange.get("slow") or {}
    link = f"; {links[index]} to and from its neighbour" if index < len(links) and links[index] else ""
    found = f"{exchange.get('text')}{link}"
    if slow.get("node") == index:
        own_work = slow.get("what") == "own"
        advice = "look at what else runs on that node, and at its clocks" if own_work else "look at its network card"
        return warning(EXCHANGE, f"{found}\nslower than the rest: {slow.get('text')}", advice)
    return ok(EXCHANGE, found)


def compare_nodes(peers: Sequence[Peer]) -> Iterator[Finding]:
    """That all are here and fit together, which the rendezvous saw to, and in what they should be alike but are not."""
    yield ok(OTHERS, f"all {len(peers)} are here, run the same versions, and each reaches its neighbour")
    infos = {peer.info.node_rank: peer.info for peer in peers}
    offsets = {peer.info.node_rank: peer.offset for peer in peers}
    differences = find_differences(infos, offsets, allow_uneven=True)
    if differences:
        table = draw_table(differences, {rank: info.host for rank, info in infos.items()})
        yield warning("differences", "\n".join(("the nodes differ:", *table)))
