"""What a training does once it finds that it went wrong: it goes back to the newest snapshot, if that may help."""

from __future__ import annotations

import json
import socket
import time

from slipway.protocol.replicas import ReplicaDifference, read_differences, write_differences
from slipway.train.loop.nonfinite import NonFiniteError
from slipway.train.loop.saving import resume, wait_for_writers
from slipway.train.loop.training import Training
from slipway.train.parallel.replicas import Difference, ReplicasDifferError
from slipway.train.worker.context import Context
from slipway.train.worker.outcome import PeerError, UnhealthyError

DAY = 86_400.0  # seconds within which a second wrong replica of one node is no chance any more
UNKNOWN = "nobody knows which node"  # where no majority tells, and there are several


def go_back(training: Training, error: NonFiniteError | ReplicasDifferError, gone_back: bool) -> None:
    """Go back to the newest snapshot, on all ranks. Raises what ends the training where that does not help.

    `gone_back`: whether this training went back already because of numbers that are not finite; those come again.
    """
    advice = ""
    if isinstance(error, NonFiniteError):
        if gone_back:
            raise NonFiniteError(f"{error}, again after going back to a snapshot; {error.advice}") from None
        training.context.warn(f"{error}; going back to the newest snapshot, once")
        advice = f"; {error.advice}"
    else:
        note(training.context, error.difference)
        training.verification.forget()
        training.context.say(f"{error}; going back to the newest snapshot, in which they are equal")
    wait_for_writers(training)
    training.memory.forget()  # what is in it may be wrong already
    if not resume(training, "auto"):
        error.args = (f"{error}, and there is no snapshot to go back to{advice}",)
        raise error from None


def note(context: Context, difference: Difference) -> None:
    """Write down which node's replica was wrong, by all ranks. Raises UnhealthyError on that node, and PeerError on the others,
    where it is the second time within a day, and ReplicasDifferError where it is, and nobody knows which.
    """
    nodes = blamed(context, difference)
    again: list[str] = []
    if context.place.rank == 0:
        now, earlier = time.time(), read_differences(context.place.run_dir)
        recent = {node for each in earlier if 0 <= now - each.time < DAY for node in each.nodes}
        again = [node for node in nodes if node in recent]
        new = ReplicaDifference(now, context.outcome.step, tuple(nodes), str(difference))
        write_differences(context.place.run_dir, [*earlier, new])
    again = json.loads(context.share_text(json.dumps(again)))
    if UNKNOWN in again:
        text = f"{difference}, for the second time within a day; `slipway check` on each node alone may tell which"
        raise ReplicasDifferError(text, difference)
    if own_name(context) in again:
        raise UnhealthyError(f"{difference}, for the second time within a day on {own_name(context)}")
    if again:
        raise PeerError(f"the replica of {again[0]} was wrong for the second time within a day")


def blamed(context: Context, difference: Difference) -> list[str]:
    """The nodes of the ranks whose replicas are wrong; by all ranks."""
    nodes = list(dict.fromkeys(context.share_text(own_name(context), rank) for rank in difference.ranks))
    if nodes:
        return nodes
    several = len(set(context.gather_number(context.place.node_rank))) > 1
    return [UNKNOWN if several else own_name(context)]


def own_name(context: Context) -> str:
    """This node, as files and messages call it."""
    return f"node {context.place.node_rank} ({socket.gethostname()})"
