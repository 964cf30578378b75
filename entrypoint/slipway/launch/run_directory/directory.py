"""A run directory as it is read: everything that the launcher and the commands ask of one, answered from its files.

What is in a node's folder is asked of NodeDirectory. No module in another folder of the launcher or the commands searches a run
directory or reads JSON there (tests/unit/repository/test_house_rules.py checks it). A file that is missing, torn, damaged or
forged counts as far as it makes sense, and a disk that is away for a while as one that is empty.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.launch.run_directory.records import (
    ClocksRecord,
    NodeEnd,
    OutcomeRecord,
    RunRecord,
    read_ledger,
    read_record,
)
from slipway.protocol import files
from slipway.protocol.decoding import decode_known
from slipway.protocol.durable import FileFacts
from slipway.protocol.errors import LaunchError, told_if_unreadable
from slipway.protocol.snapshots import ManifestError, list_snapshots, newest_step, read_manifest, snapshot_attempt

if TYPE_CHECKING:
    from slipway.launch.run_directory.node_directory import NodeDirectory, RankLog
    from slipway.launch.verdict.ledger import Ledger
    from slipway.protocol.replicas import ReplicaDifference

TAIL = 16_384  # bytes at the end of metrics.jsonl in which its newest lines are
MOST = 5  # lines about files that cannot be read


def read_clocks(folder: Path) -> ClocksRecord:
    """The ranks of a trace with their clocks, by the folder of the trace, wherever that is. Raises LaunchError (78)."""
    found = read_record(ClocksRecord, file := folder / files.CLOCKS_FILE)
    if not found.ranks:
        why = files.why_unreadable(file) or "names no rank"
        raise LaunchError(f"{file} {why}: {folder} holds no trace.")
    return found


class RunDirectory:
    """A run directory, whoever made it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def node(self, node_rank: int, process: int | None = None) -> NodeDirectory:
        """What belongs to one node: logs, outcomes, the stop flag."""
        return _node_directory(files.node_folder(self.path, node_rank), process)

    def nodes(self, within: str) -> list[NodeDirectory]:
        """The nodes that have this folder here."""
        return [_node_directory(file.parent) for file in self._in_nodes(within)]

    def launchers(self) -> list[NodeDirectory]:
        """The launchers that hold the run, or held it until they were killed, each by its node's folder."""
        locks = self._in_nodes("launcher*.json")
        return [_node_directory(lock.parent, files.number_in(lock.stem, "launcher-")) for lock in locks]

    def _in_nodes(self, pattern: str) -> list[Path]:
        """What has this name in the folders of nodes. Other folders may have names that begin like theirs."""
        found = sorted(self.path.glob(f"{files.NODE}*/{pattern}"))
        return [file for file in found if files.number_in(file.relative_to(self.path).parts[0], files.NODE) is not None]

    @property
    def exists(self) -> bool:
        """Whether it is a run: what a launcher leaves is in it. Raises OSError where this user may not look."""
        return (self.path / files.RUN_FILE).is_file() or bool(self.launchers()) or bool(self.nodes(files.LOGS))

    @property
    def record(self) -> RunRecord:
        """What was started."""
        return read_record(RunRecord, self.path / files.RUN_FILE)

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
            times = [file.stat().st_mtime for file in list_snapshots(self.path / files.SNAPSHOTS)[0].iterdir()]
            return max(times) - min(times)
        return 0.0

    @property
    def snapshots_attempt(self) -> int:
        """The newest attempt that wrote any of the snapshots; 0 without one."""
        with suppress(OSError):
            return max(map(snapshot_attempt, list_snapshots(self.path / files.SNAPSHOTS)), default=0)
        return 0

    @property
    def highest_step(self) -> int:
        """The highest step recorded: in the snapshots, the verdict, and the heartbeats of ranks that were killed with their
        launcher.
        """
        steps = [self.newest_step or 0, *(tried.reached for tried in self._verdict.attempts)]
        steps += [beat.step for node in self.nodes(files.HEARTBEATS) for beat in node.beats().values()]
        return min(max(steps), files.STEPS)

    @property
    def _verdict(self) -> OutcomeRecord:
        return read_record(OutcomeRecord, self.path / files.OUTCOME_FILE)

    @property
    def outcome(self) -> OutcomeRecord:
        """The verdict on the last attempt, with all attempts; an empty one while it runs, or if its launcher was killed."""
        return decode_known(OutcomeRecord, self.outcome_json) or OutcomeRecord()

    @property
    def outcome_json(self) -> dict[str, Any]:
        """The same as it was written."""
        outcome, record = files.read_json(self.path / files.OUTCOME_FILE), files.read_json(self.path / files.RUN_FILE)
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
        tries = files.read_json(self.path / files.OUTCOME_FILE).get("attempts")
        whole = [tried for tried in tries if isinstance(tried, dict)] if isinstance(tries, list) else []
        return [tried for tried in whole if 0 < finite(tried.get("number")) < first]

    def ledger(self, node_rank: int = 0) -> Ledger | None:
        """The newest ledger, of a node or with the verdict; None without one."""
        verdict = read_ledger(files.read_json(self.path / files.OUTCOME_FILE).get("ledger"))
        found = [ledger for ledger in (self.node(node_rank).ledger(), verdict) if ledger]
        return max(found, key=lambda ledger: ledger.until, default=None)

    def differences(self) -> list[ReplicaDifference]:
        """When the replicas of the model differed, oldest first."""
        from slipway.protocol.replicas import read_differences  # here for the same reason as NodeDirectory below

        return read_differences(self.path)

    def content(self, name: str) -> dict[str, Any]:
        """The object in one of the run's JSON files, as a workload wrote it; an empty one where there is none."""
        return files.read_json(self.path / name)

    def snapshot_files(self, name: str) -> Mapping[str, FileFacts]:
        """The files of a snapshot with their checksums, by its manifest; none without one that can be read."""
        try:
            return read_manifest(self.path / files.SNAPSHOTS / name).files
        except (OSError, ManifestError):
            return {}

    def metrics(self) -> Iterator[dict[str, Any] | None]:
        """The lines of metrics.jsonl, None for each that is torn or makes no sense. Raises OSError."""
        for line in files.read_metrics_lines(self.path / files.METRICS_FILE):
            yield _parse_line(line.encode(errors="replace"))

    def metrics_by_step(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl that have a step. Raises OSError."""
        for _, values in files.read_metrics(self.path / files.METRICS_FILE):
            yield values

    def newest_numbers(self) -> dict[str, float]:
        """The newest value of each number in the last lines of metrics.jsonl, by its name; none where there are none."""
        found: dict[str, float] = {}
        with suppress(OSError), files.open_run_file(self.path / files.METRICS_FILE) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            for line in file.read().splitlines():
                numbers = (_parse_line(line) or {}).items()
                found |= {name: float(value) for name, value in numbers if type(value) in (int, float)}
        return found

    def logs(self) -> list[RankLog]:
        """The logs of all ranks, and of what started them."""
        return [log for node in self.nodes(files.LOGS) for log in node.logs()]

    @property
    def containers(self) -> set[object]:
        """The ids of the containers whose commands its launchers were."""
        return {files.read_json(file).get("container") for file in self._in_nodes(files.PLAN_FILE)}

    def ranks_of(self, host: str, container: str) -> list[int]:
        """The node ranks of the launchers that were the command of a container, or without one (empty) those of a host."""
        plans = {file.parent.name: files.read_json(file) for file in self._in_nodes(files.PLAN_FILE)}
        mine = [
            name for name, plan in plans.items() if (plan.get("container") or plan.get("host")) == (container or host)
        ]
        return [rank for name in mine if (rank := files.number_in(name, files.NODE)) is not None]

    def node_counts(self) -> list[int]:
        """How many nodes the job has, by run.json and by each launcher's plan."""
        plans = [files.read_json(file).get("topology") for file in self._in_nodes(files.PLAN_FILE)]
        return [self.record.nodes, *(decoded.nodes for plan in plans if (decoded := decode_known(RunRecord, plan)))]

    def files(self, pattern: str) -> list[Path]:
        """The files of this name pattern, without links and what a process had not finished writing when it died."""
        root = self.path.resolve()
        found = [path for path in sorted(root.glob(pattern)) if not path.name.startswith(".")]
        return [path for path in found if path.is_file() and path.resolve() == path]

    def odd_files(self) -> list[str]:
        """The files that are skipped because they cannot be read, each with the reason, so that they are not missed silently."""
        nodes = map(self._in_nodes, ("*.json", f"{files.HEARTBEATS}/*.json"))
        paths = chain((self.path / files.RUN_FILE, self.path / files.OUTCOME_FILE), *nodes)
        return _skipped([*_unreadable(paths), *_not_regular(self._in_nodes(f"{files.LOGS}/*.log"))])


def _node_directory(path: Path, process: int | None = None) -> NodeDirectory:
    # Imported here, because choosing a run directory reads no node's folder, and making the records of one takes milliseconds.
    from slipway.launch.run_directory.node_directory import NodeDirectory

    return NodeDirectory(path, process)


def list_run_directories(runs: Path) -> list[RunDirectory]:
    """The runs in a folder of runs, by name."""
    return [RunDirectory(file.parent) for file in sorted(runs.glob(f"*/{files.RUN_FILE}"))]


def newest_run(
    runs: Path, workload: str = "", wanted: Callable[[RunDirectory], bool] = lambda run: True
) -> Path | None:
    """Return the run (of a workload) that was started last of those `wanted`, by its own record and not by file times."""
    records = {run: run.record for run in list_run_directories(runs)}
    started = {
        run.path: record.started or 0.0
        for run, record in records.items()
        if workload in ("", record.workload) and wanted(run)
    }
    return max(started, key=started.__getitem__, default=None)


@told_if_unreadable("Run this command as its owner, or choose another folder with --runs DIR.")
def odd_records(runs: Path) -> list[str]:
    """The runs in a folder of runs that are skipped because they cannot be read, each with the reason."""
    return _skipped(_unreadable(run.path / files.RUN_FILE for run in list_run_directories(runs)))


def _parse_line(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        record = files.parse_json(line)
        return record if isinstance(record, dict) else None
    return None


def finite(value: object) -> float:
    """A number in a file, or 0: files get damaged."""
    return value if isinstance(value, int | float) else 0


def _unreadable(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for file in paths:
        if why := files.why_unreadable(file):
            yield file, why


def _not_regular(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for file in paths:
        try:
            regular = stat.S_ISREG(os.lstat(file).st_mode)
        except OSError:  # it is gone, or may not be read
            continue
        if not regular:
            yield file, "is not a regular file"


def _skipped(odd: Iterable[tuple[Path, str]]) -> list[str]:
    lines = sorted(f"{file} is skipped: {'it ' if why.startswith('is ') else ''}{why}" for file, why in odd)
    return lines[:MOST] + [f"and {len(lines) - MOST} more are skipped"] * (len(lines) > MOST)
