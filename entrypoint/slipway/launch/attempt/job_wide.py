"""What a launcher has from its first attempt to its last, and each attempt uses."""

import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Self

from slipway.launch.attempt.snapshot_memory import SnapshotMemory
from slipway.launch.attempt.warm_standby import WarmStandby
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.bookkeeping import Milestones
from slipway.launch.verdict.verdict import Outcome
from slipway.process.tree import OwnProcesses


@dataclass(frozen=True)
class JobWide:
    """What an attempt has of those before, and leaves to those after. `memory`: what outlives the workers; `standby`: what the
    next attempt is forked from, `script` together with the workers of a script; `own`: what this launcher started, as opposed to
    what was below it before; `look_on` is called at every look, and `on_hang` with the text of a hang. `silence`: the seconds
    without a sign of life after which the other nodes count this one as lost; `previous`: what ended the attempt before;
    `reached`: the highest step of all before.
    """

    memory: SnapshotMemory | None = None
    standby: WarmStandby | None = None
    script: WarmStandby | None = None
    own: OwnProcesses | None = None
    look_on: Callable[[Milestones], None] = lambda milestones: None
    on_hang: Callable[[str], None] = lambda hang: None
    silence: float = math.inf
    previous: Outcome | None = None
    reached: int = 0

    @property
    def version(self) -> tuple[int, int]:
        """Attempt and step of the newest snapshot in memory; -1 twice without one."""
        return self.memory.version if self.memory else (-1, -1)

    @classmethod
    def open(cls, job: Job, stack: ExitStack) -> Self:
        """What there is of it at the start of a job; `stack` closes it at the end."""
        own = OwnProcesses()
        memory = stack.enter_context(closing(SnapshotMemory(job)))
        standby = stack.enter_context(WarmStandby(own, wanted=job.warm))
        is_script = job.warm and not job.plan.workload.builtin
        return cls(memory, standby, stack.enter_context(WarmStandby(own, wanted=True)) if is_script else None, own)


ALONE = JobWide()  # an attempt that nothing outlasts
