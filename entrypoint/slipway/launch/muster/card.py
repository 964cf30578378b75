"""What a launcher says of itself before a job starts, and what it learns: plain data."""

import hashlib
from dataclasses import dataclass

TEXT = 250  # characters of any one text on a card
PROBLEM = 1_000  # characters of a node's problem
ARGUMENTS = 8_000  # characters of all arguments; longer ones are compared by a hash
DEVICES = 128  # names of GPUs on a card


@dataclass(frozen=True)
class Card:
    """What a launcher says of itself. `nodes` is a number, or MIN:MAX; None means unknown or not there.

    A `problem` is why this node cannot start: it ends the muster for all, in its own words; so does `occupied`, why no new
    run can begin here, unless the job goes on. `tries` counts the attempts of this job that the launcher made, of which
    `failures` failed; `attempt` is the highest number that it or its run directory has seen.
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
    tries: int = 0
    failures: int = 0
    occupied: str = ""
    runtime: str = "host"
    problem: str = ""

    def __post_init__(self) -> None:
        """Keep what travels, and what node 0 holds for thousands of nodes, bounded."""
        for name, value in vars(self).items():
            if isinstance(value, str):
                limit = PROBLEM if name in ("problem", "occupied") else TEXT
                object.__setattr__(self, name, value[:limit])
        object.__setattr__(self, "gpus", tuple(name[:TEXT] for name in self.gpus[:DEVICES]))
        if sum(len(argument) + 1 for argument in self.arguments) > ARGUMENTS:
            digest = hashlib.sha256("\0".join(self.arguments).encode(errors="replace")).hexdigest()
            short = f"{len(self.arguments)} arguments with sha256 {digest[:32]}"
            object.__setattr__(self, "arguments", (short,))


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
    snapshot: int | None = None
    notes: tuple[str, ...] = ()
