"""What a worker finds around it, and what it leaves behind."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import faulty_worker
import torch
from ports import take_port
from waiting import PATIENCE, wait_until

from slipway.protocol.snapshots import list_snapshots
from slipway.train.snapshots.snapshot import load_snapshot

SERVER = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Run:
    """A run directory, and what the job in it ended with."""

    folder: Path
    exit_code: int
    output: str

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        """The outcome files, by rank."""
        files = (self.folder / "node-0" / "outcome").glob("rank-*.json")
        return [json.loads(path.read_text()) for path in sorted(files)]

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def snapshots(self) -> list[str]:
        """Names of the snapshots, newest first."""
        return [path.name for path in list_snapshots(self.folder / "snapshots")]

    def tensors(self, *stems: str) -> dict[str, torch.Tensor]:
        """Tensors of the newest snapshot, which must verify."""
        parts = load_snapshot(list_snapshots(self.folder / "snapshots")[0]).tensors
        return {f"{stem}/{name}": tensor for stem in stems or ("model",) for name, tensor in parts[stem].items()}


@dataclass
class Job:
    """Workers that run, started one by one as torchrun would; each node has a run directory of its own or shares one."""

    folders: list[Path]
    memory: tuple[str, ...] = ()  # of each node, as the launcher tells its workers
    workers: list[BaseProcess] = field(default_factory=list)

    def start(
        self,
        workload: str,
        args: tuple[object, ...],
        processes: int,
        resume: str | Sequence[str] = "none",
        faults: Mapping[str, Any] | None = None,
        work: Callable[[Mapping[str, str], str, str, list[str]], None] | None = None,
    ) -> None:
        """Start `processes` workers, spread over the nodes. Each does `work`, by default that of a faulty worker.

        `resume` is that of all nodes, or one for each; an argument may be a function of the node's folder.
        """
        port, per_node = take_port(), processes // len(self.folders)
        for rank in range(processes):
            node, local_rank = divmod(rank, per_node)
            environment = os.environ | worker_environment(
                self.folders[node], resume if isinstance(resume, str) else resume[node]
            )
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(processes)}
            environment |= {"GROUP_RANK": str(node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment |= {
                "SLIPWAY_SHARED_RUN_DIR": str(int(len(self.folders) == 1)),
                "FAULTS": json.dumps(faults or {}),
            }
            environment |= {"SLIPWAY_MEMORY": self.memory[node]} if self.memory else {}
            folder = self.folders[node]
            words = [str(arg(folder) if callable(arg) else arg) for arg in args]
            call = (environment, str(folder / f"rank-{rank}.log"), workload, words)
            self.workers.append(SERVER.Process(target=work or faulty_worker.work, args=call))
            self.workers[-1].start()

    def heartbeat(self, rank: int = 0) -> dict[str, Any]:
        """The newest heartbeat of a rank, empty before the first."""
        files = [folder / "node-0" / "heartbeat" / f"rank-{rank}.json" for folder in self.folders]
        return next((json.loads(path.read_text()) for path in files if path.exists()), {})

    def wait_for(self, phase: str, step: int = 0) -> None:
        """Return once rank 0 is in this phase, with `step` steps done."""

        def is_there() -> bool:
            beat = self.heartbeat()
            return beat.get("phase") == phase and beat["step"] >= step

        self.wait_until(is_there, f"{phase} after step {step}")

    def wait_until(self, holds: Callable[[], object], what: str) -> None:
        """Return once `holds` is true, which must be before rank 0 ends."""

        def look() -> object:
            alive = self.workers[0].is_alive()
            if not (found := holds()):
                assert alive, f"rank 0 ended before {what}:\n{self.output}"
            return found

        wait_until(look, lambda: f"{what}; the heartbeat is {self.heartbeat()}:\n{self.output}")

    def end(self) -> list[Run]:
        """Wait for the workers; the run as each node sees it."""
        for worker in self.workers:
            worker.join(PATIENCE)
        assert all(worker.exitcode is not None for worker in self.workers), self.output
        codes = [worker.exitcode or 0 for worker in self.workers]
        for folder in self.folders:
            (folder / "node-0" / "stop").unlink(missing_ok=True)
        return [Run(folder, max(map(abs, codes)), self.output) for folder in self.folders]

    @property
    def output(self) -> str:
        """What all workers printed."""
        return "".join(path.read_text() for folder in self.folders for path in sorted(folder.glob("rank-*.log")))


def worker_environment(folder: Path, resume: str) -> dict[str, str]:
    """What the launcher adds to a worker's environment."""
    (folder / "node-0").mkdir(parents=True, exist_ok=True)
    return {
        "SLIPWAY_RUN_DIR": str(folder),
        "SLIPWAY_NODE_DIR": str(folder / "node-0"),
        "SLIPWAY_BACKEND": "gloo",
        "SLIPWAY_DEVICE": "cpu",
        "SLIPWAY_RESUME": resume,
        "SLIPWAY_PROGRESS": "lines",
        "OMP_NUM_THREADS": "1",
    }


def raise_stop_flag(folder: Path, word: str = "stopped") -> None:
    """What the launcher does on a signal."""
    (folder / "node-0").mkdir(parents=True, exist_ok=True)
    (folder / "node-0" / "stop").write_text(json.dumps({"outcome": word, "signal": "SIGTERM"}))
