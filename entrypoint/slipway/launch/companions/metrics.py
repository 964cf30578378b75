"""OpenMetrics for a monitoring system (SLIPWAY_METRICS_PORT). Whatever fails here never affects the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from slipway import __version__
from slipway.launch.attempt.stops import Stops
from slipway.launch.companions.companion import Companion
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.topology import Topology
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.ledger import KINDS, WORK
from slipway.launch.verdict.verdict import Verdict
from slipway.protocol.replicas import FindingKind
from slipway.store.progress import CopyProgress, read_progress

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Those of metrics.jsonl that have a name of their own here; the others are `slipway_metric{name=…}`.
NAMED = {
    "loss": "Training loss.",
    "val_loss": "Validation loss.",
    "lr": "Learning rate.",
    "grad_norm": "Gradient norm.",
}
LEFT_OUT = ("time", "step")


class Metrics(Companion):
    """The metrics of one node's ranks, served by its launcher as long as the job lasts.

    All of them come from files that are there anyway, which are read at each request.
    """

    def __init__(self, job: Job, address: str, port: int, say: Callable[[str], None]) -> None:
        """Nothing is opened yet; nor ever where `port` is 0."""
        self._job, self._address, self._port, self._say = job, address, port, say
        self._run: Run | None = None
        self._restarts = self._hangs = 0
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        """Listen; an error is a warning."""
        if not self._port:
            return self
        try:
            from prometheus_client import CollectorRegistry, start_http_server  # 60 ms that no other start pays

            registry = CollectorRegistry()
            registry.register(self)
            server, thread = start_http_server(self._port, self._address, registry)
        except (ImportError, OSError, OverflowError, RuntimeError) as error:
            install = ". Type: pip install prometheus-client" if isinstance(error, ImportError) else ""
            place = f"{self._address}:{self._port} (SLIPWAY_METRICS_PORT)"
            self._say(f"warning: no metrics at {place}; the job continues: {error}{install}")
            return self

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join(1.0)

        self._stop = stop
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self._stop()

    def begin(self, run: Run, topology: Topology) -> None:
        """Read from this run from now on."""
        self._run = run

    def hang(self, run: Run, text: str) -> None:
        """Count it."""
        self._hangs += 1

    def restart(self, run: Run, verdict: Verdict) -> None:
        """Count it."""
        self._restarts += 1

    def describe(self) -> Iterator[Metric]:
        """Nothing: with this a registry does not ask for everything at once."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Everything, as of now."""
        from prometheus_client.core import CounterMetricFamily, InfoMetricFamily

        topology, workload = self._job.plan.topology, self._job.plan.workload
        about = {"workload": workload.name, "version": __version__, "node": str(topology.node_rank)}
        about |= {"run": self._run.path.name} if self._run else {}
        yield InfoMetricFamily("slipway_job", "What runs here.", value=about)
        yield gauge("slipway_processes", "Processes of the job.", {(): topology.world_size})
        yield CounterMetricFamily("slipway_restarts", "Restarts of the job.", value=self._restarts)
        yield CounterMetricFamily("slipway_hangs", "Hangs that were noticed.", value=self._hangs)
        if self._run is None:
            return
        yield gauge("slipway_attempt", "The number of this attempt.", {(): self._run.attempt})
        yield from self._ranks(self._run.node(topology.node_rank))
        errors = CounterMetricFamily("slipway_xid_errors", "Xid errors of this node's GPUs.", labels=("gpu", "xid"))
        for row in self._run.node(topology.node_rank).xids():
            errors.add_metric(["" if row.gpu is None else str(row.gpu), str(row.number)], row.total)
        yield errors
        if (saved := self._run.newest_step) is not None:
            yield gauge("slipway_snapshot_step", "The step of the newest snapshot.", {(): saved})
        yield from self._store(read_progress(self._run.node(topology.node_rank).path))
        if 0 in topology.ranks:
            yield from self._numbers(self._run)
            yield from self._time(self._run, topology.node_rank)

    def _ranks(self, node: NodeDirectory) -> Iterator[Metric]:
        """The step, the phase and the speed of each rank of this node, by its heartbeat."""
        beats = node.beats(self._job.plan.topology.ranks)
        steps = {(rank,): beat.steps for rank, beat in beats.items() if beat.steps is not None}
        phases = {(rank, beat.phase): 1 for rank, beat in beats.items()}
        own = {(rank,): beat.own for rank, beat in beats.items() if beat.own is not None}
        slow = [beat.slow for beat in beats.values() if beat.slow][:1]
        at = {(rank,): beat.step for rank, beat in beats.items()}
        yield gauge("slipway_step", "The step at which a rank is.", at, "rank")
        yield gauge("slipway_steps", "The total number of steps.", steps, "rank")
        yield gauge("slipway_phase", "1 for the phase in which a rank is.", phases, "rank", "phase")
        yield gauge("slipway_own_seconds", "Seconds that a rank works on a step by itself.", own, "rank")
        slower = {(rank,): share for rank, share in slow}
        yield gauge(
            "slipway_slower", "The fraction by which the rank that all others wait for is slower.", slower, "rank"
        )

    def _store(self, record: CopyProgress) -> Iterator[Metric]:
        """How old the newest copy in the store is."""
        if not record.store:
            return
        if record.step is not None:
            yield gauge("slipway_store_step", "The step of the newest snapshot in the store.", {(): record.step})
        if (age := record.age(time.time())) is not None:
            yield gauge("slipway_store_age_seconds", "Seconds since that snapshot was written.", {(): age})
        yield gauge("slipway_store_bytes", "Bytes that this node has copied to the store.", {(): record.bytes})
        yield gauge("slipway_store_failing", "1 while copies fail.", {(): int(bool(record.error))})

    def _time(self, run: Run, node_rank: int) -> Iterator[Metric]:
        """What the job's time went into so far, and the share of it that was training."""
        kinds = [difference.kind for difference in run.differences()]
        drift, wrong = (kinds.count(kind) for kind in (FindingKind.DRIFT, FindingKind.ARITHMETIC))
        yield gauge("slipway_replica_differences", "Times that the replicas differed.", {(): drift})
        yield gauge("slipway_wrong_arithmetic", "Times that a rank computed wrongly.", {(): wrong})
        ledger = run.ledger(node_rank)
        if ledger is None or not ledger.wall:
            return
        seconds = {(kind,): ledger[kind] for kind in KINDS}
        yield gauge("slipway_seconds", "Seconds of the job by kind.", seconds, "kind")
        share = sum(ledger[kind] for kind in WORK) / ledger.wall
        yield gauge("slipway_goodput", "Share of the job's time that was training.", {(): share})

    def _numbers(self, run: Run) -> Iterator[Metric]:
        """The newest numbers of the training."""
        others = {}
        for name, value in run.newest_numbers().items():
            if name in NAMED or name.endswith("_per_second"):
                yield gauge(f"slipway_{name}", NAMED.get(name, "Rate of all processes."), {(): value})
            elif name not in LEFT_OUT:
                others[name,] = value
        yield gauge("slipway_metric", "The newest value in metrics.jsonl, by name.", others, "name")


def gauge(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    """Return a gauge; each of the `values` has as key a tuple of what it has as `labels`."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for row, value in values.items():
        family.add_metric([str(part) for part in row], value)
    return family


def open_metrics(job: Job, stops: Stops, say: Callable[[str], None]) -> Metrics:
    """The metrics of a job, served only if a port is set; where there is a launcher per process, by that of local rank 0."""
    process = job.plan.topology.process
    port = int(job.sources.value("SLIPWAY_METRICS_PORT")) if process is None or process.local_rank == 0 else 0
    return Metrics(job, job.sources.value("SLIPWAY_METRICS_ADDR"), port, say)
