"""What a launcher says of itself before a job starts, and what it learns: plain data."""

import hashlib
from dataclasses import dataclass, replace

from slipway.launch.verdict.ledger import NOTHING, Ledger
from slipway.protocol.errors import CONFIGURATION, FINISHED, UNHEALTHY
from slipway.protocol.files import ATTEMPTS, STEPS

TEXT = 250  # characters of any one text on a card
PROBLEM = 1_000  # characters of a node's problem
ARGUMENTS = 8_000  # characters of all arguments; longer ones are compared by a hash
DEVICES = 128  # names of GPUs on a card
FINDINGS = 12_000  # characters of all findings on a card

OK, WARNING, ERROR, SKIPPED = "ok", "warning", "error", "skipped"


@dataclass(frozen=True)
class Finding:
    """What a probe of `slipway check` found: `what` was looked at, `level` is ok, warning, error or skipped, `advice` says
    what to do about it. `code` is the exit code that an error stands for, UNHEALTHY or CONFIGURATION; 0 for all other levels.
    """

    what: str
    level: str
    found: str
    advice: str = ""
    code: int = FINISHED

    def __post_init__(self) -> None:
        """ValueError for a level or a code that no probe gives: findings come from other nodes, too."""
        if self.level not in (OK, WARNING, ERROR, SKIPPED) or self.code not in (FINISHED, UNHEALTHY, CONFIGURATION):
            raise ValueError("impossible level or code")


@dataclass(frozen=True)
class Card:
    """What a launcher says of itself. `nodes` is a number, or MIN:MAX; None means unknown or not there.

    A `problem` is why this node cannot start: it ends the muster for all, in its own words; so does `occupied`, why no new
    run can begin here, unless the job goes on. `tries` counts the attempts of this job that the launcher made, of which the last
    `failures` in a row were without progress, and which got to step `reached`; `attempt` is the highest number that it or its
    run directory has seen. `goes_on`: it is to go on with the newest run (--resume auto). `nonce` tells a job that it takes part
    in already from every other. `run_dir` is what --run-dir says. `findings` are those of a check,
    `ledger` is what was booked so far.
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

    def __post_init__(self) -> None:
        """Keep what travels, and what node 0 holds for thousands of nodes, bounded. ValueError for impossible numbers."""
        limits = {**dict.fromkeys(("processes", "attempt", "tries", "failures"), ATTEMPTS), "reached": STEPS}
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"impossible {name}: {getattr(self, name)}")
        for name, value in vars(self).items():
            if isinstance(value, str):
                limit = PROBLEM if name in ("problem", "occupied") else TEXT
                object.__setattr__(self, name, value[:limit])
        object.__setattr__(self, "gpus", tuple(name[:TEXT] for name in self.gpus[:DEVICES]))
        if sum(len(argument) + 1 for argument in self.arguments) > ARGUMENTS:
            digest = hashlib.sha256("\0".join(self.arguments).encode(errors="replace")).hexdigest()
            short = f"{len(self.arguments)} arguments with sha256 {digest[:32]}"
            object.__setattr__(self, "arguments", (short,))
        object.__setattr__(self, "findings", _bound(self.findings))


@dataclass(frozen=True)
class Go:
    """What a launcher makes of Start (it never travels): `address` as this node knows node 0, the interface for NCCL and
    gloo where the user names none (None: leave the choice to them), and `group_rank`, its place among the `nodes`.
    """

    attempt: int
    run: str
    nodes: int
    group_rank: int
    processes: int
    address: str
    port: int
    shared: bool
    interface: str | None
    tries: int = 0
    failures: int = 0
    reached: int = 0
    ledger: Ledger = NOTHING
    snapshot: int | None = None
    notes: tuple[str, ...] = ()
    nonce: str = ""


def _bound(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """As many findings as a card has room for, errors and warnings before others; in their order."""
    short = [
        replace(row, what=row.what[:TEXT], found=row.found[:PROBLEM], advice=row.advice[:PROBLEM]) for row in findings
    ]
    room, kept = FINDINGS, set()
    for index in sorted(range(len(short)), key=lambda index: short[index].level not in (ERROR, WARNING)):
        room -= (
            len(short[index].what) + len(short[index].found) + len(short[index].advice) + 50
        )  # names and marks of JSON
        if room >= 0:
            kept.add(index)
    return tuple(row for index, row in enumerate(short) if index in kept)
