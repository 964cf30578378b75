"""A node's folder in a run directory as it is read: the files that its launcher and its ranks keep there, each as a tuple with
names into which it is decoded, and NodeDirectory, which is asked for them.

A file that is missing, torn, damaged or forged counts as far as it makes sense: a field that makes none keeps its default.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from slipway.launch.run_directory.records import read_ledger, read_record
from slipway.process.folder_lock import Holder, read_holder
from slipway.protocol import files
from slipway.protocol.decoding import Between, decode_known, decode_rows
from slipway.protocol.phases import Phase

if TYPE_CHECKING:
    from slipway.launch.verdict.ledger import Ledger

Seconds = Annotated[float, Between(0, files.SECONDS)]


class WaitingRecord(NamedTuple):
    """`waiting.json`: the launcher waits for others, for this attempt and since then (Unix seconds)."""

    attempt: int | None = None
    since: float | None = None


class SpareNode(NamedTuple):
    """A spare node of a job: its rank and host."""

    node: int = 0
    host: str = ""


class SparesRecord(NamedTuple):
    """`spares.json` of node 0: the spare nodes that wait while an attempt runs."""

    spares: tuple[SpareNode, ...] = ()


class HangRecord(NamedTuple):
    """`hang.json`: a hang that lasts, in words."""

    text: str = ""


class StopRecord(NamedTuple):
    """A stop file: the outcome that it asks for, empty for the usual one; in a node's folder also the `name` of the request."""

    outcome: str = ""
    name: str = ""


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


class RanksRecord(NamedTuple):
    """`ranks.json`, and `stacks.json`, which is written again for each request: what there is of each rank, and when that was."""

    ranks: Mapping[int, Any] = MappingProxyType({})
    time: float | None = None


class XidCount(NamedTuple):
    """In `ledger.json`: how often a GPU, by NVML's number, reported an Xid error while the job ran."""

    gpu: int | None
    number: int
    total: int


class TraceRequest(NamedTuple):
    """`trace-wanted`: the id of the request."""

    id: str = ""


class TraceAnswer(NamedTuple):
    """`trace.json`: the answer to the request with this id. `state`: how far it is. The first of its `steps` is `step` + 1.

    `folder`: where the traces are. `why`: the reason if there are none, or fewer steps than requested.
    """

    id: str = ""
    attempt: int = 0
    state: str = ""
    steps: int = 0
    step: int | None = None
    folder: str = ""
    why: str = ""


class Beat(NamedTuple):
    """A heartbeat: where a rank reports that it is; `monotonic` is its own clock, `pid` its process.

    `beats` counts its reports so far except those of waiting for data, and is the same on all ranks at the same place. `first` is
    the step that training began with, `spent` the seconds in each phase so far, up to this one, `again` those of them in which it
    made steps that it had made before. `own`: seconds that it works on a step by itself; `slow`: the rank that makes all others
    wait, and by which share it is slower; `waited`: for how many seconds they did so far, by rank.
    """

    rank: int
    phase: Phase = Phase.SETUP
    step: int = 0
    steps: int | None = None
    monotonic: float = 0.0
    pid: int | None = None
    beats: int = 0
    first: int = 0
    spent: Mapping[Phase, Seconds] = MappingProxyType({})
    again: Seconds = 0.0
    own: Seconds | None = None
    slow: tuple[Annotated[int, Between(0, files.RANKS - 1)], Seconds] | None = None
    waited: Mapping[int, Seconds] = MappingProxyType({})

    @property
    def place(self) -> str:
        """How people read it: `step 3 of 20, train`."""
        of = f" of {self.steps}" if self.steps else ""
        return f"step {self.step}{of}, {self.phase}"


def read_beat(rank: int, content: Mapping[str, object]) -> Beat | None:
    """The beat of a rank; None where its file does not say where the rank is."""
    return decode_known(Beat, {**content, "rank": rank}, required=("phase", "step", "monotonic"))


class RankLog(NamedTuple):
    """A log in a node's folder: that of a rank, `rank-N`, or of what started the ranks."""

    path: Path
    node_rank: int

    @property
    def rank(self) -> int | None:
        """The rank, None for the log of what started the ranks."""
        return files.number_in(self.path.stem, files.RANK)


class NodeDirectory(NamedTuple):
    """What belongs to one node in a run directory. Where there is a launcher for each `process`, to the one of that process."""

    path: Path
    process: int | None = None

    @property
    def rank(self) -> int:
        """The node's rank, by the folder's name."""
        return files.number_in(self.path.name, files.NODE) or 0

    def file(self, name: str) -> Path:
        """A file of the launcher, by its name where there is one launcher for the node."""
        return files.own_file(self.path, name, self.process)

    @property
    def lock(self) -> Path:
        """The file that says which process holds this folder."""
        return self.file(files.LAUNCHER_FILE)

    @property
    def holder(self) -> Holder | None:
        """The process that holds this folder, or held it until it was killed; None without one."""
        return read_holder(self.lock)

    @property
    def waiting(self) -> WaitingRecord | None:
        """Which attempt the launcher waits for; None where it does not wait."""
        content = files.read_json(self.path / files.WAITING_FILE)
        return decode_known(WaitingRecord, content) if content else None

    @property
    def spares(self) -> tuple[SpareNode, ...] | None:
        """The spare nodes that wait while an attempt runs, as node 0 wrote them down; None of a job without any."""
        content = files.read_json(self.path / files.SPARES_FILE)
        record = decode_known(SparesRecord, content) if content else None
        return record.spares if record else None

    @property
    def hang(self) -> str:
        """A hang of a script that lasts, in words; empty without one."""
        return read_record(HangRecord, self.file(files.HANG_FILE)).text

    @property
    def stopping(self) -> str:
        """Why its workers were asked to stop, in words; empty where they were not."""
        return read_record(StopRecord, self.path / files.STOP_FILE).name

    def beats(self, ranks: Iterable[int] | None = None) -> dict[int, Beat]:
        """The newest heartbeat of each rank that has one, of all ranks of the node by default."""
        paths = {rank: self.heartbeat_file(rank) for rank in (self._ranks() if ranks is None else ranks)}
        found = {rank: read_beat(rank, files.read_json(file)) for rank, file in paths.items()}
        return {rank: beat for rank, beat in found.items() if beat}

    def heartbeat_file(self, rank: int) -> Path:
        """The file that a rank writes its heartbeat to."""
        return files.rank_file(self.path, files.HEARTBEATS, rank)

    def _ranks(self) -> list[int]:
        names = [file.stem for file in (self.path / files.HEARTBEATS).glob("*.json")]
        return sorted(rank for name in names if (rank := files.number_in(name, files.RANK)) is not None)

    def outcomes(self, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
        """What those of the ranks that have ended wrote about it."""
        return {
            rank: record
            for rank in ranks
            if (record := files.read_json(files.rank_file(self.path, files.OUTCOMES, rank)))
        }

    def log_text(self, rank: int) -> str:
        """All that a rank printed. Raises OSError."""
        return files.read_run_text(self.path / files.LOGS / files.rank_log(rank))

    def logs(self) -> list[RankLog]:
        """The logs of its ranks, and of what started them."""
        return [RankLog(path, self.rank) for path in (self.path / files.LOGS).glob("*.log")]

    def tracebacks(self, ranks: Iterable[int]) -> dict[int, list[str]]:
        """The tracebacks that `torch.distributed.elastic`'s @record wrote, by rank, in lines."""
        found = {}
        for rank in ranks:
            match files.read_json(self.path / files.OUTCOMES / files.error_file(rank)):
                case {"message": {"extraInfo": {"py_callstack": str() as stack}}}:
                    found[rank] = stack.splitlines()
        return found

    def ledger(self) -> "Ledger | None":
        """The ledger that the launcher keeps; None without one."""
        return read_ledger(files.read_json(self.path / files.LEDGER_FILE))

    def failures(self) -> list[dict[str, Any]]:
        """The attempts that failed, as the launcher keeps them with its ledger, oldest first."""
        rows = files.read_json(self.path / files.LEDGER_FILE).get("failures")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def xids(self) -> list[XidCount]:
        """The Xid errors of its GPUs, as the launcher keeps them with its ledger."""
        return decode_rows(XidCount, files.read_json(self.path / files.LEDGER_FILE).get("xids"))

    def workers(self) -> list[RankStatus]:
        """How far the ranks of a script are."""
        rows = read_record(RanksRecord, self.file(files.RANKS_FILE)).ranks
        return decode_rows(RankStatus, [{**row, "rank": rank} for rank, row in rows.items() if isinstance(row, dict)])

    def stacks(self) -> RanksRecord:
        """The answer to the newest request for stacks."""
        return read_record(RanksRecord, self.file(files.STACKS_FILE))

    def trace_request(self) -> str:
        """The id of the request to trace that waits; empty without one."""
        return read_record(TraceRequest, self.path / files.TRACE_WANTED).id

    def trace_answer(self) -> TraceAnswer:
        """How far the newest request to trace is."""
        return read_record(TraceAnswer, self.path / files.TRACE_FILE)


def read_stop(file: Path) -> str:
    """The outcome for which a stop file asks; empty for the usual one."""
    return read_record(StopRecord, file).outcome
