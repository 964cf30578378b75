"""The rendezvous's messages, each a frozen dataclass, and the info with which a launcher describes its node. docs/rendezvous.md
describes who sends which and when.

Fields are of type str, int, float, bool, `X | None`, `tuple[X, ...]` or another such dataclass: what link.py can check.
"""

import hashlib
from dataclasses import dataclass, replace
from signal import Signals

from slipway.launch.attempt.stops import STOP_WORDS
from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.rendezvous.authentication import NONCE_BYTES
from slipway.launch.verdict.ledger import NOTHING, Ledger
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.errors import CONFIGURATION, EXITS, FAILED, FINISHED, UNHEALTHY
from slipway.protocol.files import ATTEMPTS, STEPS
from slipway.protocol.printable import counted, one_line

OK, WARNING, ERROR, SKIPPED, BROKEN = LEVELS = "ok", "warning", "error", "skipped", "failed"


@dataclass(frozen=True)
class Finding:
    """A row of `slipway check` or `selftest`: `what` was examined; `level` is ok, skipped, of a check also warning or error, of a
    selftest failed; `advice` says what to do. `code` is the exit code that an error or a failure stands for: 77 for a sick node,
    78 for a wrong configuration, 1 for a broken image or checkout; 0 for all other levels.
    """

    what: str
    level: str
    found: str
    advice: str = ""
    code: int = FINISHED

    def __post_init__(self) -> None:
        """ValueError for a level or a code that no probe gives: findings come from other nodes, too."""
        if self.level not in LEVELS or self.code not in (FINISHED, FAILED, UNHEALTHY, CONFIGURATION):
            raise ValueError("impossible level or code")


TEXT = 250  # characters of any one text in a node info
PROBLEM = 1_000  # characters of a node's problem
ARGUMENTS = 8_000  # characters of all arguments; longer ones are compared by a hash
DEVICES = 128  # names of GPUs in a node info
FINDINGS = 12_000  # characters of all findings in a node info
HELD = 64  # ranks that a launcher says its machine had
SUCCESSORS = 4  # spare nodes of which all launchers know that they can lead


@dataclass(frozen=True)
class NodeInfo:
    """How a launcher describes itself. `nodes` is a number, or MIN:MAX; None means unknown or not there.

    A `problem` is why this node cannot start: it ends the rendezvous for all, with this text; so does `occupied`, why no new
    run can begin here, unless the job is under way. `tries` counts the attempts of this job that the launcher made, of which the
    last `failures` in a row were without progress, and which got to step `reached`; `attempt` is the highest number that it or
    its run directory has seen. `goes_on`: it is to resume the newest run (--resume auto). `nonce` tells a job that it takes part
    in already from every other. `run_dir` is the value of --run-dir, `script` a checksum of a user's script. `findings` are those
    of a check, `ledger` is what was booked so far. `place` is the one in the newest attempt of this job that the launcher knows
    of (-1: none, as on a spare node).
    """

    node_rank: int
    nodes: str
    host: str
    workload: str
    arguments: tuple[str, ...]
    processes: int
    backend: str
    version: str
    run: str
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    torch: str | None = None
    nccl: str | None = None
    image: str | None = None
    job: str | None = None
    data: str | None = None
    script: str = ""
    snapshot: int | None = None
    attempt: int = 0
    goes_on: bool = False
    tries: int = 0
    failures: int = 0
    reached: int = 0
    ledger: Ledger = NOTHING
    occupied: str = ""
    runtime: str = "host"
    problem: str = ""
    nonce: str = ""
    run_dir: str = ""
    findings: tuple[Finding, ...] = ()
    place: int = -1

    def __post_init__(self) -> None:
        """Bound what travels, and what node 0 holds for thousands of nodes. Raises ValueError for impossible numbers."""
        limits = {**dict.fromkeys(("processes", "attempt", "tries", "failures"), ATTEMPTS), "reached": STEPS}
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"impossible {name}: {getattr(self, name)}")
        for name, value in vars(self).items():
            if isinstance(value, str):
                limit = PROBLEM if name in ("problem", "occupied") else TEXT
                object.__setattr__(self, name, one_line(value)[:limit])
        object.__setattr__(self, "gpus", tuple(one_line(name)[:TEXT] for name in self.gpus[:DEVICES]))
        if sum(len(argument) + 1 for argument in self.arguments) > ARGUMENTS:
            digest = hashlib.sha256("\0".join(self.arguments).encode(errors="replace")).hexdigest()
            short = f"{counted(len(self.arguments), 'argument')} with sha256 {digest[:32]}"
            object.__setattr__(self, "arguments", (short,))
        else:
            object.__setattr__(self, "arguments", tuple(map(one_line, self.arguments)))
        object.__setattr__(self, "findings", _bound(self.findings))


def _bound(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """As many findings as a node info has room for, errors and warnings before others; in their order."""
    short = [
        replace(row, what=row.what[:TEXT], found=one_line(row.found)[:PROBLEM], advice=row.advice[:PROBLEM])
        for row in findings
    ]
    room, kept = FINDINGS, set()
    for index in sorted(range(len(short)), key=lambda index: short[index].level not in (ERROR, WARNING)):
        row = short[index]
        room -= len(row.what) + len(row.found) + len(row.advice) + 50  # names and marks of JSON
        if room >= 0:
            kept.add(index)
    return tuple(row for index, row in enumerate(short) if index in kept)


@dataclass(frozen=True)
class Greeting:
    """The first message of each side of a connection: a random number (hex) against which the other one proves the token."""

    nonce: str

    def __post_init__(self) -> None:
        """ValueError for what no launcher sends."""
        if len(bytes.fromhex(self.nonce)) != NONCE_BYTES:
            raise ValueError("impossible nonce")


@dataclass(frozen=True)
class Proof:
    """The first sealed message, from the side that listens: its seal proves that it knows the token. `seen` is the address from
    which the other side's connection comes.
    """

    seen: str

    def __post_init__(self) -> None:
        """ValueError for what is no address."""
        if len(self.seen) > TEXT:
            raise ValueError("impossible address")


@dataclass(frozen=True)
class Hello:
    """A launcher that connects introduces itself. `process` names this launcher for its lifetime; `port` and `key` are those of
    its listener for the neighbour; `door` is the port on which it would lead the others, 0 where it cannot. `frozen`: it did not
    run for a while, and no leader has welcomed it since. `offered`: the highest number of an attempt that any leader has named to
    it, in a probe or at a start. `who` is that of `Ask` where the rank was asked for, else empty.
    """

    process: str
    clock: float
    port: int
    key: str
    info: NodeInfo
    door: int = 0
    frozen: bool = False
    offered: int = 0
    who: str = ""

    def __post_init__(self) -> None:
        """ValueError for names that no launcher makes: they are passed on to other nodes. And for impossible numbers."""
        if (
            max(len(self.process), len(self.key), len(self.who)) > 64
            or not 0 < self.port < 65536
            or not 0 <= self.door < 65536
        ):
            raise ValueError("impossible process, key or port")
        if not 0 <= self.offered <= ATTEMPTS:
            raise ValueError(f"impossible number of an attempt: {self.offered}")


@dataclass(frozen=True)
class Ask:
    """A launcher with RANK=auto asks for a node rank, in place of a hello. `who` names it for its lifetime, or that of the
    container whose command it is; `job` is what all launchers of its job have in common (Topology.identity); `held` are the ranks
    that launchers of this machine had in this run.
    """

    who: str
    job: str
    held: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """ValueError for what no launcher asks."""
        if not 0 < len(self.who) <= 64 or len(self.job) > TEXT or len(self.held) > HELD:
            raise ValueError("impossible question for a rank")


@dataclass(frozen=True)
class Assigned:
    """The answer: this rank is kept for the launcher until it says hello, for some time."""

    node_rank: int

    def __post_init__(self) -> None:
        """ValueError for a rank that nobody gives: 0 is never asked for."""
        if not 0 < self.node_rank < 1 << 17:
            raise ValueError("impossible node rank")


@dataclass(frozen=True)
class Welcome:
    """The launcher that leads, of `node_rank` on `host`, admits this one and waits for at most `seconds` more.

    A launcher that is silent for `heartbeat` seconds from here on is lost, the one that leads as well.
    """

    seconds: float
    host: str
    heartbeat: float
    node_rank: int = 0


@dataclass(frozen=True)
class Refused:
    """Node 0 does not admit this launcher. With `again` it may ask later.

    `again` with the code CONFIGURATION: this is node 0 of another job. The code PEER without `again`: another launcher has the
    rank that this one was given.
    """

    code: int
    reason: str
    again: bool = False

    def __post_init__(self) -> None:
        """ValueError for what is no failure: the launcher that reads it ends with this code."""
        _check_failure(self.code)


@dataclass(frozen=True)
class Led:
    """The job runs, and the launcher with this info leads it in node 0's place: at `address` and `port`, where all can find it.

    From that launcher to whoever listens where node 0 is found, in place of a hello; from there to all that ask.
    """

    info: NodeInfo
    address: str
    port: int

    def __post_init__(self) -> None:
        """ValueError for what is no place."""
        if len(self.address) > TEXT or not 0 < self.port < 65536:
            raise ValueError("impossible address or port")


@dataclass(frozen=True)
class Waiting:
    """The state of the rendezvous, to be printed."""

    line: str


@dataclass(frozen=True)
class Probe:
    """Connect to this neighbour and look for this file. `address` None means: where you found node 0. `attempt` is the
    number of the attempt that is about to start; whoever answers tells it to every other leader (Hello.offered).
    """

    round: int
    node_rank: int
    address: str | None
    port: int
    key: str
    file: str
    attempt: int

    def __post_init__(self) -> None:
        """ValueError for a number that no attempt has: it is passed on to other leaders."""
        if not 0 < self.attempt <= ATTEMPTS:
            raise ValueError(f"impossible number of an attempt: {self.attempt}")


@dataclass(frozen=True)
class Probed:
    """What the probe found: `trouble` is empty where the neighbour answered; `sees` is about the file."""

    round: int
    trouble: str
    sees: bool


FILL = "." * 9_000  # bytes; Ethernet's jumbo frames hold as many


@dataclass(frozen=True)
class Knock:
    """First line on a connection to a neighbour. It fills packets of every size in use, as does the answer."""

    key: str
    fill: str = FILL


@dataclass(frozen=True)
class Here:
    """The neighbour's answer."""

    node_rank: int
    fill: str = FILL


@dataclass(frozen=True)
class Start:
    """What every launcher needs to start torchrun. `port` is torchrun's store on node 0; `notes` are warnings.

    `group_rank` is the receiver's place among the `nodes` that take part, -1 on a spare node. `tries` attempts of this job were
    made before, of which the last `failures` in a row were without progress, and which got to step `reached`; `snapshot` is the
    newest step that one of those who made them has. `nonce` tells this job from every other that may answer at the same address.
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


@dataclass(frozen=True, kw_only=True)
class AttemptStart(Start):
    """What a launcher makes of Start (it never travels): `address` as this node knows the one that leads, of rank `leader`, and
    the interface for NCCL and gloo where the user names none (None: leave the choice to them).
    """

    leader: int = 0
    address: str
    interface: str | None


@dataclass(frozen=True)
class Peer:
    """After Start, where launchers brought findings with them: one of the launchers of this attempt, as node 0 knows it.

    `offset` is its clock in seconds ahead of node 0's.
    """

    info: NodeInfo
    offset: float


@dataclass(frozen=True)
class End:
    """The rendezvous failed for all: exit code and what every node prints."""

    code: int
    lines: tuple[str, ...]

    def __post_init__(self) -> None:
        """ValueError for what is no failure: the launcher that reads it ends with this code."""
        _check_failure(self.code)


def _check_failure(code: int) -> None:
    if code == FINISHED or code not in EXITS:
        raise ValueError(f"impossible exit code of a failure: {code}")


@dataclass(frozen=True)
class Successor:
    """A spare node that leads if the sender is lost, and where it listens; `first`: the first of those that are named now, who is
    asked before the others. `address` None means: where you found me.
    """

    node_rank: int
    host: str
    address: str | None
    port: int
    first: bool

    def __post_init__(self) -> None:
        """ValueError for what is no place."""
        if not 0 < self.port < 65536:
            raise ValueError("impossible port")


@dataclass(frozen=True)
class Report:
    """How the run ended on the sender's node."""

    outcome: Outcome


@dataclass(frozen=True)
class News:
    """Another node failed or was lost while the run continues here."""

    outcome: Outcome


@dataclass(frozen=True)
class Stopping:
    """A launcher was asked to stop, by this signal. From node 0: the job stops because of what this node was asked.

    `name` is what people call it; `notice`: the node leaves because its machine goes away, and the job need not end. ValueError
    for a signal that is no request to stop.
    """

    signal: str
    name: str
    node_rank: int = 0
    host: str = ""
    notice: bool = False

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
class Stuck:
    """Nothing moves on the sender's node any more; where one of its ranks is. `first`: the first of those that are sent now."""

    dump: StackDump
    first: bool


@dataclass(frozen=True)
class Moving:
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
        *(Greeting, Proof, Ask, Assigned, Hello, Welcome, Refused, Led, Waiting, Probe, Probed, Knock, Here),
        *(Start, Successor, Peer, End, Report, News, Stopping, Ending, Stuck, Moving, Ping, Pong),
    )
}
