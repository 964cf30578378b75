"""What a monitoring system asks for, as OpenMetrics: SLIPWAY_METRICS_PORT. From the launcher of each node, of its own ranks.

All of it comes from files that are there anyway, read when somebody asks. Whatever fails here never touches the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from slipway import __version__
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.heartbeats import read_beats
from slipway.launch.run_directory.ledger_file import last_ledger
from slipway.launch.run_directory.records import newest_numbers
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.ledger import KINDS, WORK
from slipway.protocol.files import newest_step
from slipway.protocol.replicas import read_differences

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


class Metrics:
    """Answers as long as the job lasts. A context manager."""

    def __init__(self, job: Job, address: str, port: int, say: Callable[[str], None]) -> None:
        """Nothing is opened yet; nor ever where `port` is 0."""
        self._job, self._address, self._port, self._say = job, address, port, say
        self._run: Run | None = None
        self._restarts = self._hangs = 0
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        """Listen. What stands in the way is a warning."""
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
            self._say(f"warning: no metrics at {place}, the job goes on: {error}{install}")
            return self

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join(1.0)

        self._stop = stop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer no longer."""
        self._stop()

    def attempt(self, run: Run) -> None:
        """An attempt begins."""
        self._run = run

    def hang(self) -> None:
        """A hang was noticed."""
        self._hangs += 1

    def restart(self) -> None:
        """An attempt ended, and another follows."""
        self._restarts += 1

    def describe(self) -> Iterator[Metric]:
        """Nothing: with this a registry does not ask for everything at once."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Everything, as of now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        topology, workload = self._job.plan.topology, self._job.plan.workload
        about = {"workload": workload.name, "version": __version__, "node": str(topology.node_rank)}
        about |= {"run": self._run.path.name} if self._run else {}
        yield InfoMetricFamily("slipway_job", "What runs here.", value=about)
        yield GaugeMetricFamily("slipway_processes", "Processes of the job.", value=topology.world_size)
        yield CounterMetricFamily("slipway_restarts", "Attempts that another one followed.", value=self._restarts)
        yield CounterMetricFamily("slipway_hangs", "Hangs that were noticed.", value=self._hangs)
        if self._run is None:
            return
        yield GaugeMetricFamily("slipway_attempt", "The number of this attempt.", value=self._run.attempt)
        yield from self._ranks(self._run.node(topology.node_rank))
        with suppress(OSError):  # a disk that is away
            if (saved := newest_step(self._run.path)) is not None:
                yield GaugeMetricFamily("slipway_snapshot_step", "The step of the newest snapshot.", value=saved)
        if 0 in topology.ranks:
            yield from self._numbers(self._run.path)
            yield from self._time(self._run.path, topology.node_rank)

    def _ranks(self, node_dir: Path) -> Iterator[Metric]:
        """Where each rank of this node says that it stands."""
        from prometheus_client.core import GaugeMetricFamily

        step = GaugeMetricFamily("slipway_step", "The step at which a rank is.", labels=["rank"])
        steps = GaugeMetricFamily("slipway_steps", "How many there will be.", labels=["rank"])
        phase = GaugeMetricFamily("slipway_phase", "1 for the phase in which a rank is.", labels=["rank", "phase"])
        own = GaugeMetricFamily(
            "slipway_own_seconds", "Seconds that a rank works on a step by itself.", labels=["rank"]
        )
        slower = GaugeMetricFamily(
            "slipway_slower", "By which share the rank that all wait for is slower.", labels=["rank"]
        )
        for rank, beat in read_beats(node_dir, self._job.plan.topology.ranks).items():
            step.add_metric([str(rank)], beat.step)
            phase.add_metric([str(rank), str(beat.phase)], 1)
            if beat.steps is not None:
                steps.add_metric([str(rank)], beat.steps)
            if beat.own is not None:
                own.add_metric([str(rank)], beat.own)
            if beat.slow and not slower.samples:
                slower.add_metric([str(beat.slow[0])], beat.slow[1])
        yield from (step, steps, phase, own, slower)

    def _time(self, run: Path, node_rank: int) -> Iterator[Metric]:
        """What the job's time went into so far, and what of it was not lost."""
        from prometheus_client.core import GaugeMetricFamily

        found = len(read_differences(run))
        yield GaugeMetricFamily("slipway_replica_differences", "Times that the replicas differed.", value=found)
        ledger = last_ledger(run, node_rank)
        if ledger is None or not ledger.wall:
            return
        seconds = GaugeMetricFamily("slipway_seconds", "What the time of the job went into, by kind.", labels=["kind"])
        for kind in KINDS:
            seconds.add_metric([kind.value], ledger[kind])
        yield seconds
        share = sum(ledger[kind] for kind in WORK) / ledger.wall
        yield GaugeMetricFamily("slipway_goodput", "Share of the job's time that was training.", value=share)

    def _numbers(self, run: Path) -> Iterator[Metric]:
        """The newest numbers of the training."""
        from prometheus_client.core import GaugeMetricFamily

        others = GaugeMetricFamily(
            "slipway_metric", "The newest number of metrics.jsonl, by its name.", labels=["name"]
        )
        for name, value in newest_numbers(run).items():
            if name in NAMED:
                yield GaugeMetricFamily(f"slipway_{name}", NAMED[name], value=value)
            elif name.endswith("_per_second"):
                yield GaugeMetricFamily(f"slipway_{name}", "Rate of all processes.", value=value)
            elif name not in LEFT_OUT:
                others.add_metric([name], value)
        yield others


def open_metrics(job: Job, say: Callable[[str], None]) -> Metrics:
    """Those of a job; nobody is answered where no port is set, and of launchers per process that of local rank 0 answers."""
    process = job.plan.topology.process
    asked = job.plan.workload.keeps and (process is None or process.local_rank == 0)
    port = int(job.sources.value("SLIPWAY_METRICS_PORT")) if asked else 0
    return Metrics(job, job.sources.value("SLIPWAY_METRICS_ADDR"), port, say)
