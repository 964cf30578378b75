"""The muster's messages, each a frozen dataclass. docs/muster.md describes who sends which and when.

Fields are of type str, int, float, bool, `X | None`, `tuple[X, ...]` or another such dataclass: what codec.py
knows how to check.
"""

from dataclasses import dataclass

from slipway.launch.muster.card import Card
from slipway.launch.verdict import Outcome, Verdict


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
    """Node 0, on `host`, has a seat for this launcher and goes on waiting for at most `seconds`."""

    seconds: float
    host: str


@dataclass(frozen=True)
class Refused:
    """Node 0 has no seat for this launcher; with `again` it may ask later."""

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
    host: str
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
    """First line on a connection to a ring neighbour."""

    key: str


@dataclass(frozen=True)
class Here:
    """The neighbour's answer."""

    node_rank: int


@dataclass(frozen=True)
class Start:
    """Go: what every launcher needs to start torchrun. `port` is torchrun's store on node 0; `notes` are warnings."""

    attempt: int
    run: str
    nodes: int
    processes: int
    port: int
    shared: bool
    one_machine: bool
    notes: tuple[str, ...] = ()


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
class Ending:
    """Node 0's one verdict."""

    verdict: Verdict


@dataclass(frozen=True)
class Ping:
    """Are you there? Asked when a second launcher claims the same node rank."""


@dataclass(frozen=True)
class Pong:
    """The answer to a ping."""


KINDS: dict[str, type] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Greeting, Hello, Welcome, Refused, Waiting, Probe, Probed, Knock, Here),
        *(Start, End, Report, News, Ending, Ping, Pong),
    )
}
