"""What a launcher has from its first attempt to its last, and each attempt uses."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from slipway.launch.attempt.memory import Memory
from slipway.launch.attempt.milestones import Milestones
from slipway.launch.attempt.spare import Spare
from slipway.launch.own_processes import OwnProcesses


@dataclass(frozen=True)
class Lasting:
    """`memory`: what outlives the workers; `spare`: what the next attempt is forked from; `own`: what this launcher started, as
    opposed to what was below it before; `look_on` is called at every look, and `hears` is told of a hang. `silence`: the seconds
    without a sign of life after which the other nodes count this one as lost.
    """

    memory: Memory | None = None
    spare: Spare | None = None
    own: OwnProcesses | None = None
    look_on: Callable[[Milestones], None] = lambda milestones: None
    hears: Callable[[str], None] = lambda hang: None
    silence: float = math.inf


ALONE = Lasting()  # an attempt that nothing outlasts
