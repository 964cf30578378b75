"""See one attempt through on this node: pass its output on, hand stops to those they are meant for, notice a hang.

torchrun runs in a session of its own and ignores the signals that reach everybody (see child.py). Slipway's workloads
get the stop flag, a user's script gets the signal itself; after the grace all that the launcher started is killed.
"""

import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slipway.launch.attempt.child import Child
from slipway.launch.attempt.ending import Facts, is_bad, is_cause_known, read_outcomes
from slipway.launch.attempt.lasting import ALONE, Lasting, Spare
from slipway.launch.attempt.stops import (
    AFTER_FAILURE,
    AFTER_FAILURE_OF_SCRIPT,
    TICK,
    Deadline,
    Due,
    Stop,
    Stops,
    raise_flag,
)
from slipway.launch.attempt.terminal import terminal_variables
from slipway.launch.attempt.worker_output import StandardInput, WorkerOutput
from slipway.launch.hangs import flight_recorder
from slipway.launch.hangs.hang import HangDetector, HangReport
from slipway.launch.hangs.standing import Standing
from slipway.launch.hangs.watch import Watch
from slipway.launch.resolve.devices import GpuUse
from slipway.launch.resolve.placement import place_gpus
from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.bookkeeping import Milestones
from slipway.launch.run_directory.heartbeats import read_beats
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.block import utc
from slipway.process.tree import (
    OwnProcesses,
    adopt_orphans,
    catches,
    has_open,
    ignores,
    lives,
    open_process,
    send_signal,
    state_of,
)
from slipway.protocol.cgroups import count_ooms
from slipway.protocol.errors import MORE_PROCESSES, NO_MORE_PROCESSES, LaunchError, code_of
from slipway.protocol.files import HEARTBEATS, HONOURS_STOP, LOGS, SNAPSHOTS, newest_step, write_json

# Tells where this launcher's ranks stand (None: they move), and returns where all ranks do once all stand still, to the one
# that judges.
Compare = Callable[[Sequence[Standing] | None], Sequence[Standing] | None]
LAST_OUTPUT = 2.0  # s that we wait for output which a left-over process could still bring
ENDED_BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes, the second as shells have it
TORCHRUN_ENDS = 10.0  # s that it has when all workers have said how they ended, and are gone
THAWED = 5.0  # s after which having been frozen explains nothing any more


class Elsewhere(NamedTuple):
    """What ended this attempt outside of this node's workers; `gone`: a node that went away without a word; `known`: whether it
    is the first cause, and not what another node saw of that."""

    text: str
    gone: bool = False
    known: bool = False


class Attempt:
    """One attempt on this node, from start to end."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        grace: float,
        hang: float,
        say: Callable[[str], None],
        stops: Stops,
        after_failure: float | None = None,
        compare: Compare | None = None,
        report: HangReport | None = None,
        reached: int = 0,
        lasting: Lasting = ALONE,
        start: float | None = None,
    ) -> None:
        """`grace`, `hang` and `after_failure` are seconds: from a stop to the end, of a phase `train` without a step (0: any),
        and from one rank's failure to the end of the others (None: as they need it). `start`: see HangDetector.

        `compare`: see there; None: the workers are not watched. `report`: what is made of what it returns.
        `reached`: the highest step of all attempts before; `lasting`: what goes on beyond this attempt.
        """
        self.plan, self.grace, self.say, self.stops, self.run = plan, grace, say, stops, run
        own = self._own = lasting.own or OwnProcesses()
        self.deadline, self.spare = Deadline(grace), lasting.spare or Spare(own, wanted=False)
        topology = plan.topology
        self.node_dir = run.node(topology.node_rank)
        self.ranks = topology.ranks
        self.facts = Facts(
            topology.node_rank,
            socket.gethostname(),
            plan.workload.own,
            self.ranks,
            run=run.path,
            device=topology.device,
            store_port=topology.store_port,
            parent="the process that spawns the workers" if plan.workload.spawned else "torchrun",
        )
        self.selector = selectors.DefaultSelector()
        self._patience = (hang, start)
        self._after_failure, self._next_look, self._looked = after_failure, 0.0, time.monotonic()
        self._woke, self._silence = self._looked, lasting.silence
        self.milestones, self._look_on = Milestones(self._looked, reached), lasting.look_on
        self._begun = (newest_step(run.path) or 0) if run.resume == "auto" else 0
        self._told: Stop | None = None
        self._pipes = flight_recorder.Pipes(self.ranks)
        self._signalled: set[int] = set()
        self._compare, self._report, self._hears = compare, report, lasting.hears
        limit = 0.0 if plan.workload.own else hang or math.inf
        self._watch = None
        if compare:
            gpus = place_gpus(topology.gpus, topology.processes_per_node)
            gpus = gpus[topology.process.local_rank :] if topology.process else gpus
            self._gpu_use = GpuUse(dict(zip(self.ranks, gpus, strict=False)))
            where, last_line = (
                (self.ranks, topology.node_rank, self.node_dir),
                lambda rank: self._output.last_line(rank),
            )
            self._watch = Watch(*where, limit, time.monotonic(), last_line, self._gpu_use, topology.process_rank)

    def supervise(self, environ: Mapping[str, str], lost: Callable[[], Elsewhere | None]) -> Facts:
        """Run the workload to its end and return what was seen. `lost` says what elsewhere ended this attempt, if so.

        Raises LaunchError where it cannot be started.
        """
        ooms = count_ooms()
        adopt_orphans()
        try:
            child, output = self._start(environ)
            self._output = output
        except OSError as error:
            advice = f". What helps: {MORE_PROCESSES}." if NO_MORE_PROCESSES.search(str(error)) else ""
            raise LaunchError(f"The workload cannot be started: {error}{advice}", code_of(error)) from None
        ended = open_process(child.process.pid)
        if ended is not None:  # else its end is noticed at the next look
            self.selector.register(ended, selectors.EVENT_READ)
        self.detector = self._new_detector(time.monotonic())
        while child.process.poll() is None:
            self._wait(TICK, output)
            self._look(child, lost)
            self._end_when_due(child)
        if ended is not None:
            self.selector.unregister(ended)
            os.close(ended)
        self._finish(child, output)
        # Its workers may have ended before it woke up, and so before it looked.
        if self.facts.still and not self.facts.lost and (news := lost()):
            self.facts.lost = news.text
        self.facts.ooms = count_ooms() - ooms
        return self.facts

    def _start(self, environ: Mapping[str, str]) -> tuple[Child, WorkerOutput]:
        """Start the workload, and what passes on its output. Raises OSError."""
        topology, logs = self.plan.topology, self.node_dir / LOGS
        header = f"attempt {self.run.attempt}, {utc(time.time())}"
        alone = topology.world_size == 1
        workload = self.plan.workload
        stopping = lambda: bool(self.stops.came)  # noqa: E731
        where = (self.ranks, topology.node_rank, alone, logs)
        output = WorkerOutput(*where, self.selector, stopping, header, workload.own)
        self.selector.register(self.stops.reader, selectors.EVENT_READ, self.stops.drain)
        told = self._environment(environ, output.console.terminal)
        self.stdin = StandardInput(self.selector, wanted=not (workload.own or workload.early) and 0 in self.ranks)
        child = Child(self.plan, self.node_dir, told, output, self.selector, header, self.stdin.file, self.spare)
        self.stdin.hand_on()
        return child, output

    def _environment(self, environ: Mapping[str, str], terminal: bool) -> dict[str, str]:
        told = {
            "SLIPWAY_RUN_DIR": str(self.run.path),
            "SLIPWAY_NODE_DIR": str(self.node_dir),
            "SLIPWAY_SHARED_RUN_DIR": "1" if self.run.shared else "0",
            "SLIPWAY_RESUME": self.run.resume,
            "SLIPWAY_ATTEMPT": str(self.run.attempt),
            "SLIPWAY_PROGRESS": "bar" if terminal else "lines",
        }
        if self._watch:
            try:
                told |= self._watch.open(environ, self.selector)
            except OSError as error:  # a sandbox without Unix sockets, say
                self._unwatched(error)
        if self.plan.topology.backend == "nccl":
            prefix = f"{self.node_dir}/{LOGS}/nccl-attempt-{self.run.attempt}-rank-"
            told |= flight_recorder.record(environ, prefix)
            # Nobody watches a script for hangs, and it may choose its groups and their ranks as it likes.
            told |= self._pipes.open(environ) if self.plan.workload.own else {}
        return {**(terminal_variables() if terminal else {}), **environ, **told}

    def _wait(self, seconds: float, output: WorkerOutput) -> None:
        for key, _ in self.selector.select(min(seconds, output.look())):
            if key.data:
                key.data()

    def _look(self, child: Child, lost: Callable[[], Elsewhere | None]) -> None:
        """Take note of what has happened, and pass on what the workers have to know."""
        facts, now = self.facts, time.monotonic()
        if (gap := now - self._looked) > self._silence / 2 and not facts.lost:
            facts.still, self._woke = gap, now
        elif now - self._woke > THAWED and not facts.lost:
            facts.still = 0.0
        self._looked = now
        if child.started and not facts.started:
            self._own.find()  # remembers the workers' sessions
        facts.started = child.started
        if child.failures and not facts.failures:
            facts.failures = child.failures
            self.deadline.fail(now, self._time_to_end(child))
        if now >= self._next_look:
            self._next_look = now + TICK
            self.stops.look()
            self.stdin.look()
            self._look_for_hang(now)
            self._look_on(self.milestones)
            self._prepare_next(child)
            try:
                self._look_at_stacks(child, now)
            except Exception as error:  # a job that runs well is not ended by who looks on
                self._unwatched(error)
            outcomes = read_outcomes(self.node_dir, self.ranks)
            # Its process may be long in coming to an end: NCCL waits for peers that are connected.
            if facts.failures or any(map(is_bad, outcomes.values())):
                self.deadline.fail(now, self._time_to_end(child))
            elif self.plan.workload.own and len(outcomes) == len(self.ranks) and not any(map(lives, child.workers)):
                self.deadline.fail(now, TORCHRUN_ENDS)  # it is frozen, or waits for another node's
        if not facts.lost and (news := lost()):
            facts.lost = news.text
            follow = "; their stacks follow" if news.gone and self.plan.workload.own else ""
            self.say(f"{news.text}: ending the processes of this node{follow}")
            self.deadline.fail(now, self._time_to_end(child, known=news.known), news.gone)
        if facts.lost:
            self._signal_script(child.workers, signal.SIGTERM)  # as torchrun does after a failure of this node's own
            if child.workers and not any(map(lives, child.workers)):
                self.deadline.fail(now, LAST_OUTPUT)  # torchrun alone is left, which waits for that of the other node
        if stop := self.stops.later or self.stops.first:
            self._pass_on(stop, child.workers)
        ending, still = self.deadline.left(now) < math.inf, self._watch.still if self._watch else 0.0
        self.milestones.look(now, started=child.started, ending=ending, still=still)

    def _look_for_hang(self, now: float) -> None:
        # A script's heartbeats, where it writes any, say nothing of what it does outside of `fit`: one that only opens a
        # context beats once, in `setup`, and works on for days.
        if not self.plan.workload.own:
            return
        beats = read_beats(self.node_dir, self.ranks)
        self.milestones.take(beats, now)
        self.detector.look(beats, now)
        if self.detector.hangs and not self.facts.hang:
            if self._can_write():
                behind = self.detector.stragglers(state_of)
                self.facts.hang, self.facts.behind = self.detector.describe(behind, state_of), behind[0].rank
                self.deadline.hang(now)
                self._hears(f"hang: {self.facts.hang}")
            else:
                self.detector = self._new_detector(now)  # no wonder that there are no heartbeats

    def _new_detector(self, now: float) -> HangDetector:
        limit, start = self._patience
        return HangDetector(self.ranks, limit, now, start)

    def _prepare_next(self, child: Child) -> None:
        """Let the process for the next attempt import what that needs, once it no longer gets in the way of this one."""
        workload = self.plan.workload
        if workload.own and self.detector.started(self._begun):
            self.spare.load(workload.command[-1] if workload.early else "")
        elif not workload.own and child.started:
            self.spare.load("")

    def _look_at_stacks(self, child: Child, now: float) -> None:
        """Tell of a script that hangs, once, and of how it goes on."""
        if not (self._watch and self._compare and self._report and child.started):
            return
        if not self._watch.look(child.workers, self._output.chunks, now):
            return
        everywhere = self._compare(self._watch.stands)
        hang = self._report.judge(everywhere, now) if not self.stops.came else None
        if hang and self._report.end:
            self.facts.hang, self.facts.behind = hang.text, next(iter(hang.ranks), None)
            self.facts.hung, self.facts.stacks = time.time(), self._report.stacks
            self.deadline.hang(now)

    def _unwatched(self, error: Exception) -> None:
        if self._watch:
            self._watch.close()
        self._watch = None
        self.say(f"warning: the workers are not watched, nor is a hang told: {type(error).__name__}: {error}")

    def _can_write(self) -> bool:
        probe = self.node_dir / HEARTBEATS / "probe"
        try:
            write_json(probe, {"probe": "x" * 4096})
            probe.unlink()
        except OSError:
            return False
        return True

    def _pass_on(self, stop: Stop, workers: list[int]) -> None:
        """Tell the workers of a stop. A later one asks for haste: a script gets it, too, and ours are stopping already."""
        if stop != self._told:
            again, self._told, self._signalled = self._told is not None, stop, set()
            if not again:
                self.facts.stop, self.facts.signal = self.stops.word, stop.name
                self._begin_to_stop(stop, time.monotonic())
            else:
                left = self.deadline.left(time.monotonic())
                self.say(f"{stop.name} received: stopping already, at most {left:.0f} s are left")
            self.facts.numbers = (*self.facts.numbers, stop.number)
            if disk := raise_flag(self.node_dir, stop):
                self.facts.disk = disk
                self.deadline.give_up(time.monotonic())
        self._signal_script(workers, stop.number)

    def _begin_to_stop(self, stop: Stop, now: float) -> None:
        """Start the grace, or end at once what took no step yet: a start takes longer than `docker stop` waits."""
        self.deadline.stop(now)
        if not self.plan.workload.own:
            return self.say(f"{stop.name} received: stopping, the script has at most {self.grace:.0f} s to end")
        self.detector.look(read_beats(self.node_dir, self.ranks), now)
        if self.detector.started(self._begun):
            return self.say(f"{stop.name} received: stopping, at most {self.grace:.0f} s for the snapshot")
        self.deadline.nothing_to_save(now)
        return self.say(
            f"{stop.name} received: stopping at once, since no step was taken yet and there is nothing to save"
        )

    @property
    def _handles_signals(self) -> bool:
        """Whether the workers are a user's script that has not asked for the stop flag."""
        return not self.plan.workload.own and not os.path.exists(self.node_dir / HONOURS_STOP)  # noqa: PTH110  # on NFS Path.exists raises ESTALE

    def _time_to_end(self, child: Child, *, known: bool = False) -> float:
        """Seconds that the other ranks have once one failed. `known`: another node said what the first cause was.

        Of ours nothing is needed then but a snapshot that one of them is writing, with its folder open all the while, and what
        they say of the first cause, as long as nobody knows that.
        """
        if self._after_failure is not None:
            return self._after_failure
        if self._handles_signals:
            return AFTER_FAILURE_OF_SCRIPT
        if not self.plan.workload.own:
            return AFTER_FAILURE
        outcomes = read_outcomes(self.node_dir, self.ranks)
        if not (known or is_cause_known(outcomes, child.failures)):
            return AFTER_FAILURE
        snapshots = (self.run.path / SNAPSHOTS).resolve()
        return AFTER_FAILURE if any(has_open(pid, snapshots) for pid in child.workers) else 0.0

    def _signal_script(self, workers: list[int], number: signal.Signals) -> None:
        """Signal each worker of a user's script once."""
        if self._handles_signals:
            # A worker that is just being started still ignores the signal, and it would be lost.
            ready = [pid for pid in workers if pid not in self._signalled and not ignores(pid, number)]
            send_signal(ready, number)
            self._signalled.update(ready)

    def _end_when_due(self, child: Child) -> None:
        """Kill all that we started once its time is over; what hangs prints its stacks before that."""
        now, impatient = time.monotonic(), self.stops.impatient
        due = self.deadline.due(now, impatient=impatient)
        if due == Due.NOTHING:
            return
        self.facts.impatient, self.facts.killed = impatient, self.deadline.killed
        if due == Due.STACKS and self.plan.workload.own:
            asked = [pid for pid in child.workers if catches(pid, signal.SIGUSR2)]
            send_signal(asked, signal.SIGUSR2)
            if self._pipes.ask():
                self.facts.recorded = True
                self.deadline.wait_for_stacks(now, flight_recorder.DUMP_SECONDS)
            elif asked:
                self.deadline.wait_for_stacks(now)
            return
        send_signal(self._own.find({self.spare.pid}), signal.SIGKILL)

    def _finish(self, child: Child, output: WorkerOutput) -> None:
        self.spare.look()
        self._own.end({self.spare.pid})  # what outlived its worker: data loaders, a script's own children
        until = time.monotonic() + LAST_OUTPUT
        while output.open and time.monotonic() < until:
            self._wait(0.1, output)
        output.close()
        if self._watch:
            self.facts.ended = self._watch.close()
            self._gpu_use.close()
        if self._report:
            self._report.forget()
        self.stdin.close()
        self.selector.close()
        self._pipes.close()
        facts = self.facts
        facts.status, facts.failures, facts.started = child.process.returncode or 0, child.failures, child.started
        facts.last, facts.printed, facts.agent_log = output.last, output.printed, child.words
        facts.left = child.left
        beats, now = read_beats(self.node_dir, self.ranks), time.monotonic()
        facts.places = {rank: beat.place for rank, beat in beats.items()}
        if self.plan.topology.process and facts.status:
            facts.failures = [{"rank": self.ranks[0], "exitcode": facts.status, "time": time.time()}]
        if facts.lost and not facts.stop:  # those that ended by our SIGTERM are no cause
            facts.failures = [failure for failure in facts.failures if failure["exitcode"] not in ENDED_BY_TERM]
        if self.plan.workload.own:
            self.milestones.take(beats, now)
            self.detector.look(beats, now)
            facts.moved = self.detector.started(self._begun) and not self.deadline.empty
