"""A run directory as it is read: everything that the launcher and the commands ask of one, answered from its files.

No other module of the launcher or the commands searches a run directory or reads JSON there (`make lint` checks it). A file that
is missing, torn, damaged or forged counts as far as it makes sense, and a disk that is away for a while as one that is empty.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from slipway.launch.run_directory.records import (
    Beat,
    ClocksRecord,
    HangRecord,
    Holder,
    NodeEnd,
    OutcomeRecord,
    RanksRecord,
    RankStatus,
    RunRecord,
    SpareNode,
    SparesRecord,
    StopRecord,
    StoreRecord,
    TraceAnswer,
    TraceRequest,
    WaitingRecord,
    read_beat,
)
from slipway.protocol import replicas
from slipway.protocol.decoding import decode_known, decode_rows
from slipway.protocol.errors import LaunchError, told_if_unreadable
from slipway.protocol.files import (
    CLOCKS_FILE,
    HANG_FILE,
    HEARTBEATS,
    LAUNCHER_FILE,
    LEDGER_FILE,
    LOGS,
    MANIFEST,
    METRICS_FILE,
    NODE,
    OUTCOME_FILE,
    OUTCOMES,
    PLAN_FILE,
    RANK,
    RANKS_FILE,
    RUN_FILE,
    SNAPSHOTS,
    SPARES_FILE,
    STACKS_FILE,
    STEPS,
    STOP_FILE,
    STORE_FILE,
    TRACE_FILE,
    TRACE_WANTED,
    WAITING_FILE,
    error_file,
    list_snapshots,
    newest_step,
    node_folder,
    number_in,
    open_run_file,
    own_file,
    parse_json,
    rank_file,
    rank_log,
    read_json,
    read_metrics,
    read_run_text,
    snapshot_attempt,
    why_unreadable,
)

if TYPE_CHECKING:
    from slipway.launch.verdict.ledger import Ledger

T = TypeVar("T")
TAIL = 16_384  # bytes at the end of metrics.jsonl in which its newest lines are
MOST = 5  # lines about files that cannot be read


def read_record(kind: type[T], file: Path) -> T:
    """What a JSON file says, as a class whose fields all have defaults."""
    found = decode_known(kind, read_json(file))
    return kind() if found is None else found


class RankLog(NamedTuple):
    """A log in a node's folder: that of a rank, `rank-N`, or of what started the ranks."""

    path: Path
    node_rank: int

    @property
    def rank(self) -> int | None:
        """The rank, None for the log of what started the ranks."""
        return number_in(self.path.stem, RANK)


class NodeDirectory(NamedTuple):
    """What belongs to one node in a run directory. Where there is a launcher for each `process`, to the one of that process."""

    path: Path
    process: int | None = None

    @property
    def rank(self) -> int:
        """The node's rank, by the folder's name."""
        return number_in(self.path.name, NODE) or 0

    def file(self, name: str) -> Path:
        """A file of the launcher, by its name where there is one launcher for the node."""
        return own_file(self.path, name, self.process)

    @property
    def lock(self) -> Path:
        """The file that says which launcher holds this folder."""
        return self.file(LAUNCHER_FILE)

    @property
    def holder(self) -> Holder | None:
        """The launcher that holds this folder, or held it until it was killed; None without one."""
        return read_holder(self.lock)

    @property
    def waiting(self) -> WaitingRecord | None:
        """Which attempt the launcher waits for; None where it does not wait."""
        content = read_json(self.path / WAITING_FILE)
        return decode_known(WaitingRecord, content) if content else None

    @property
    def spares(self) -> tuple[SpareNode, ...] | None:
        """The spare nodes that wait while an attempt runs, as node 0 wrote them down; None of a job without any."""
        content = read_json(self.path / SPARES_FILE)
        record = decode_known(SparesRecord, content) if content else None
        return record.spares if record else None

    @property
    def hang(self) -> str:
        """A hang of a script that lasts, in words; empty without one."""
        return read_record(HangRecord, self.file(HANG_FILE)).text

    @property
    def stopping(self) -> str:
        """Why its workers were asked to stop, in words; empty where they were not."""
        return read_record(StopRecord, self.path / STOP_FILE).name

    @property
    def store(self) -> StoreRecord:
        """How far the copy in the store is."""
        return read_record(StoreRecord, self.path / STORE_FILE)

    def beats(self, ranks: Iterable[int] | None = None) -> dict[int, Beat]:
        """The newest heartbeat of each rank that has one, of all ranks of the node by default."""
        files = {rank: self.heartbeat_file(rank) for rank in (self._ranks() if ranks is None else ranks)}
        found = {rank: read_beat(rank, read_json(file)) for rank, file in files.items()}
        return {rank: beat for rank, beat in found.items() if beat}

    def heartbeat_file(self, rank: int) -> Path:
        """The file that a rank writes its heartbeat to."""
        return rank_file(self.path, HEARTBEATS, rank)

    def _ranks(self) -> list[int]:
        names = [file.stem for file in (self.path / HEARTBEATS).glob("*.json")]
        return sorted(rank for name in names if (rank := number_in(name, RANK)) is not None)

    def outcomes(self, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
        """What those of the ranks that have ended wrote about it."""
        return {rank: record for rank in ranks if (record := read_json(rank_file(self.path, OUTCOMES, rank)))}

    def log_text(self, rank: int) -> str:
        """All that a rank printed. Raises OSError."""
        return read_run_text(self.path / LOGS / rank_log(rank))

    def tracebacks(self, ranks: Iterable[int]) -> dict[int, list[str]]:
        """The tracebacks that `torch.distributed.elastic`'s @record wrote, by rank, in lines."""
        found = {}
        for rank in ranks:
            match read_json(self.path / OUTCOMES / error_file(rank)):
                case {"message": {"extraInfo": {"py_callstack": str() as stack}}}:
                    found[rank] = stack.splitlines()
        return found

    def ledger(self) -> Ledger | None:
        """The ledger that the launcher keeps; None without one."""
        return read_ledger(read_json(self.path / LEDGER_FILE))

    def failures(self) -> list[dict[str, Any]]:
        """The attempts that failed, as the launcher keeps them with its ledger, oldest first."""
        rows = read_json(self.path / LEDGER_FILE).get("failures")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def workers(self) -> list[RankStatus]:
        """How far the ranks of a script are."""
        rows = read_record(RanksRecord, self.file(RANKS_FILE)).ranks
        return decode_rows(RankStatus, [{**row, "rank": rank} for rank, row in rows.items() if isinstance(row, dict)])

    def stacks(self) -> RanksRecord:
        """The answer to the newest request for stacks."""
        return read_record(RanksRecord, self.file(STACKS_FILE))

    def trace_request(self) -> str:
        """The id of the request to trace that waits; empty without one."""
        return read_record(TraceRequest, self.path / TRACE_WANTED).id

    def trace_answer(self) -> TraceAnswer:
        """How far the newest request to trace is."""
        return read_record(TraceAnswer, self.path / TRACE_FILE)


def read_ledger(record: object) -> Ledger | None:
    """The ledger that JSON describes; None where it makes no sense."""
    from slipway.launch.verdict.ledger import ledger_of  # most commands need none, and it takes milliseconds

    return ledger_of(record)


def read_holder(lock: Path) -> Holder | None:
    """The launcher that a lock file names; None where there is no such file or it makes no sense."""
    return decode_known(Holder, read_json(lock))


def read_stop(file: Path) -> str:
    """The outcome for which a stop file asks; empty for the usual one."""
    return read_record(StopRecord, file).outcome


def read_clocks(folder: Path) -> ClocksRecord:
    """The ranks of a trace with their clocks, by the folder of the trace, wherever that is. Raises LaunchError (78)."""
    found = read_record(ClocksRecord, file := folder / CLOCKS_FILE)
    if not found.ranks:
        why = why_unreadable(file) or "names no rank"
        raise LaunchError(f"{file} {why}: {folder} holds no trace.")
    return found


@dataclass(frozen=True)
class RunDirectory:
    """A run directory, whoever made it."""

    path: Path

    def node(self, node_rank: int, process: int | None = None) -> NodeDirectory:
        """What belongs to one node: logs, outcomes, the stop flag."""
        return NodeDirectory(node_folder(self.path, node_rank), process)

    def nodes(self, within: str) -> list[NodeDirectory]:
        """The nodes that have this folder here."""
        return [NodeDirectory(path.parent) for path in sorted(self.path.glob(f"{NODE}*/{within}"))]

    def launchers(self) -> list[NodeDirectory]:
        """The launchers that hold the run, or held it until they were killed, each by its node's folder."""
        locks = sorted(self.path.glob(f"{NODE}*/launcher*.json"))
        return [NodeDirectory(lock.parent, number_in(lock.stem, "launcher-")) for lock in locks]

    @property
    def exists(self) -> bool:
        """Whether it is a run: what a launcher leaves is in it. Raises OSError where this user may not look."""
        return (self.path / RUN_FILE).is_file() or bool(self.launchers()) or bool(self.nodes(LOGS))

    @property
    def record(self) -> RunRecord:
        """What was started."""
        return read_record(RunRecord, self.path / RUN_FILE)

    def is_newest(self, attempt: int) -> bool:
        """Whether no launcher has begun a later attempt: one that took the run over, or continues without this node."""
        return self.record.attempt <= attempt

    @property
    def newest_step(self) -> int | None:
        """The step of the newest snapshot; None without one."""
        return newest_step(self.path)

    @property
    def save_seconds(self) -> float:
        """How long the newest snapshot took to be written, by the times of its files; 0 where nothing says so."""
        with suppress(OSError, IndexError, ValueError):
            times = [file.stat().st_mtime for file in list_snapshots(self.path / SNAPSHOTS)[0].iterdir()]
            return max(times) - min(times)
        return 0.0

    @property
    def snapshots_attempt(self) -> int:
        """The newest attempt that wrote any of the snapshots; 0 without one."""
        with suppress(OSError):
            return max(map(snapshot_attempt, list_snapshots(self.path / SNAPSHOTS)), default=0)
        return 0

    @property
    def highest_step(self) -> int:
        """The highest step recorded: in the snapshots, the verdict, and the heartbeats of ranks that were killed with their
        launcher.
        """
        steps = [self.newest_step or 0, *(tried.reached for tried in self._verdict.attempts)]
        steps += [beat.step for node in self.nodes(HEARTBEATS) for beat in node.beats().values()]
        return min(max(steps), STEPS)

    @property
    def _verdict(self) -> OutcomeRecord:
        return read_record(OutcomeRecord, self.path / OUTCOME_FILE)

    @property
    def outcome(self) -> OutcomeRecord:
        """The verdict on the last attempt, with all attempts; an empty one while it runs, or if its launcher was killed."""
        return decode_known(OutcomeRecord, self.outcome_json) or OutcomeRecord()

    @property
    def outcome_json(self) -> dict[str, Any]:
        """The same as it was written."""
        outcome, record = read_json(self.path / OUTCOME_FILE), read_json(self.path / RUN_FILE)
        return outcome if not record or outcome.get("attempt") == record.get("attempt") else {}

    @property
    def first_cause(self) -> NodeEnd | None:
        """The first cause that the verdict names, be it on the last attempt or one before it; None where there is none."""
        return self._verdict.first

    @property
    def ends(self) -> dict[int, NodeEnd]:
        """How each attempt that has ended did, by its number."""
        return {tried.number: tried.outcome for tried in self._verdict.attempts}

    def attempts_before(self, first: int) -> list[dict[str, Any]]:
        """The attempts before the `first` of this start, as they are in outcome.json."""
        tries = read_json(self.path / OUTCOME_FILE).get("attempts")
        whole = [tried for tried in tries if isinstance(tried, dict)] if isinstance(tries, list) else []
        return [tried for tried in whole if 0 < finite(tried.get("number")) < first]

    def ledger(self, node_rank: int = 0) -> Ledger | None:
        """The newest ledger, of a node or with the verdict; None without one."""
        verdict = read_ledger(read_json(self.path / OUTCOME_FILE).get("ledger"))
        found = [ledger for ledger in (self.node(node_rank).ledger(), verdict) if ledger]
        return max(found, key=lambda ledger: ledger.until, default=None)

    @property
    def store(self) -> StoreRecord | None:
        """How far the copy in the store is, by the node whose copy is newest; None where there is no store."""
        found = [record for node in self.nodes(STORE_FILE) if (record := node.store).store]
        return max(found, key=lambda record: (record.attempt, record.taken or 0.0), default=None)

    def differences(self) -> list[replicas.ReplicaDifference]:
        """When the replicas of the model differed, oldest first."""
        return replicas.read_differences(self.path)

    def content(self, name: str) -> dict[str, Any]:
        """The object in one of the run's JSON files, as a workload wrote it; an empty one where there is none."""
        return read_json(self.path / name)

    def snapshot_files(self, name: str) -> Mapping[str, Any]:
        """The files of a snapshot with their checksums, by its manifest."""
        files = read_json(self.path / SNAPSHOTS / name / MANIFEST).get("files")
        return files if isinstance(files, dict) else {}

    def metrics(self) -> Iterator[dict[str, Any] | None]:
        """The lines of metrics.jsonl, None for each that is torn or makes no sense. Raises OSError."""
        for line in read_run_text(self.path / METRICS_FILE).splitlines():
            yield _parse_line(line.encode(errors="replace"))

    def metrics_by_step(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl that have a step. Raises OSError."""
        for _, values in read_metrics(self.path / METRICS_FILE):
            yield values

    def newest_numbers(self) -> dict[str, float]:
        """The newest value of each number in the last lines of metrics.jsonl, by its name; none where there are none."""
        found: dict[str, float] = {}
        with suppress(OSError), open_run_file(self.path / METRICS_FILE) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            for line in file.read().splitlines():
                numbers = (_parse_line(line) or {}).items()
                found |= {name: float(value) for name, value in numbers if type(value) in (int, float)}
        return found

    def logs(self) -> list[RankLog]:
        """The logs of all ranks, and of what started them."""
        found = [(path, number_in(path.parent.parent.name, NODE)) for path in self.path.glob(f"{NODE}*/{LOGS}/*.log")]
        return [RankLog(path, node_rank) for path, node_rank in found if node_rank is not None]

    def node_counts(self) -> list[int]:
        """How many nodes the job has, by run.json and by each launcher's plan."""
        plans = [read_json(file).get("topology") for file in self.path.glob(f"{NODE}*/{PLAN_FILE}")]
        return [self.record.nodes, *(decoded.nodes for plan in plans if (decoded := decode_known(RunRecord, plan)))]

    def files(self, pattern: str) -> list[Path]:
        """The files of this name pattern, without links and what a process had not finished writing when it died."""
        root = self.path.resolve()
        found = [path for path in sorted(root.glob(pattern)) if not path.name.startswith(".")]
        return [path for path in found if path.is_file() and path.resolve() == path]

    def odd_files(self) -> list[str]:
        """The files that are skipped because they cannot be read, each with the reason, so that they are not missed silently."""
        nodes = (self.path.glob(f"{NODE}*/{within}") for within in ("*.json", f"{HEARTBEATS}/*.json"))
        files = chain((self.path / RUN_FILE, self.path / OUTCOME_FILE), *nodes)
        return _skipped([*_unreadable(files), *_not_regular(self.path.glob(f"{NODE}*/{LOGS}/*.log"))])


def list_run_directories(runs: Path) -> list[RunDirectory]:
    """The runs in a folder of runs, by name."""
    return [RunDirectory(file.parent) for file in sorted(runs.glob(f"*/{RUN_FILE}"))]


def newest_run(runs: Path, workload: str = "") -> Path | None:
    """Return the run (of a workload) that was started last, by its own record and not by file times."""
    records = {run.path: run.record for run in list_run_directories(runs)}
    started = {path: record.started or 0.0 for path, record in records.items() if workload in ("", record.workload)}
    return max(started, key=started.__getitem__, default=None)


@told_if_unreadable("Run this command as its owner, or choose another folder with --runs DIR.")
def odd_records(runs: Path) -> list[str]:
    """The runs in a folder of runs that are skipped because they cannot be read, each with the reason."""
    return _skipped(_unreadable(run.path / RUN_FILE for run in list_run_directories(runs)))


def _parse_line(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        record = parse_json(line)
        return record if isinstance(record, dict) else None
    return None


def finite(value: object) -> float:
    """A number in a file, or 0: files get damaged."""
    return value if isinstance(value, int | float) else 0


def _unreadable(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for file in files:
        if why := why_unreadable(file):
            yield file, why


def _not_regular(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for file in files:
        try:
            regular = stat.S_ISREG(os.lstat(file).st_mode)
        except OSError:  # it is gone, or may not be read
            continue
        if not regular:
            yield file, "is not a regular file"


def _skipped(odd: Iterable[tuple[Path, str]]) -> list[str]:
    lines = sorted(f"{file} is skipped: {'it ' if why.startswith('is ') else ''}{why}" for file, why in odd)
    return lines[:MOST] + [f"and {len(lines) - MOST} more are skipped"] * (len(lines) > MOST)
