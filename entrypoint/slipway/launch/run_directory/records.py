"""What the files of a run directory outside the folders of its nodes say, each as a tuple with names into which it is decoded.

Files may be torn, damaged or forged: a field that makes no sense keeps its default. These are tuples, because making a dataclass
takes a millisecond of each start.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from slipway.protocol.decoding import Between, decode_known
from slipway.protocol.files import ATTEMPTS, NODES, STEPS, read_json

if TYPE_CHECKING:
    from slipway.launch.verdict.ledger import Ledger

T = TypeVar("T")

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
    device: str = ""  # of node 0
    torch: str = ""  # its version
    image: str = ""  # the identity of Slipway's image


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


def read_record(kind: type[T], file: Path) -> T:
    """What a JSON file says, as a class whose fields all have defaults."""
    found = decode_known(kind, read_json(file))
    return kind() if found is None else found


def read_ledger(record: object) -> "Ledger | None":
    """The ledger that JSON describes; None where it makes no sense."""
    from slipway.launch.verdict.ledger import ledger_of  # most commands need none, and it takes milliseconds

    return ledger_of(record)
