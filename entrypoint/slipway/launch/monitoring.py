"""What is reported about a running job: messages to a chat, or to any server that accepts JSON by POST (SLIPWAY_NOTIFY), and
OpenMetrics for a monitoring system (SLIPWAY_METRICS_PORT). Whatever fails here never affects the job.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from slipway import __version__
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.node_directory import NodeDirectory, StoreRecord
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.block import block
from slipway.launch.verdict.ledger import KINDS, WORK
from slipway.launch.verdict.verdict import Verdict
from slipway.protocol.outcomes import Word
from slipway.protocol.redact import make_redactor, redact_json, secret_arguments, secret_values
from slipway.protocol.replicas import FindingKind, ReplicaDifference

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PAUSE = 60.0  # s between two messages
EVERY = 5.0  # s between polls of what the training recorded
TRIES = (0.0, 0.5, 2.0)  # s before each try
TIMEOUT = 3.0  # s for each
LAST_SECONDS = 10.0  # that the end of the job waits for its message: what a pod has beyond the grace for its snapshot


class Notices:
    """Messages from the launcher that decides for all, sent by a thread. A context manager.

    At most one a minute is sent: what happens meanwhile is part of the next one, or of the last, which does not wait. A failure
    is reported once. The address is a secret, as those of chats are: anyone who has it can write there.
    """

    def __init__(
        self,
        url: str,
        facts: Mapping[str, Any],
        clean: Callable[[str], str],
        say: Callable[[str], None],
        pause: float = PAUSE,
    ) -> None:
        """`facts` are part of each message, `clean` takes secrets out of a text; without a `url` nothing is sent."""
        self._url, self._facts, self._clean, self._say, self._pause = url, facts, clean, say, pause
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._over, self._complained = threading.Event(), False
        self._polled = time.monotonic()
        self._known: set[ReplicaDifference] | None = None  # None before the first look: what is there then is no news
        self._thread = threading.Thread(target=self._send_on, daemon=True, name="notices")

    def __enter__(self) -> Self:
        """Start the thread; where that fails nothing is sent."""
        if self._url:
            with suppress(RuntimeError):
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait a moment for the last message."""
        self._over.set()
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(LAST_SECONDS)

    def hang(self, run: Run, text: str) -> None:
        """A job hangs."""
        self._tell(run, "hang", text)

    def poll(self, run: Run) -> None:
        """Report differences between replicas that were found since the last look."""
        if self._url and (self._known is None or time.monotonic() - self._polled >= EVERY):
            self._polled = time.monotonic()
            self._find_drift(run)

    def _find_drift(self, run: Run) -> None:
        found = run.differences()
        known, self._known = self._known, {*found}
        for difference in () if known is None else (each for each in found if each not in known):
            event = "drift" if difference.kind == FindingKind.DRIFT else "arithmetic"
            self._tell(run, event, difference.sentence)

    def restart(self, run: Run, verdict: Verdict) -> None:
        """An attempt ended, and another follows."""
        event = "lost node" if verdict.first.word == Word.LOST else "restart"
        self._tell(
            run, event, f"restarting, because attempt {run.attempt} ended: {block(verdict)[0]}", outcome=verdict.word
        )

    def end(self, run: Run, verdict: Verdict) -> None:
        """The job ended."""
        if self._url:
            self._find_drift(run)
        self._tell(run, "end", block(verdict)[0], outcome=verdict.word, exit_code=verdict.code(0))

    def _tell(self, run: Run, event: str, text: str, **fields: Any) -> None:
        """Have it sent, at once or when the pause is over. Never waits."""
        if not self._url:
            return
        fields |= {"run": str(run.path), "attempt": run.attempt, "time": time.time()}
        with suppress(OSError):  # a disk that is away
            fields["snapshot"] = run.newest_step
        self._waiting.put({"event": event, "text": f"{run.path.name}: {text}", **self._facts, **fields})

    def _send_on(self) -> None:
        before = -self._pause
        while (notice := self._waiting.get()) is not None:
            self._over.wait(max(0.0, before + self._pause - time.monotonic()))
            texts, ended = [notice["text"]], False
            with suppress(queue.Empty):
                while not ended:
                    later = self._waiting.get_nowait()
                    ended = later is None
                    if later is not None:
                        notice = later
                        texts.append(later["text"])
            self._send({**notice, "text": "\n".join(texts)})
            before = time.monotonic()
            if ended:
                return

    def _send(self, notice: Mapping[str, Any]) -> None:
        for pause in TRIES:
            time.sleep(pause)
            try:
                post(self._url, redact_json(dict(notice), self._clean))
                return
            except Exception as error:  # whatever it is, it is no business of the job's
                failure = f"{type(error).__name__}: {error}"
        if not self._complained:
            said = self._clean(failure.replace(self._url, "SLIPWAY_NOTIFY"))
            self._say(f"warning: a message to SLIPWAY_NOTIFY could not be delivered; the job continues:  {said}")
        self._complained = True


def post(url: str, content: Mapping[str, Any]) -> None:
    """Post JSON, through a proxy where the environment names one, and again where a redirect leads; not from https to http.

    Raises OSError, ValueError, http.client.HTTPException.
    """
    import urllib.error
    import urllib.request  # with http and ssl, which others do without

    class PostAgain(urllib.request.HTTPRedirectHandler):
        """urllib's own would follow 301 and 302 with a GET, without the message, and refuse 307 and 308."""

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if code not in (301, 302, 307, 308):
                return super().redirect_request(req, fp, code, msg, headers, newurl)
            if req.full_url.startswith("https:") and not newurl.startswith("https:"):
                raise urllib.error.HTTPError(req.full_url, code, "it redirects to an address without TLS", headers, fp)
            return urllib.request.Request(newurl, req.data, req.headers, req.origin_req_host, True)  # noqa: S310

    headers = {"Content-Type": "application/json", "User-Agent": "slipway"}
    request = urllib.request.Request(url, json.dumps(content).encode(), headers)  # noqa: S310  # its setting takes http(s) alone
    with urllib.request.build_opener(PostAgain).open(request, timeout=TIMEOUT) as answer:
        answer.read(300)


def open_notices(job: Job, say: Callable[[str], None]) -> Notices:
    """The notices of a job. Only the launcher of node 0, or of process 0, sends any, and only if SLIPWAY_NOTIFY is set."""
    sources, topology = job.sources, job.plan.topology
    url = sources.value("SLIPWAY_NOTIFY") if topology.rank == 0 and job.plan.workload.keeps else ""
    secrets = [*secret_values(job.environ, sources.env_file).values(), *secret_arguments(job.plan.arguments), url]
    facts = {
        "workload": job.plan.workload.name,
        "job": topology.job,
        "host": socket.gethostname(),
        "nodes": topology.nodes,
        "processes": topology.world_size,
    }
    return Notices(url, facts, make_redactor(secrets), say)


# Those of metrics.jsonl that have a name of their own here; the others are `slipway_metric{name=…}`.
NAMED = {
    "loss": "Training loss.",
    "val_loss": "Validation loss.",
    "lr": "Learning rate.",
    "grad_norm": "Gradient norm.",
}
LEFT_OUT = ("time", "step")


class Metrics:
    """The metrics of one node's ranks, served by its launcher as long as the job lasts. A context manager.

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
        yield from self._store(self._run.node(topology.node_rank).store)
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

    def _store(self, record: StoreRecord) -> Iterator[Metric]:
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


def open_metrics(job: Job, say: Callable[[str], None]) -> Metrics:
    """The metrics of a job, served only if a port is set; where there is a launcher per process, by that of local rank 0."""
    process = job.plan.topology.process
    asked = job.plan.workload.keeps and (process is None or process.local_rank == 0)
    port = int(job.sources.value("SLIPWAY_METRICS_PORT")) if asked else 0
    return Metrics(job, job.sources.value("SLIPWAY_METRICS_ADDR"), port, say)


if TYPE_CHECKING:
    from prometheus_client.core import Metric
