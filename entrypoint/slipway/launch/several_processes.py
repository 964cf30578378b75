"""The launcher of one process, where each has its own: it waits for nobody, but tells the others where its process stands.

It does so in a file beside theirs, in a message as nodes send it over the rendezvous: as long as nothing moves in its process,
and when that has ended. The launcher of the first process that is still there judges for all, as that of node 0 does among nodes.
Nodes that do not share the run directory do not know of each other.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from slipway.launch.hangs.hang import HangReport
from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.node import Node, SingleNode
from slipway.launch.rendezvous.codec import LINE_BYTES, decode, encode, stack_dump_line
from slipway.launch.rendezvous.messages import Report, Stuck
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.topology import Topology
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.protocol.decoding import MalformedError
from slipway.protocol.durable import write_whole
from slipway.protocol.files import held_folder, node_folder, open_run_file, process_file


class SeveralProcesses(SingleNode):
    """What SeveralNodes is for the launcher of a process."""

    def __init__(self, topology: Topology, run: Path) -> None:
        """`run`: its directory."""
        self._rank, self._processes = topology.rank, topology.world_size
        self._folder = node_folder(run, 0)  # the same for all
        self.news: Outcome | None = None  # the hang with which the one that judges ended

    def join(self, job: Job, node: Node, stopped: Callable[[], bool]) -> tuple[Job, Node] | None:
        """The job and the node as they are. What a launcher of this process said in an earlier start is over."""
        self._tell(b"")
        return super().join(job, node, stopped)

    def compare(self, dumps: Sequence[StackDump] | None) -> Sequence[StackDump] | None:
        """Where all ranks stand, once all stand still or are through: for the one that judges; None for the others."""
        self._tell(stack_dump_line(dumps[0], first=True) if dumps else b"")
        found: list[StackDump] = []
        for rank in range(self._processes) if dumps else ():
            said = self._hear(rank)
            if isinstance(said, Report) and said.outcome.stacks:
                self.news = said.outcome
            elif isinstance(said, Report):
                found.append(StackDump(rank, said.outcome.node_rank, "has left"))
            elif isinstance(said, Stuck) and rank >= self._rank:
                found.append(said.dump)
            if len(found) <= rank:  # it moves, or judges itself
                return None
        return found or None

    def report(
        self,
        outcome: Outcome,
        rule: Callable[[Verdict, tuple[int, ...]], Ending],
        stopped: Callable[[], bool],
        hangs: HangReport | None = None,
    ) -> Ending:
        """The verdict on this process, or on the job where a hang ended it."""
        self._tell(encode(Report(outcome)))
        return rule(judge((self.news or outcome,)), ())

    def _tell(self, line: bytes) -> None:
        """Leave a message for the others, in place of the one before; an empty one is none."""
        with suppress(OSError), held_folder(self._folder) as folder:  # a disk that is full or away, or another node's
            file = folder / process_file(self._rank)
            if line:
                write_whole(file, line, durable=False)
            else:
                file.unlink(missing_ok=True)

    def _hear(self, rank: int) -> Report | Stuck | None:
        """What the launcher of a process says; None where it says nothing, or what makes no sense."""
        with suppress(OSError, MalformedError), open_run_file(self._folder / process_file(rank)) as file:
            said = decode(file.read(LINE_BYTES))
            if isinstance(said, Report) or (isinstance(said, Stuck) and said.dump.rank == rank):
                return said
        return None
