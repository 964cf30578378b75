"""The process that a launcher starts: torchrun through process/agent.py, with `--launcher spawn` a process that spawns the
workers, and with one launcher per process the workload itself.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from slipway.launch.attempt.stops import STOP_WORDS
from slipway.launch.attempt.warm_standby import WarmStandby
from slipway.launch.attempt.worker_output import WorkerOutput, open_log
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import Plan
from slipway.process.tree import Forked
from slipway.protocol.binding import on_cores, own_cores, own_device
from slipway.protocol.files import LOGS, OUTCOMES

# Children inherit ignored signals. Only coreutils' env (8.31, 2019) sets that between fork and exec without a race.
# SIGUSR2 as well: LSF and SGE send it to all processes of a job.
IGNORING = ("env", f"--ignore-signal={','.join(number.name[3:] for number in (*STOP_WORDS, signal.SIGUSR2))}")
AGENT = (sys.executable, "-P", "-u", "-m", "slipway.process.agent")
AGENT_LOG, SPAWN_LOG = "torchrun.log", "spawn.log"


def parent_of(plan: Plan) -> str:
    """What starts the workers, for people."""
    return "the process that spawns the workers" if plan.workload.spawned else "torchrun"


def warm_up(job: Job, standby: WarmStandby) -> None:
    """On a spare node, start the process from which its first attempt is forked, and let it import what that needs."""
    if not job.warm or job.plan.workload.spawned:
        return
    workload = job.plan.workload
    with suppress(OSError):
        standby.prepare((*IGNORING, *AGENT), job.plan.environment(job.environ))
    standby.load(workload.command[-1] if workload.builtin and workload.early else "")


class Child:
    """The process, and what it tells of its own children: `workers` are process ids, `failures` the ranks that failed first,
    `left` those that ended with 0, and when (Unix seconds).
    """

    def __init__(
        self,
        plan: Plan,
        node_dir: Path,
        environ: Mapping[str, str],
        output: WorkerOutput,
        selector: selectors.BaseSelector,
        header: str,
        stdin: int,
        standby: WarmStandby,
        script: WarmStandby | None = None,
        files: tuple[int, ...] = (),
    ) -> None:
        """Start it in a session of its own, with the stop signals ignored. Raises OSError.

        `stdin` is rank 0's; torchrun hands its own on to that. `standby`: from which it is forked where it can be, `script`
        together with the workers of a script. `files` are open in torchrun's workers under the numbers that they have here.
        """
        self.started = False
        self.warm = plan.workload.early  # whether the workers find torch imported
        self.workers: list[int] = []
        self.failures: list[dict[str, Any]] = []
        self.left: dict[int, float] = {}
        self._selector, self._rest, self._stdin, self._standby, self._files = selector, b"", stdin, standby, files
        self._script = script
        self.process: subprocess.Popen[bytes] | Forked
        self._log, self._logged = node_dir / LOGS / (SPAWN_LOG if plan.workload.spawned else AGENT_LOG), 0
        if plan.topology.process:
            local = plan.topology.process.local_rank
            with on_cores(own_cores(environ, local)):
                environ = {**environ, **own_device(environ, local)}
                self.process = self._run(plan.argv, environ, stdout=output.writers[0], stderr=output.writers[1])
            self.started, self.workers = True, [self.process.pid]
        else:
            self._start_parent(plan, node_dir, environ, output, header)
        output.close_writers()

    def _run(self, words: tuple[str, ...], environ: Mapping[str, str], **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*IGNORING, *words], env=environ, stdin=self._stdin, start_new_session=True, **more)

    def _start_parent(
        self, plan: Plan, node_dir: Path, environ: Mapping[str, str], output: WorkerOutput, header: str
    ) -> None:
        """Start what starts the workers, and tells of them through a pipe."""
        events, writer = os.pipe()
        os.set_blocking(events, False)
        self._selector.register(events, selectors.EVENT_READ, lambda: self._read(events))
        pipes = ",".join(map(str, output.writers))
        with open_log(self._log, header) as log:
            self._logged = log.tell()
            if plan.workload.spawned:
                environ = {**environ, "SLIPWAY_EVENTS": str(writer), "SLIPWAY_PIPES": pipes}
                self.process = self._run(plan.argv, environ, pass_fds=(writer, *output.writers), stdout=log, stderr=log)
            else:
                early = f"{plan.workload.early:d},{plan.topology.ranks[0]},{plan.topology.world_size}"
                terms = (str(os.getpid()), str(writer), pipes, str(node_dir / OUTCOMES), early)
                files = (writer, *output.writers, *self._files)
                self.process = self._start_agent(terms, plan.argv[1:], environ, files, log.fileno())
        os.close(writer)

    def _start_agent(
        self,
        terms: tuple[str, ...],
        arguments: tuple[str, ...],
        environ: Mapping[str, str],
        files: tuple[int, ...],
        log: int,
    ) -> subprocess.Popen[bytes] | Forked:
        """torchrun's process: forked from the warm standby or, if there is none, started from nothing."""
        numbers = ",".join(map(str, self._files))
        stdin = os.open(os.devnull, os.O_RDONLY) if self._stdin == subprocess.DEVNULL else os.dup(self._stdin)
        streams = {0: stdin, 1: log, 2: log}
        words, numbered = (*AGENT, *terms, "", numbers, *arguments), streams | {f: f for f in files}
        agent = self._script.fork(words, environ, numbered) if self._script else None
        self.warm = bool(agent) or self.warm
        agent = agent or self._standby.fork(words, environ, numbered)
        os.close(stdin)
        if agent:
            return agent
        link = self._standby.offer(environ)
        words = (*AGENT, *terms, str(link.fileno()) if link else "", numbers, *arguments)
        files = (*files, link.fileno()) if link else files
        with link or nullcontext():
            return self._run(words, environ, pass_fds=files, stdout=log, stderr=log)

    def _read(self, events: int) -> None:
        chunk = os.read(events, 65_536)
        if not chunk:
            self._selector.unregister(events)
            os.close(events)
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "started":
                self.started, self.workers = True, list(event["pids"].values())
            elif event["event"] == "left":
                self.left[event["rank"]] = event["time"]
            else:
                self.failures = event["failures"]

    @property
    def words(self) -> str:
        """What torchrun, or what spawned the workers, said in this attempt, the last 20,000 bytes of it."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._logged, log.seek(0, os.SEEK_END) - 20_000))
                return log.read().decode(errors="replace")
        except OSError:
            return ""
