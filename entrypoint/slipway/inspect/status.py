"""What is known about a run from its directory: who runs it, where each rank stands, how it ended."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.run_directory.bookkeeping import last_ledger, read_failures
from slipway.launch.run_directory.heartbeats import Beat, heartbeat_file, read_beats
from slipway.launch.run_directory.run import last_outcome, newest_run
from slipway.launch.run_directory.run_lock import TOUCH, Holder, beside, find_lock_files, is_alive, read_holder
from slipway.launch.verdict.block import heading, stack_lines, utc
from slipway.launch.verdict.ledger import Ledger, ledger_json, ledger_line
from slipway.launch.verdict.verdict import CODES
from slipway.protocol.decoding import decode_rows
from slipway.protocol.errors import LaunchError, told_if_unreadable
from slipway.protocol.files import (
    HANG_FILE,
    HEARTBEATS,
    LOGS,
    NODE,
    RANK,
    RANKS_FILE,
    RUN_FILE,
    WAITING_FILE,
    newest_step,
    node_folder,
    number_in,
    read_json,
    whole_number,
)
from slipway.protocol.replicas import ReplicaDifference, read_differences

SHOWN = 5  # attempts that failed, the newest
GLANCE = 5 * TOUCH  # s after which a launcher on another host that gave no heartbeat does not count as running


class RankStatus(NamedTuple):
    """A rank of a script as its launcher sees it: collectives done and per second, processor cores kept busy, percent of the time
    in which its GPU was in use, its last line.
    """

    rank: int
    collectives: int | None = None
    per_second: float | None = None
    cores: float | None = None
    gpu: float | None = None
    line: str = ""


@dataclass(frozen=True)
class Status:
    """A run as its directory shows it. `ages` are the seconds since each rank's heartbeat changed.

    `nodes` are the node ranks of the `holders`, and `locks` the files in which these say that they are. While launchers wait for
    others there are no ranks, and `waiting` says since when (unix seconds), and for which attempt.
    """

    path: Path
    record: Mapping[str, Any]
    holders: tuple[Holder, ...]  # those alive
    nodes: tuple[int, ...]
    waiting: Mapping[str, Any]
    beats: tuple[Beat, ...]
    ages: tuple[float, ...]
    snapshot: int | None
    outcome: Mapping[str, Any]
    hang: Mapping[str, Any] = field(default_factory=dict)  # what was told of one that lasts
    workers: tuple[RankStatus, ...] = ()  # of a script
    ledger: Ledger | None = None
    failures: Sequence[Mapping[str, Any]] = ()  # attempts that failed, oldest first
    differences: Sequence[ReplicaDifference] = ()  # of the model's replicas, oldest first
    locks: tuple[Path, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether a launcher runs it now."""
        return bool(self.holders)


@told_if_unreadable("Run this command as its owner.")
def find_run(name: str, runs: Path) -> Path:
    """The directory of the run that a path or a name below the folder of runs means; the newest where it is empty.

    Raises LaunchError where there is none, or where this user may not look.
    """
    candidates = [Path(name), runs / name] if name else [newest_run(runs) or runs]
    for path in candidates:
        if _is_run(path):
            return path
    known = sorted(file.parent.name for file in runs.glob(f"*/{RUN_FILE}"))
    missing = f"There is no run {name}, neither here nor in {runs}" if name else f"There is no run in {runs}"
    if not name or not known:
        raise LaunchError(f"{missing}. Give the path of one, or its folder with --runs DIR.")
    import difflib  # only where somebody mistyped: it takes milliseconds

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or known[-3:]
    raise LaunchError(f"{missing}. There are for example {', '.join(near)}.")


def _is_run(path: Path) -> bool:
    return (path / RUN_FILE).is_file() or bool(find_lock_files(path)) or any(path.glob(f"{NODE}*/{LOGS}"))


def sleep(seconds: float) -> bool:
    """Wait, and never give up: how somebody without stop signals watches a launcher."""
    time.sleep(seconds)
    return False


def read_status(path: Path, stopped: Callable[[float], bool] = sleep) -> Status:
    """Look at a run. Takes up to a few seconds where a launcher runs on another host, or did."""
    files = find_lock_files(path)
    with ThreadPoolExecutor(max_workers=len(files) or 1) as pool:  # each may take its few seconds
        alive = list(pool.map(lambda file: is_alive(file, stopped, GLANCE), files))
    living = [file for file, lives in zip(files, alive, strict=True) if lives]
    holders = {file: holder for file in living if (holder := read_holder(file))}
    waits = [record for file in living if (record := read_json(file.with_name(WAITING_FILE)))]
    # Those of nodes that left the job are of no interest while it runs without them.
    folders = {file.parent / HEARTBEATS for file in living} or path.glob(f"{NODE}*/{HEARTBEATS}")
    beats, ages = [], []
    for folder in sorted(folders) if not waits else ():
        ranks = [rank for file in folder.glob("*.json") if (rank := number_in(file.stem, RANK)) is not None]
        for beat in read_beats(folder.parent, sorted(ranks)).values():
            with suppress(FileNotFoundError):  # another attempt may just begin
                ages.append(max(0.0, time.time() - heartbeat_file(folder.parent, beat.rank).stat().st_mtime))
                beats.append(beat)
    return Status(
        path,
        read_json(path / RUN_FILE),
        tuple(holders.values()),
        tuple(number_in(file.parent.name, NODE) or 0 for file in holders),
        waits[0] if waits else {},
        tuple(beats),
        tuple(ages),
        newest_step(path),
        last_outcome(path),
        next((record for file in living if (record := read_json(beside(file, HANG_FILE)))), {}),
        tuple(sorted(worker for file in living if not waits for worker in _read_workers(beside(file, RANKS_FILE)))),
        last_ledger(path),
        read_failures(node_folder(path, 0)),
        read_differences(path),
        tuple(holders),
    )


def _read_workers(file: Path) -> list[RankStatus]:
    """The rows of a node; what makes no sense is passed over."""
    ranks = read_json(file).get("ranks")
    rows = ranks.items() if isinstance(ranks, dict) else ()
    return decode_rows(RankStatus, [{**row, "rank": whole_number(rank)} for rank, row in rows if isinstance(row, dict)])


def status_json(status: Status) -> dict[str, Any]:
    """The documented form of `slipway status --json`."""
    return {
        "run": str(status.path),
        "alive": status.alive,
        "attempt": status.record.get("attempt"),
        "snapshot": status.snapshot,
        "holders": [
            {"node": node} | {name: value for name, value in asdict(holder).items() if name != "token"}
            for node, holder in zip(status.nodes, status.holders, strict=True)
        ],
        "waiting": dict(status.waiting) or None,
        "ranks": [
            {name: getattr(beat, name) for name in ("rank", "phase", "step", "steps", "own")} | {"age": round(age, 1)}
            for beat, age in zip(status.beats, status.ages, strict=True)
        ],
        "workers": [worker._asdict() for worker in status.workers],
        "slow": next(({"rank": beat.slow[0], "slower": beat.slow[1]} for beat in status.beats if beat.slow), None),
        "hang": status.hang.get("text"),
        "ledger": ledger_json(status.ledger) if status.ledger else None,
        "failures": list(status.failures),
        "replicas": [difference._asdict() for difference in status.differences],
        "outcome": dict(status.outcome) or None,
    }  # fmt: skip


def status_lines(status: Status) -> list[str]:
    """The same for people: who runs it and where each rank stands, or how it ended."""
    record = status.record
    lines = [f"{status.path}: {record.get('workload', 'a run')}, attempt {record.get('attempt', 1)}"]
    several = isinstance(nodes := record.get("nodes"), int) and nodes > 1
    for node, holder in zip(status.nodes, status.holders, strict=True):
        lines.append(f"  running     {f'node {node}: ' if several else ''}{holder.text}")
    if isinstance(since := status.waiting.get("since"), int | float):
        attempt = status.waiting.get("attempt")
        lines.append(f"  waiting     for nodes, since {max(0.0, time.time() - since):.0f} s, for attempt {attempt}")
    if status.hang:
        lines.append(f"  hang        {status.hang.get('text')}")
    if not status.alive:
        lines += _ending(status)
    if status.ledger and status.ledger.wall:
        lines.append(f"  time        {ledger_line(status.ledger)}")
    lines += [f"  failed      {_failure(row)}" for row in status.failures[-SHOWN:]]
    lines += [f"  replicas    differed at {difference}" for difference in status.differences[-SHOWN:]]
    if status.snapshot is not None or record.get("workload") in WORKLOADS:
        lines.append(f"  snapshot    {'none yet' if status.snapshot is None else f'step {status.snapshot}'}")
    if status.alive and status.beats:
        lines += _beat_lines(status.beats, status.ages)
    elif status.alive and status.workers:
        lines += _worker_lines(status.workers)
    return lines


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


def _failure(row: Mapping[str, Any]) -> str:
    """An attempt that failed: which, when, where and why, as far as it is known."""
    rank = "" if row.get("rank") is None else f", rank {row['rank']}"
    when = f", {utc(at)}" if isinstance(at := row.get("time"), int | float) else ""
    where = f"node {row.get('node_rank')} ({row.get('host')}){rank}"
    return f"attempt {row.get('attempt')}{when}: {where}: {row.get('evidence') or row.get('word')}"


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
    outcome = status.outcome
    word, first = str(outcome.get("word")), outcome.get("first")
    if word not in CODES or not isinstance(first, dict):
        return ["  ended       without a verdict: its launcher was killed, or the machine went away"]
    rank = "" if first.get("rank") is None else f", rank {first['rank']}"
    lines = [
        f"  ended       {heading(word, first.get('cause'))}: node {first.get('node_rank')} ({first.get('host')}){rank}: "
        f"{first.get('evidence')}"
    ]
    if isinstance(at := first.get("time"), int | float):
        lines.append(f"  when        {utc(at)}")
    stacks = first.get("stacks")
    lines += stack_lines([str(line) for line in stacks]) if isinstance(stacks, list) else []
    lines += [f"  what to do  {str(first['advice']).replace('`', '')}"] if first.get("advice") else []
    return [*lines, f"  exit code   {outcome.get('code')}"]
