"""What the files of a run directory say, each as a tuple with names into which it is decoded (tuples, because
a dataclass takes a millisecond to make, which each start would spend). Files may be torn, damaged or forged: a
field that makes no sense keeps its default.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from slipway.protocol.decoding import Between, decode_known
from slipway.protocol.files import ATTEMPTS, NODES, RANKS, SECONDS, STEPS
from slipway.protocol.phases import Phase
from slipway.protocol.printable import utc

Seconds = Annotated[float, Between(0, SECONDS)]
Number = Annotated[int, Between(1, ATTEMPTS)]  # of an attempt


class RunRecord(NamedTuple):
    """`run.json`: what was started, as which `start` of which scheduler's `job`, and the newest `attempt` (0: unknown)."""

    workload: str = ""
    arguments: tuple[Any, ...] = ()  # as they were typed
    version: str = ""
    job: str | None = None
    start: str | None = None
    started: float | None = None  # Unix seconds
    attempt: Number = 0
    nodes: Annotated[int, Between(0, NODES)] = 0
    processes_per_node: int = 0


class NodeEnd(NamedTuple):
    """How an attempt ended on the node that it failed on first: of `outcome.json` its `first`, and the outcome of an attempt; a
    failure in `ledger.json`. `cause` is a CauseKind.
    """

    attempt: Number = 0  # in ledger.json
    word: str = ""
    node_rank: int | None = None
    host: str | None = None
    rank: int | None = None
    time: float | None = None  # Unix seconds
    cause: str = ""
    evidence: str = ""
    advice: str = ""
    stacks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it ended, as far as that is known: `node 1 (gpu08), rank 9`."""
        node = "–" if self.node_rank is None else self.node_rank
        return f"node {node} ({self.host or '–'}){'' if self.rank is None else f', rank {self.rank}'}"


class TriedRecord(NamedTuple):
    """An attempt in `outcome.json`. `after` is the step of the newest snapshot it left, `reached` its highest step."""

    number: int = 0
    outcome: NodeEnd = NodeEnd()  # frozen
    after: int | None = None
    reached: Annotated[int, Between(0, STEPS)] = 0


class OutcomeRecord(NamedTuple):
    """`outcome.json`: the verdict on an `attempt`, and all attempts. `word` is empty where there is none."""

    word: str = ""
    code: int | None = None
    attempt: int = 0
    first: NodeEnd | None = None
    attempts: tuple[TriedRecord, ...] = ()
    no_restart: str = ""


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


class StoreRecord(NamedTuple):
    """`store.json`: the run's address in the `store`, the newest `step` that is complete there and when it was `taken`; the step
    that is being copied, and how many bytes of it are `done`; why the last try failed, and who continues the run. `bytes` and
    `seconds` of processor time in all.
    """

    store: str = ""
    attempt: int = 0
    step: Annotated[int, Between(0, STEPS)] | None = None
    taken: Seconds | None = None
    copying: Annotated[int, Between(0, STEPS)] | None = None
    done: int = 0
    total: int = 0
    error: str = ""
    superseded: str = ""
    bytes: int = 0
    seconds: Seconds = 0.0
    fetched: Seconds | None = None  # in a copy of the run that a command fetched, when that was

    def age(self, now: float) -> float | None:
        """How old the newest copy is, in seconds; None where that is unknown."""
        return None if self.taken is None else round(max(0.0, now - self.taken), 1)

    def describe(self, now: float) -> str:
        """The same in words."""
        if self.step is None:
            return f"{self.store} has no snapshot yet"
        age = "" if self.taken is None else f", {self.age(now):.0f} s old"
        return f"the newest snapshot in {self.store} is of step {self.step}{age}"


class TraceRequest(NamedTuple):
    """`trace-wanted`: the id of the request."""

    id: str = ""


class TraceAnswer(NamedTuple):
    """`trace.json`: how far the request of this id is, `steps` from the one after `step` on; the `folder` with the traces, or
    `why` there are none.
    """

    id: str = ""
    attempt: int = 0
    state: str = ""
    steps: int = 0
    step: int | None = None
    folder: str = ""
    why: str = ""


class TracedRank(NamedTuple):
    """A rank's part of a trace. Its clock was `offset` nanoseconds ahead of rank 0's, give or take `spread`."""

    rank: int
    node: int
    host: str
    pid: int
    offset: int
    spread: int
    bytes: int
    error: str = ""


class ClocksRecord(NamedTuple):
    """`clocks.json`: the ranks of a trace of so many `steps` after the `first`, of those `wanted`, and `why` there are fewer."""

    ranks: tuple[TracedRank, ...] = ()
    first: int = 0
    steps: int = 0
    wanted: int = 0
    world_size: int = 0
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
    slow: tuple[Annotated[int, Between(0, RANKS - 1)], Seconds] | None = None
    waited: Mapping[int, Seconds] = MappingProxyType({})

    @property
    def place(self) -> str:
        """How people read it: `step 3 of 20, train`."""
        of = f" of {self.steps}" if self.steps else ""
        return f"step {self.step}{of}, {self.phase}"


def read_beat(rank: int, content: Mapping[str, object]) -> Beat | None:
    """The beat of a rank; None where its file does not say where the rank is."""
    return decode_known(Beat, {**content, "rank": rank}, required=("phase", "step", "monotonic"))


class Holder(NamedTuple):
    """`launcher.json`: where a launcher runs, its process with the start in clock ticks, and since when it holds a node's folder
    (Unix seconds). `job`: the nonce of the job of several nodes that it takes part in.
    """

    host: str
    pid: int
    space: str  # boot and process namespace; within one, pid and start identify a process for certain
    started: int
    since: float
    token: str
    job: str = ""

    @property
    def text(self) -> str:
        """How people read it."""
        return f"the launcher with process id {self.pid} on {self.host}, since {utc(self.since)}"
