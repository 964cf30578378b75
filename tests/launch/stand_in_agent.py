"""The agent with a torchrun of the standard library: the same pipe events, process tree and exit codes, without torch.

It stands in for `slipway.process.agent` where tests/launch/stand_ins is in PYTHONPATH. All but torchrun is the agent's own code: the
reaper, workers that begin early, the process that is left behind. test_stand_ins.py compares both, ending by ending. Nodes do not
wait for each other here before they start their workers, nor after those have ended.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipway.process import agent, warm
from slipway.protocol.binding import on_cores, own_cores, own_device
from slipway.protocol.files import STOP_FILE, error_file

POLL = 0.02  # s between polls of the workers


class Torchrun:
    """The workers of this node, as torchrun starts and watches them."""

    def __init__(self, terms: agent.AgentConfig, begun: Sequence[warm.Worker]) -> None:
        """Read the command line."""
        parser = argparse.ArgumentParser(prog="torchrun")
        for name in ("--nnodes", "--node-rank", "--nproc-per-node"):
            parser.add_argument(name, type=int, required=True)
        for name in ("--master-addr", "--master-port", "--rdzv-id", "--max-restarts", "--signals-to-handle"):
            parser.add_argument(name)
        parser.add_argument("--no-python", action="store_true", required=True)
        self._asked = parser.parse_args(terms.options)
        self._terms, self._begun = terms, begun
        self._first = self._asked.node_rank * self._asked.nproc_per_node
        self._workers: dict[int, warm.Worker] = {}
        self._left: set[int] = set()

    def run(self) -> int:
        """Run to the end; 0, or 1 when a worker failed."""
        self._workers = {local: self._start(local) for local in range(self._asked.nproc_per_node)}
        self._tell(event="started", pids={local: worker.pid for local, worker in self._workers.items()})
        while True:
            codes = {local: worker.poll() for local, worker in self._workers.items()}
            self._tell_left(codes)
            if any(codes.values()):
                return self._fail(codes)
            if None not in codes.values():
                return 0
            time.sleep(POLL)

    def _start(self, local: int) -> warm.Worker:
        asked, rank = self._asked, str(self._first + local)
        places = {
            "RANK": rank,
            "LOCAL_RANK": f"{local}",
            "GROUP_RANK": f"{asked.node_rank}",
            "WORLD_SIZE": f"{asked.nnodes * asked.nproc_per_node}",
            "LOCAL_WORLD_SIZE": f"{asked.nproc_per_node}",
            "MASTER_ADDR": asked.master_addr,
            "MASTER_PORT": asked.master_port,
            "TORCHELASTIC_RUN_ID": asked.rdzv_id or "none",
            "TORCHELASTIC_ERROR_FILE": str(Path(self._terms.errors, error_file(rank))),
        }
        env = {**os.environ, **places, **own_device(os.environ, local)}
        if self._begun:
            warm.release(self._begun[local], env)
            return self._begun[local]
        with on_cores(own_cores(os.environ, local)):
            return subprocess.Popen(
                self._terms.command,
                env=env,
                stdin=subprocess.DEVNULL if local else None,
                stdout=self._terms.pipes[2 * local],
                stderr=self._terms.pipes[2 * local + 1],
                start_new_session=True,
                pass_fds=self._terms.workers.files,
            )

    def _tell(self, **event: Any) -> None:
        os.write(self._terms.events, (json.dumps(event) + "\n").encode())

    def _tell_left(self, codes: dict[int, int | None]) -> None:
        left = {local for local, code in codes.items() if code == 0}
        for local in sorted(left - self._left):
            self._tell(event="left", rank=self._first + local, time=time.time())
        self._left = left

    def _fail(self, codes: dict[int, int | None]) -> int:
        """Tell who failed, and end the others: after a stop not before they are done with their saves."""
        failures = [
            {
                "rank": self._first + local,
                "local_rank": local,
                "pid": self._workers[local].pid,
                "exitcode": code,
                "time": time.time(),
            }
            for local, code in codes.items()
            if code
        ]
        self._tell(event="failed", failures=failures)
        stop = Path(self._terms.errors).with_name(STOP_FILE)
        while stop.exists() and any(worker.poll() is None for worker in self._workers.values()):
            time.sleep(POLL)
        for worker in self._workers.values():
            if worker.poll() is None:
                os.kill(worker.pid, signal.SIGTERM)
        for worker in self._workers.values():
            worker.wait()
        return 1


def stand_in() -> None:
    """Replace what of the agent needs torch."""
    agent.run_torchrun = lambda terms, begun: Torchrun(terms, begun).run()


if __name__ == "__main__":
    stand_in()
    sys.exit(agent.main(sys.argv[1:]))
