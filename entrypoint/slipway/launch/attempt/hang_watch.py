"""How an attempt notices a hang: Slipway's workloads by their heartbeats, whatever runs by the stacks of all ranks."""

import math
import selectors
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slipway.launch.attempt.child import Child
from slipway.launch.attempt.ending import HangSeen
from slipway.launch.attempt.gpu_use import GpuUse
from slipway.launch.attempt.stop_handler import Limits
from slipway.launch.attempt.stops import STACKS
from slipway.launch.attempt.worker_output import WorkerOutput
from slipway.launch.hangs import flight_recorder
from slipway.launch.hangs.hang import HangDetector, HangReport
from slipway.launch.hangs.watch import Watch
from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.node_directory import Beat
from slipway.launch.run_directory.run import Run
from slipway.process.machine import Machine
from slipway.protocol.files import HEARTBEATS, LOGS, write_json
from slipway.protocol.imports import Imports
from slipway.protocol.tracebacks import ProgramEnd


class HangWatch:
    """The hang watching of one attempt. `seen`: the hang, once there is one."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        limits: Limits,
        report: HangReport | None,
        say: Callable[[str], None],
        machine: Machine,
    ):
        """`report` judges where the ranks stand; None: they are not watched. `say` prints a line."""
        topology = plan.topology
        self._plan, self._run, self._limits, self._report, self._say = plan, run, limits, report, say
        self._machine, self._node, self._ranks = machine, run.node(topology.node_rank), topology.ranks
        self._begun = (run.newest_step or 0) if run.resume == "auto" else 0
        self._pipes = flight_recorder.Pipes(self._ranks)
        self.seen: HangSeen | None = None
        self._watch: Watch | None = None
        self._detector = self._detect()
        if report:
            self._gpu_use = GpuUse(topology.rank_gpus)
            limit, where = (
                0.0 if plan.workload.builtin else limits.hang or math.inf,
                (topology.node_rank, self._node.path),
            )
            now, last_line = machine.clock.monotonic(), lambda rank: self._output.last_line(rank)
            self._watch = Watch(self._ranks, *where, limit, now, last_line, self._gpu_use, topology.process_rank)

    def open(
        self, environ: Mapping[str, str], selector: selectors.BaseSelector, output: WorkerOutput
    ) -> dict[str, str]:
        """The variables that the workers of this `output` need to be watched."""
        variables, self._output = dict[str, str](), output
        if self._watch:
            try:
                variables |= self._watch.open(environ, selector)
            except OSError as error:  # a sandbox without Unix sockets, say
                self._give_up(error)
        if self._plan.topology.backend == "nccl":
            prefix = f"{self._node.path}/{LOGS}/nccl-attempt-{self._run.attempt}-rank-"
            variables |= flight_recorder.record(environ, prefix)
            # A script is not watched for hangs in this way, and it may choose its groups and their ranks freely.
            variables |= self._pipes.open(environ) if self._plan.workload.builtin else {}
        return variables

    def poll(self, child: Child, *, stopping: bool) -> Mapping[int, Beat]:
        """Look at the ranks; returns the newest heartbeats, of a workload of ours."""
        beats = self.read_beats()
        if self._plan.workload.builtin and self._detector.hangs and not self.seen:
            if self._can_write():
                late, state_of = self._detector.stragglers(self._machine.state_of), self._machine.state_of
                self.seen = HangSeen(self._detector.describe(late, state_of), late[0].rank)
            else:
                self._detector = self._detect()  # no wonder that there are no heartbeats
        try:
            self._poll_stacks(child, stopping)
        except Exception as error:  # watching must not end a job that runs well
            self._give_up(error)
        return beats

    def read_beats(self) -> Mapping[int, Beat]:
        """Take the newest heartbeats. Those of a script, where it writes any, say nothing of what it does outside of `fit`: one
        that only opens a context beats once, in `setup`, and works on for days."""
        beats = self._node.beats(self._ranks) if self._plan.workload.builtin else {}
        self._detector.poll(beats, self._machine.clock.monotonic())
        return beats

    def has_begun(self) -> bool:
        """Whether a rank of ours took a step in this attempt."""
        self.read_beats()
        return self._detector.started(self._begun)

    def _detect(self) -> HangDetector:
        return HangDetector(self._ranks, self._limits.hang, self._machine.clock.monotonic(), self._limits.start)

    def _can_write(self) -> bool:
        probe = self._node.path / HEARTBEATS / "probe"
        try:
            write_json(probe, {"probe": "x" * 4096})
            probe.unlink()
        except OSError:
            return False
        return True

    def _poll_stacks(self, child: Child, stopping: bool) -> None:
        """Report a script that hangs, once, and what happens then."""
        now, report = self._machine.clock.monotonic(), self._report
        if not (self._watch and report and child.started):
            return
        if not self._watch.poll(child.workers, self._output.chunks, now):
            return
        everywhere = report.compare(self._watch.dumps)
        hang = report.judge(everywhere, now) if not stopping else None
        if hang and report.end:
            rank, stacks = next(iter(hang.ranks), None), report.stacks
            self.seen = HangSeen(hang.text, rank, self._machine.clock.time(), stacks)

    def _give_up(self, error: Exception) -> None:
        if self._watch:
            self._watch.close()
        self._watch = None
        self._say(f"warning: the workers have no watcher, and hangs are not reported: {type(error).__name__}: {error}")

    @property
    def still(self) -> float:
        """Seconds for which nothing moves by now, as far as it is watched."""
        return self._watch.still if self._watch else 0.0

    @property
    def imports(self) -> Mapping[int, Imports]:
        """How the ranks of a script imported torch, of those that are watched."""
        return self._watch.imports if self._watch else {}

    def ask_for_stacks(self, workers: Sequence[int]) -> float:
        """Let workers of ours that hang print their stacks; returns the seconds that they have for it."""
        asked = [pid for pid in workers if self._machine.catches(pid, signal.SIGUSR2)]
        self._machine.send_signal(asked, signal.SIGUSR2)
        if self._pipes.ask():
            self.seen = replace(self.seen, recorded=True) if self.seen else None
            return flight_recorder.DUMP_SECONDS
        return STACKS if asked else 0.0

    def close(self) -> Mapping[int, ProgramEnd]:
        """Stop watching. Returns what the watcher of each rank reported when that rank ended."""
        ended: Mapping[int, ProgramEnd] = {}
        if self._watch:
            ended = self._watch.close()
            self._gpu_use.close()
        if self._report:
            self._report.forget()
        self._pipes.close()
        return ended
