"""What is known about a run from its directory: who runs it, where each rank stands, how it ended."""

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.host import mount_point, read_mounts
from slipway.launch.resolve.runtimes import detect_runtime
from slipway.launch.run_directory.directory import RunDirectory, list_run_directories, newest_run
from slipway.launch.run_directory.node_directory import (
    Beat,
    NodeDirectory,
    RankStatus,
    SpareNode,
    WaitingRecord,
)
from slipway.launch.run_directory.records import NodeEnd, OutcomeRecord, RunRecord
from slipway.launch.verdict.block import heading, stack_lines
from slipway.launch.verdict.ledger import Ledger, ledger_json, ledger_line
from slipway.launch.verdict.verdict import CODES
from slipway.process.folder_lock import TOUCH, Holder, is_alive, is_here
from slipway.protocol.decoding import decode_known
from slipway.protocol.errors import LaunchError, told_if_unreadable
from slipway.protocol.files import HEARTBEATS
from slipway.protocol.printable import printable, utc
from slipway.protocol.replicas import FindingKind, ReplicaDifference
from slipway.store.progress import CopyProgress, newest_progress

SHOWN = 5  # the newest failed attempts, and the newest differences between replicas; --json has all
FOREIGN_PATIENCE = (
    5 * TOUCH
)  # s after which a launcher on another host that gave no heartbeat does not count as running


@dataclass(frozen=True)
class Status:
    """A run as its directory shows it. `ages` are the seconds since each rank's heartbeat changed.

    `launchers` are those alive, each by the folder that it holds as one of the `holders`. While they wait for others there are no
    ranks, and `waiting` says since when, and for which attempt.
    """

    path: Path
    record: RunRecord
    launchers: tuple[NodeDirectory, ...]
    holders: tuple[Holder, ...]
    waiting: WaitingRecord | None
    beats: tuple[Beat, ...]
    ages: tuple[float, ...]
    snapshot: int | None
    outcome: OutcomeRecord
    outcome_json: Mapping[str, Any]  # as it was written
    hang: str = ""  # one that lasts, in words
    workers: tuple[RankStatus, ...] = ()  # of a script
    ledger: Ledger | None = None
    failures: Sequence[Mapping[str, Any]] = ()  # attempts that failed, oldest first
    differences: Sequence[ReplicaDifference] = ()  # of the model's replicas, oldest first
    stopping: Mapping[int, str] = field(default_factory=dict)  # why the workers of a node are to stop
    store: CopyProgress | None = None  # how far the copy of rank 0's node is
    spares: Sequence[SpareNode] | None = None  # nodes that wait; None of a job without spare nodes

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node ranks of the launchers."""
        return tuple(node.rank for node in self.launchers)

    @property
    def alive(self) -> bool:
        """Whether a launcher runs it now."""
        return bool(self.holders)


@told_if_unreadable("Run this command as its owner.")
def find_run(name: str, runs: Path) -> Path:
    """The directory of the run that a path or a name below the folder of runs means. Where it is empty, the newest of those whose
    launcher runs here, as other containers or hosts may share the folder, else the newest.

    Raises LaunchError where there is none, or where this user may not look.
    """
    candidates = (
        [Path(name), runs / name] if name else [newest_run(runs, wanted=_lives_here) or newest_run(runs) or runs]
    )
    for path in candidates:
        if RunDirectory(path).exists:
            return path
    known = [run.path.name for run in list_run_directories(runs)]
    missing = f"There is no run {name}, neither here nor in {runs}" if name else f"There is no run in {runs}"
    if not name or not known:
        raise LaunchError(f"{missing}. Give the path of one, or its folder with --runs DIR.{_mount(runs)}")
    import difflib  # only where somebody mistyped: it takes milliseconds

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or known[-3:]
    raise LaunchError(f"{missing}. There are for example {', '.join(near)}.")


def _mount(runs: Path) -> str:
    """What to mount where the image has no volume for runs."""
    if "SLIPWAY_IMAGE" not in os.environ or mount_point(runs.absolute(), read_mounts()) != Path("/"):
        return ""
    return f" Nothing is mounted at {runs}: {advise('kept results', detect_runtime(os.environ), str(runs))}."


def _lives_here(run: RunDirectory) -> bool:
    return any(is_here(node.holder) for node in run.launchers())


def read_status(path: Path) -> Status:
    """Look at a run. Takes up to a few seconds where a launcher runs on another host, or did."""
    run = RunDirectory(path)
    known = run.launchers()
    with ThreadPoolExecutor(max_workers=len(known) or 1) as pool:  # each may take its few seconds
        alive = list(pool.map(lambda node: is_alive(node.lock, patience=FOREIGN_PATIENCE), known))
    living = {node: holder for node, lives in zip(known, alive, strict=True) if lives and (holder := node.holder)}
    waiting = next((record for node in living if (record := node.waiting)), None)
    beats, ages = _read_beats(run, [*living]) if not waiting else ([], [])
    workers = [worker for node in living if not waiting for worker in node.workers()]
    return Status(
        path,
        run.record,
        tuple(living),
        tuple(living.values()),
        waiting,
        tuple(beats),
        tuple(ages),
        store.step if (store := newest_progress(run.path)) and store.fetched is not None else run.newest_step,
        run.outcome,
        run.outcome_json,
        next((hang for node in living if (hang := node.hang)), ""),
        tuple(sorted(workers)),
        run.ledger(),
        run.node(0).failures(),
        run.differences(),
        {node.rank: printable(why) for node in living if (why := node.stopping)},
        store,
        next((spares for node in living if (spares := node.spares) is not None), None),
    )


def _read_beats(run: RunDirectory, living: Sequence[NodeDirectory]) -> tuple[list[Beat], list[float]]:
    """The newest heartbeats, and the age of each. Those of nodes that left the job are not shown while it runs without them."""
    folders = {node.path: node for node in living or run.nodes(HEARTBEATS)}
    beats, ages = [], []
    for _, node in sorted(folders.items()):
        for beat in node.beats().values():
            with suppress(FileNotFoundError):  # another attempt may just begin
                ages.append(max(0.0, time.time() - node.heartbeat_file(beat.rank).stat().st_mtime))
                beats.append(beat)
    return beats, ages


def status_json(status: Status) -> dict[str, Any]:
    """The documented form of `slipway status --json`."""
    return {
        "run": str(status.path),
        "alive": status.alive,
        "attempt": status.record.attempt or None,
        "snapshot": status.snapshot,
        "holders": [
            {"node": node} | {name: value for name, value in holder._asdict().items() if name != "token"}
            for node, holder in zip(status.nodes, status.holders, strict=True)
        ],
        "waiting": status.waiting._asdict() if status.waiting else None,
        "spares": None if status.spares is None else [spare._asdict() for spare in status.spares],
        "ranks": [
            {name: getattr(beat, name) for name in ("rank", "phase", "step", "steps", "own")} | {"age": round(age, 1)}
            for beat, age in zip(status.beats, status.ages, strict=True)
        ],
        "workers": [worker._asdict() for worker in status.workers],
        "slow": next(({"rank": beat.slow[0], "slower": beat.slow[1]} for beat in status.beats if beat.slow), None),
        "hang": status.hang or None,
        "stopping": [{"node": node, "why": why} for node, why in status.stopping.items()],
        "ledger": ledger_json(status.ledger) if status.ledger else None,
        "failures": list(status.failures),
        "store": _store_json(status.store),
        "replicas": [difference._asdict() for difference in status.differences],
        "outcome": dict(status.outcome_json) or None,
    }  # fmt: skip


def status_lines(status: Status) -> list[str]:
    """The same for people: who runs it and where each rank stands, or how it ended."""
    record = status.record
    fetched = status.store.fetched if status.store else None
    where = status.store.store if status.store and fetched is not None else status.path
    lines = [f"{where}: {record.workload or 'a run'}, attempt {record.attempt or 1}"]
    for node, holder in zip(status.nodes, status.holders, strict=True):
        lines.append(f"  running     {f'node {node}: ' if record.nodes > 1 else ''}{holder.text}")
    if (waiting := status.waiting) and waiting.since is not None:
        seconds = max(0.0, time.time() - waiting.since)
        lines.append(f"  waiting     for nodes, since {seconds:.0f} s, for attempt {waiting.attempt}")
    lines += [f"  stopping    node {node}: {why}" for node, why in status.stopping.items() if not waiting]
    if status.spares is not None:
        idle = ", ".join(f"node {spare.node} ({spare.host})" for spare in status.spares)
        lines.append(f"  spare       {idle or 'no spare node is here'}")
    if status.hang:
        lines.append(f"  hang        {status.hang}")
    if fetched is not None and not status.outcome.word:
        lines.append(f"  state       no outcome in the store at {utc(fetched)}: it runs, or its machines are gone")
    elif not status.alive:
        lines += _ending(status)
    if status.ledger and status.ledger.wall:
        lines.append(f"  time        {ledger_line(status.ledger)}")
    lines += [f"  failed      {_failure(decode_known(NodeEnd, row) or NodeEnd())}" for row in status.failures[-SHOWN:]]
    lines += [
        f"  {difference.kind:<10}  {'differed' if difference.kind == FindingKind.DRIFT else 'wrong'} at {difference}"
        for difference in status.differences[-SHOWN:]
    ]
    if status.snapshot is not None or record.workload in WORKLOADS:
        lines.append(f"  snapshot    {'none yet' if status.snapshot is None else f'step {status.snapshot}'}")
    if status.store:
        lines.append(f"  store       {_store_line(status.store)}")
    if status.alive and status.beats:
        lines += _beat_lines(status.beats, status.ages)
    elif status.alive and status.workers:
        lines += _worker_lines(status.workers)
    return lines


def _store_json(store: CopyProgress | None) -> dict[str, Any] | None:
    """What is known of the copy, with its age in seconds."""
    if store is None:
        return None
    return dataclasses.asdict(store) | {"age": store.age(time.time())}


def _store_line(store: CopyProgress) -> str:
    """The same for people: how old the newest copy is, what is being copied, and why it fails, if it does."""
    text = store.describe(time.time())
    if store.copying is not None:
        text += (
            f"; copying step {store.copying} ({store.done / max(store.total, 1):.0%} of {store.total / 1e6:,.1f} MB)"
        )
    return text + "".join(f"; {why}" for why in (store.error, store.superseded) if why)


def _beat_lines(beats: Sequence[Beat], ages: Sequence[float]) -> Iterator[str]:
    """A table of the ranks, with a column for how long each works on a step by itself where they tell, and who is slow."""
    for rank, slower in [beat.slow for beat in beats if beat.slow][:1]:
        yield f"  slow        rank {rank} makes all others wait: it is {slower:.0%} slower than the others"
    own = any(beat.own is not None for beat in beats)
    yield f"  {'rank':>6}  {'phase':<10}  {'step':>15}  {'own ms/step  ' if own else ''}last heartbeat"
    for beat, age in zip(beats, ages, strict=True):
        step = f"{beat.step}/{beat.steps}" if beat.steps else f"{beat.step}"
        time = f"{'–' if beat.own is None else f'{1e3 * beat.own:.1f}':>11}  " if own else ""
        yield f"  {beat.rank:>6}  {beat.phase:<10}  {step:>15}  {time}{age:.0f} s ago"


def _failure(end: NodeEnd) -> str:
    """An attempt that failed: which, when, where and why, as far as it is known."""
    when = "" if end.time is None else f", {utc(end.time)}"
    return f"attempt {end.attempt or None}{when}: {end.place}: {end.evidence or end.word or None}"


def _worker_lines(workers: Sequence[RankStatus]) -> Iterator[str]:
    """A table of the ranks of a script; a column for GPUs where anybody knows how busy they are."""
    gpus = any(worker.gpu is not None for worker in workers)
    yield f"  {'rank':>6}  {'collectives':>11}  {'per second':>10}  {'cores':>5}  {'  gpu  ' if gpus else ''}last line"
    for rank, done, rate, cores, gpu, line in workers:
        count = "–" if done is None else f"{done:,}"
        numbers = ["–" if one is None else f"{one:,.4g}" for one in (rate, cores)]
        use = f"{'–' if gpu is None else f'{gpu:.0f} %':>5}  " if gpus else ""
        yield f"  {rank:>6}  {count:>11}  {numbers[0]:>10}  {numbers[1]:>5}  {use}{line}".rstrip()


def _ending(status: Status) -> list[str]:
    """How it ended, as far as anybody wrote it down."""
    word, first = status.outcome.word, status.outcome.first
    if word not in CODES or first is None:
        return ["  ended       without a verdict: its launcher was killed, or the machine went away"]
    lines = [f"  ended       {': '.join(filter(None, (heading(word, first.cause), first.place, first.evidence)))}"]
    if first.time is not None:
        lines.append(f"  when        {utc(first.time)}")
    lines += stack_lines(list(first.stacks))
    lines += [f"  what to do  {first.advice.replace('`', '')}"] if first.advice else []
    return [*lines, f"  exit code   {status.outcome.code}"]
