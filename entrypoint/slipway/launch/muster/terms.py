"""The terms on which the launchers of a job meet: what each of them was told when it started."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Terms:
    """`address` and `port` are MASTER_ADDR and MASTER_PORT; times are in seconds.

    `timeout` is how long launchers wait for each other; `patience` how long the verdict waits for the other nodes once one
    has failed: at least the grace for stopping workers; `heartbeat` how much silence makes a node a lost one, where this
    is node 0. `least` of the `nodes` are enough (None: all), once `window` has brought no more; `replaced`: somebody starts
    another launcher for one that is told to go, so that the others need not stop for good. `folder` holds the runs; `say`
    prints a line, from any thread; `token` is SLIPWAY_TOKEN or empty; `process` names this launcher for its lifetime. `doubtful`:
    whether `nodes` may have been meant to count processes, since somebody set WORLD_SIZE and no scheduler says so.
    """

    node_rank: int
    nodes: int
    address: str
    port: int
    timeout: float
    folder: Path
    say: Callable[[str], None]
    token: str = ""
    allow_uneven: bool = False
    doubtful: bool = False
    patience: float = 150.0
    least: int | None = None
    replaced: bool = False
    window: float = 0.0
    heartbeat: float = 30.0
    process: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def enough(self) -> int:
        """How many nodes the job needs at least."""
        return self.least or self.nodes
