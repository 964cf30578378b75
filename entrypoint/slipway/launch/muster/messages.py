"""The muster's messages, each a frozen dataclass. docs/muster.md describes who sends which and when.

Fields are of type str, int, float, bool, `X | None`, `tuple[X, ...]` or another such dataclass: what codec.py
knows how to check.
"""

from dataclasses import dataclass
from signal import Signals

from slipway.launch.attempt.stops import STOP_WORDS
from slipway.launch.muster.card import TEXT, Card
from slipway.launch.verdict.attempts import Ending
from slipway.launch.verdict.ledger import NOTHING, Ledger
from slipway.launch.verdict.verdict import Outcome
from slipway.launch.watch.standing import Standing

FILL = "." * 9_000  # bytes; Ethernet's jumbo frames hold as many


@dataclass(frozen=True)
class Greeting:
    """Node 0 to whoever connects: what to prove the token against (hex)."""

    challenge: str


@dataclass(frozen=True)
class Hello:
    """A launcher's answer. `process` names this launcher for its lifetime; `port` and `key` are its ring listener's."""

    proof: str
    process: str
    clock: float
    port: int
    key: str
    card: Card

    def __post_init__(self) -> None:
        """ValueError for names that no launcher makes: they are passed on to other nodes."""
        if len(self.process) > 64 or len(self.key) > 64 or not 0 < self.port < 65536:
            raise ValueError("impossible process, key or port")


@dataclass(frozen=True)
class Welcome:
    """Node 0, on `host`, has a seat for this launcher and goes on waiting for at most `seconds`.

    Whoever is silent for `heartbeat` seconds from here on is lost, node 0 as well.
    """

    seconds: float
    host: str
    heartbeat: float


@dataclass(frozen=True)
class Refused:
    """Node 0 has no seat for this launcher. With `again` it may ask later.

    `again` with the code CONFIGURATION: this is node 0 of another job.
    """

    code: int
    reason: str
    again: bool = False


@dataclass(frozen=True)
class Waiting:
    """How the muster stands, to be printed."""

    line: str


@dataclass(frozen=True)
class Probe:
    """Connect to this ring neighbour and look for this file. `address` None means: where you found node 0."""

    round: int
    node_rank: int
    address: str | None
    port: int
    key: str
    file: str


@dataclass(frozen=True)
class Probed:
    """What the probe found: `trouble` is empty where the neighbour answered; `sees` is about the file."""

    round: int
    trouble: str
    sees: bool


@dataclass(frozen=True)
class Knock:
    """First line on a connection to a ring neighbour. It fills packets of every size in use, as does the answer."""

    key: str
    fill: str = FILL


@dataclass(frozen=True)
class Here:
    """The neighbour's answer."""

    node_rank: int
    fill: str = FILL


@dataclass(frozen=True)
class Start:
    """Go: what every launcher needs to start torchrun. `port` is torchrun's store on node 0; `notes` are warnings.

    `group_rank` is the receiver's place among the `nodes` that take part. `tries` attempts of this job were made before, of which
    the last `failures` in a row were without progress, and which got to step `reached`; `snapshot` is the newest step that one of
    those who made them has. `nonce` tells this job from every other that may answer at the same address.
    """

    attempt: int
    run: str
    nodes: int
    group_rank: int
    processes: int
    port: int
    shared: bool
    one_machine: bool
    tries: int = 0
    failures: int = 0
    reached: int = 0
    ledger: Ledger = NOTHING
    snapshot: int | None = None
    notes: tuple[str, ...] = ()
    nonce: str = ""


@dataclass(frozen=True)
class Peer:
    """After Start, where launchers brought findings with them: one of the launchers of this attempt, as node 0 knows it.

    `offset` is its clock in seconds ahead of node 0's.
    """

    card: Card
    offset: float


@dataclass(frozen=True)
class End:
    """The muster failed for all: exit code and what every node prints."""

    code: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """How the run ended on the sender's node."""

    outcome: Outcome


@dataclass(frozen=True)
class News:
    """Another node failed or was lost while the run goes on here."""

    outcome: Outcome


@dataclass(frozen=True)
class Stopping:
    """A launcher was asked to stop, by this signal. From node 0: the job stops because of what this node was asked.

    `name` is what people call it. ValueError for a signal that is no request to stop.
    """

    signal: str
    name: str
    node_rank: int = 0
    host: str = ""

    def __post_init__(self) -> None:
        """Only what a launcher catches itself is passed on."""
        if self.signal not in {number.name for number in STOP_WORDS} or len(self.name) > TEXT:
            raise ValueError("not a signal that stops")

    @property
    def word(self) -> str:
        """The outcome that it asks for."""
        return STOP_WORDS[Signals[self.signal]]

    @property
    def text(self) -> str:
        """How people read it elsewhere."""
        return f"{self.name} on node {self.node_rank} ({self.host})"


@dataclass(frozen=True)
class Stands:
    """Nothing moves on the sender's node any more; where one of its ranks stands. `first`: of those that it tells of now."""

    standing: Standing
    first: bool


@dataclass(frozen=True)
class Moves:
    """Something moves again on the sender's node."""


@dataclass(frozen=True)
class Ping:
    """Are you there? The heartbeat."""


@dataclass(frozen=True)
class Pong:
    """The answer to a ping."""


KINDS: dict[str, type] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Greeting, Hello, Welcome, Refused, Waiting, Probe, Probed, Knock, Here),
        *(Start, Peer, End, Report, News, Stopping, Ending, Stands, Moves, Ping, Pong),
    )
}
