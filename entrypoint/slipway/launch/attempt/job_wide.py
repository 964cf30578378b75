"""What a launcher has from its first attempt to its last, and each attempt uses."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from slipway.launch.attempt.snapshot_memory import SnapshotMemory
from slipway.launch.attempt.warm_standby import WarmStandby
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


ALONE = JobWide()  # an attempt that nothing outlasts
