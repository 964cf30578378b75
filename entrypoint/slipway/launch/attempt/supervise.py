"""See one attempt through on this node: pass its output on, note what happens, and end what has to end.

torchrun runs in a session of its own and ignores the signals that reach everybody (see child.py). Stops are the work of
stop_handler.py, hangs that of hang_watch.py.
"""

import math
import os
import re
import selectors
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from slipway.launch.attempt.child import Child, parent_of
from slipway.launch.attempt.ending import Facts, is_bad
from slipway.launch.attempt.gpu_events import GpuEvents
from slipway.launch.attempt.hang_watch import HangWatch
from slipway.launch.attempt.job_wide import ALONE, JobWide
from slipway.launch.attempt.stop_handler import Limits, StopHandler
from slipway.launch.attempt.stops import TICK, Due, Stops
from slipway.launch.attempt.terminal import terminal_variables
from slipway.launch.attempt.warm_standby import WarmStandby
from slipway.launch.attempt.worker_output import StandardInput, WorkerOutput
from slipway.launch.hangs.hang import HangReport
from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.bookkeeping import Milestones
from slipway.launch.run_directory.run import Run
from slipway.process.machine import MACHINE, Machine
from slipway.process.tree import OwnProcesses, open_process
from slipway.process.warm import is_forkable
from slipway.protocol.cgroups import count_ooms
from slipway.protocol.errors import MORE_PROCESSES, NO_MORE_PROCESSES, LaunchError, code_of
from slipway.protocol.files import LOGS
from slipway.protocol.imports import reason
from slipway.protocol.printable import utc

LAST_OUTPUT = 2.0  # s that we wait for output which a left-over process could still bring
ENDED_BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes, the second as shells have it
TORCHRUN_ENDS = 10.0  # s that it has once all workers have reported and are gone: it may be frozen
PLACED_THREADS = "OMP_NUM_THREADS is not set, or OpenMP places its threads itself"
NO_TORCH = "the attempt before ended before it had imported torch, or was not watched"
LONG_IMPORT = 10.0  # s without a sign of life from a worker, after which it is said what takes the time
THAWED = 5.0  # s after which having been frozen explains nothing any more


class Elsewhere(NamedTuple):
    """What ended this attempt outside of this node's workers; `gone`: a node that went away without a word; `known`: whether it
    is the first cause, and not what another node saw of that."""

    text: str
    gone: bool = False
    known: bool = False


class Attempt:
    """One attempt on this node, from start to end: the event loop. `node`: its folder; `milestones`: how far its workers came."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        limits: Limits,
        stops: Stops,
        say: Callable[[str], None],
        report: HangReport | None = None,
        job_wide: JobWide = ALONE,
        machine: Machine = MACHINE,
        start: Callable[..., Child] = Child,
    ) -> None:
        """`say` prints a line; `report` and `job_wide`: what an attempt shares with other nodes and with other attempts; `start`
        starts the workload.
        """
        self._plan, self._run, self._stops, self._say, self._job_wide = plan, run, stops, say, job_wide
        self._machine, self._start_child, topology = machine, start, plan.topology
        self.node, self._ranks, self._builtin = run.node(topology.node_rank), topology.ranks, plan.workload.builtin
        self._processes = job_wide.own or OwnProcesses()
        self._standby = job_wide.standby or WarmStandby(self._processes, wanted=False)
        self._stopping = StopHandler(plan, run, stops, limits, say, machine)
        self._hangs = HangWatch(plan, run, limits, report, say, machine)
        self._gpu_events = GpuEvents(topology.rank_gpus, machine.clock)
        self._selector = selectors.DefaultSelector()
        self._polled = self._woke = machine.clock.monotonic()
        self._next_poll = 0.0
        self.milestones = Milestones(self._polled, job_wide.reached)
        self.milestones.xids = self._gpu_events.counts
        self._lost: Elsewhere | None = None
        self._still = 0.0  # seconds for which this launcher was frozen before it found the others gone
        self._started = self._failed = self._told = False

    def supervise(self, environ: Mapping[str, str], lost: Callable[[], Elsewhere | None]) -> Facts:
        """Run the workload to its end; what was seen. `lost`: what elsewhere ended it. Raises LaunchError if it cannot start."""
        ooms = count_ooms()
        self._machine.adopt_orphans()
        try:
            child, output = self._start(environ)
        except OSError as error:
            advice = f". What helps: {MORE_PROCESSES}." if re.search(NO_MORE_PROCESSES, str(error)) else ""
            raise LaunchError(f"The workload cannot be started: {error}{advice}", code_of(error)) from None
        ended = open_process(child.process.pid)
        if ended is not None:  # else its end is noticed at the next look
            self._selector.register(ended, selectors.EVENT_READ)
        self._gpu_events.open()
        while child.process.poll() is None:
            self._wait(TICK, output)
            self._poll(child, lost)
            self._end_when_due(child)
        if ended is not None:
            self._selector.unregister(ended)
            os.close(ended)
        facts = self._finish(child, output)
        # Its workers may have ended before it woke up, and so before it polled.
        if self._still and not self._lost and (news := lost()):
            facts = replace(facts, lost=news.text)
        return replace(facts, ooms=count_ooms() - ooms)

    def _start(self, environ: Mapping[str, str]) -> tuple[Child, WorkerOutput]:
        """Start the workload, and what passes on its output. Raises OSError."""
        topology, workload, selector = self._plan.topology, self._plan.workload, self._selector
        header = f"attempt {self._run.attempt}, {utc(self._machine.clock.time())}"
        where = (self._ranks, topology.node_rank, topology.world_size == 1, self.node.path / LOGS)
        output = WorkerOutput(*where, selector, lambda: bool(self._stops.came), header, workload.builtin)
        selector.register(self._stops.reader, selectors.EVENT_READ, self._stops.drain)
        variables = self._environment(environ, output)
        self._stdin = StandardInput(selector, wanted=not (workload.builtin or workload.early) and 0 in self._ranks)
        files = (selector, header, self._stdin.file, self._standby, self._job_wide.script)
        self._variables, self._learned = variables, False
        child = self._start_child(self._plan, self.node.path, variables, output, *files)
        self._stdin.hand_on()
        if self._job_wide.script and not child.warm and self._job_wide.previous:
            why = self._job_wide.script.why or NO_TORCH
            self._say(f"attempt {self._run.attempt} starts cold: {why}")
        return child, output

    def _environment(self, environ: Mapping[str, str], output: WorkerOutput) -> dict[str, str]:
        terminal = output.console.terminal
        ours = {
            "SLIPWAY_RUN_DIR": str(self._run.path),
            "SLIPWAY_NODE_DIR": str(self.node.path),
            "SLIPWAY_SHARED_RUN_DIR": "1" if self._run.shared else "0",
            "SLIPWAY_RESUME": self._run.resume,
            "SLIPWAY_ATTEMPT": str(self._run.attempt),
            "SLIPWAY_PROGRESS": "bar" if terminal else "lines",
        }
        ours |= self._hangs.open(environ, self._selector, output)
        return {**(terminal_variables() if terminal else {}), **environ, **ours}

    def _wait(self, seconds: float, output: WorkerOutput) -> None:
        self._machine.wait(self._selector, min(seconds, output.poll()))

    def _poll(self, child: Child, lost: Callable[[], Elsewhere | None]) -> None:
        """Take note of what has happened, and pass on what the workers have to know."""
        now = self._machine.clock.monotonic()
        self._note_freeze(now)
        if child.started and not self._started:
            self._processes.find()  # remembers the workers' sessions
        self._started = child.started
        if child.failures and not self._failed:
            self._failed = True
            self._stopping.fail(child)
        if now >= self._next_poll:
            self._next_poll = now + TICK
            self._poll_closely(child, now)
        if not self._lost and (news := lost()):
            self._lost = news
            follow = "; their stacks follow" if news.gone and self._builtin else ""
            self._say(f"{news.text}: ending the processes of this node{follow}")
            self._stopping.fail(child, known=news.known, gone=news.gone)
        if self._lost:
            # As torchrun does after a failure of this node's own.
            self._stopping.signal(child.workers, signal.SIGTERM, failed=True)
            if child.workers and not any(map(self._machine.lives, child.workers)):
                self._stopping.deadline.fail(
                    now, LAST_OUTPUT
                )  # torchrun alone is left, and waits for that of the other node
        self._stopping.poll(child.workers, self._hangs.has_begun)
        ending = self._stopping.deadline.left(now) < math.inf
        self.milestones.poll(now, started=child.started, ending=ending, still=self._hangs.still)

    def _note_freeze(self, now: float) -> None:
        """Note for how long this launcher was frozen, which explains that others are gone, for a while."""
        if (gap := now - self._polled) > self._job_wide.silence / 2 and not self._lost:
            self._still, self._woke = gap, now
        elif now - self._woke > THAWED and not self._lost:
            self._still = 0.0
        self._polled = now

    def _poll_closely(self, child: Child, now: float) -> None:
        """Look at what costs more: files and processes."""
        self._stops.poll()
        self._stdin.poll()
        hung = self._hangs.seen
        self.milestones.take(self._hangs.poll(child, stopping=bool(self._stops.came)), now)
        if not hung and (hang := self._hangs.seen):
            self._stopping.deadline.hang(now)
            if self._builtin:  # else the launcher that judged has reported it
                self._job_wide.on_hang(f"hang: {hang.text}")
        self._job_wide.look_on(self.milestones)
        imported = child.started and (self.milestones.spoke or not self._builtin)
        if not (imported or self._told) and now - self.milestones.begun >= LONG_IMPORT:
            self._told = True
            self._say(
                f"importing torch, for {now - self.milestones.begun:.0f} s so far; the first time its files come from the disk"
            )
        self._prepare_next(child)
        outcomes = self.node.outcomes(self._ranks)
        # Its process may be long in coming to an end: NCCL waits for peers that are connected.
        if self._failed or any(map(is_bad, outcomes.values())):
            self._stopping.fail(child)
        elif self._builtin and len(outcomes) == len(self._ranks) and not any(map(self._machine.lives, child.workers)):
            self._stopping.deadline.fail(now, TORCHRUN_ENDS)  # it is frozen, or waits for another node's

    def _prepare_next(self, child: Child) -> None:
        """Let the process for the next attempt import what that needs, once it no longer gets in the way of this one."""
        workload = self._plan.workload
        if child.started and (not workload.builtin or self._hangs.has_begun()):
            self._standby.load(workload.command[-1] if workload.builtin and workload.early else "")
        if self._job_wide.script and not child.warm:
            self._prepare_script(self._job_wide.script)

    def _prepare_script(self, script: WarmStandby) -> None:
        """Start the process that waits as a script's next attempt, once this one's ranks have imported torch."""
        ranks = self._hangs.imports
        if script.pid is None and not self._learned and len(ranks) == len(self._ranks):
            why = PLACED_THREADS if not is_forkable(self._variables) else reason(ranks.values())
            self._learned = why is not None
            script.why = why or script.why
            if why == "":
                command = (*self._plan.workload.command, *self._plan.arguments)
                script.start_script(command, self._variables, ranks[min(ranks)])
        script.poll()
        if script.waits:
            self._standby.retire()
            if all(rank.dynamo == "" for rank in ranks.values()):
                script.load("torch._dynamo")

    def _end_when_due(self, child: Child) -> None:
        """Kill all that we started once its time is over; what hangs prints its stacks before that."""
        now, stopping = self._machine.clock.monotonic(), self._stopping
        due = stopping.deadline.due(now, impatient=self._stops.impatient)
        if due == Due.NOTHING:
            return
        stopping.seen = replace(stopping.seen, impatient=self._stops.impatient, killed=stopping.deadline.killed)
        if due == Due.STACKS and self._builtin:
            if seconds := self._hangs.ask_for_stacks(child.workers):
                stopping.deadline.wait_for_stacks(now, seconds)
            return
        self._machine.send_signal(self._processes.find(self._spared), signal.SIGKILL)

    @property
    def _spared(self) -> set[int | None]:
        """The processes that outlast this attempt."""
        return {self._standby.pid, self._job_wide.script.pid if self._job_wide.script else None}

    def _finish(self, child: Child, output: WorkerOutput) -> Facts:
        """End what is left, and return what was seen."""
        self._standby.poll()
        if self._job_wide.script:
            self._job_wide.script.poll()
        self._processes.end(self._spared)  # what outlived its worker: data loaders, a script's own children
        clock = self._machine.clock
        until = clock.monotonic() + LAST_OUTPUT
        while output.open and clock.monotonic() < until:
            self._wait(0.1, output)
        output.close()
        ended = self._hangs.close()
        self._stdin.close()
        self._selector.close()
        self.milestones.take(self._hangs.read_beats(), clock.monotonic())
        topology, stop = self._plan.topology, self._stopping.seen
        status, failures = child.process.returncode or 0, child.failures
        if topology.process and status:
            failures = [{"rank": self._ranks[0], "exitcode": status, "time": clock.time()}]
        if self._lost and not stop.word:  # those that ended by our SIGTERM are no cause
            failures = [failure for failure in failures if failure["exitcode"] not in ENDED_BY_TERM]
        return Facts(
            *(topology.node_rank, socket.gethostname(), self._builtin, self._ranks, stop, self._hangs.seen),
            lost=self._lost.text if self._lost else "",
            still=self._still,
            started=child.started,
            moved=self._hangs.has_begun() and not self._stopping.deadline.empty if self._builtin else None,
            status=status,
            failures=failures,
            left=child.left,
            last=output.last,
            printed=output.printed,
            ended=ended,
            places={rank: beat.place for rank, beat in self.node.beats(self._ranks).items()},
            xids=self._gpu_events.close(),
            agent_log=child.words,
            parent=parent_of(self._plan),
            run=self._run.path,
            device=topology.device,
            store_port=topology.store_port,
        )
