"""Where a worker stands in its job, as torchrun and the launcher say in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.protocol.files import newest_attempt
from slipway.protocol.memory import VARIABLE


@dataclass(frozen=True)
class Place:
    """What the environment says: numbers as torchrun counts them, folders as the launcher made them."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    run_dir: Path
    node_dir: Path
    backend: str
    device: str
    resume: str
    bar: bool
    shared: bool  # whether all nodes see the same run directory
    attempt: int = 0  # which attempt on the run this is; 0 where nobody said
    memory: tuple[str, ...] = ()  # the buffers for snapshots in memory, where this worker is the one that fills them

    @property
    def keeps_snapshots(self) -> bool:
        """Whether this worker reads and writes snapshots: the first of the job, or of each node where nothing is shared."""
        return self.rank == 0 if self.shared else self.local_rank == 0

    @property
    def superseded(self) -> bool:
        """Whether another launcher went on with the run: it took ours for dead, which was frozen or cut off."""
        return 0 < self.attempt < newest_attempt(self.run_dir)


def read_place(environ: Mapping[str, str]) -> Place:
    """The worker's place. Raises SystemExit with what to type where the launcher did not start this process."""
    missing = [name for name in ("SLIPWAY_RUN_DIR", "SLIPWAY_NODE_DIR") if not environ.get(name)]
    if missing:
        raise SystemExit(f"{missing[0]} is not set; workloads are started by the launcher: slipway run WORKLOAD")
    return Place(
        rank=int(environ.get("RANK", "0")),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        world_size=int(environ.get("WORLD_SIZE", "1")),
        node_rank=int(environ.get("GROUP_RANK", "0")),
        run_dir=Path(environ["SLIPWAY_RUN_DIR"]),
        node_dir=Path(environ["SLIPWAY_NODE_DIR"]),
        backend=environ.get("SLIPWAY_BACKEND", "gloo"),
        device=environ.get("SLIPWAY_DEVICE", "cpu"),
        resume=environ.get("SLIPWAY_RESUME", "none"),
        bar=environ.get("SLIPWAY_PROGRESS") == "bar",
        shared=environ.get("SLIPWAY_SHARED_RUN_DIR", "1") != "0",
        attempt=int(environ.get("SLIPWAY_ATTEMPT", "0")),
        memory=tuple(environ.get(VARIABLE, "").split()) if environ.get("LOCAL_RANK", "0") == "0" else (),
    )
