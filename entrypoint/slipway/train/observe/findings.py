"""What follows where replicas differ or a rank computes wrongly: it is recorded, and a node that is named twice is unhealthy."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence

from slipway.protocol.replicas import FindingKind, ReplicaDifference, read_differences, write_differences
from slipway.train.observe.replay import WrongArithmeticError
from slipway.train.observe.replicas import ReplicasDifferError
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import PeerError, UnhealthyError

DAY = 86_400.0  # seconds; a second wrong replica on the same node within a day is not a coincidence
UNKNOWN = "the node is unknown"  # there are several, and no majority shows which one is wrong


def record_finding(context: Context, error: ReplicasDifferError | WrongArithmeticError) -> None:
    """Record which node was wrong, by all ranks.

    If that is proven, or the second time within a day, raises UnhealthyError on that node and PeerError on the others, or an
    error like the given one if the node is unknown.
    """
    difference = error.difference
    nodes = wrong_nodes(context, difference.ranks)
    again: list[str] = []
    if context.place.rank == 0:
        now, earlier = time.time(), read_differences(context.place.run_dir)
        recent = {host_in(node) for each in earlier if 0 <= now - each.time < DAY for node in each.nodes}
        again = [node for node in nodes if host_in(node) in recent]
        kind = FindingKind.ARITHMETIC if isinstance(error, WrongArithmeticError) else FindingKind.DRIFT
        new = ReplicaDifference(now, context.outcome.step, tuple(nodes), str(difference), kind)
        write_differences(context.place.run_dir, [*earlier, new])
    again = json.loads(context.share_text(json.dumps(again)))
    wrong = nodes if isinstance(error, WrongArithmeticError) and error.proven else again
    if UNKNOWN in wrong:
        text = f"{difference}, for the second time within a day; `slipway check --burn 60` on each node may tell which"
        error.args = (text,)
        raise error
    often = f", for the second time within a day on {node_name(context)}" if node_name(context) in again else ""
    if node_name(context) in wrong:
        raise UnhealthyError(f"{difference}{often}") from None  # it says all that the given error says
    if wrong:
        raise PeerError(f"{wrong[0]} computed or stored a wrong value: {difference}") from None


def was_found(context: Context) -> bool:
    """Return whether a rank was found to compute wrongly earlier in this run; by all ranks."""
    earlier = read_differences(context.place.run_dir) if context.place.rank == 0 else []
    return any(context.gather_number(any(each.kind == FindingKind.ARITHMETIC for each in earlier)))


def wrong_nodes(context: Context, ranks: Sequence[int]) -> list[str]:
    """Return the nodes of the ranks that are wrong; by all ranks."""
    nodes = list(dict.fromkeys(context.share_text(node_name(context), rank) for rank in ranks))
    if nodes:
        return nodes
    several = len(set(context.gather_number(context.place.node_rank))) > 1
    return [UNKNOWN if several else node_name(context)]


def node_name(context: Context) -> str:
    """Return this node's name in files and messages."""
    return f"node {context.place.node_rank} ({socket.gethostname()})"


def host_in(node: str) -> str:
    """Return the host in a name that `node_name` made, since the numbers of nodes change from attempt to attempt, else `node`."""
    return node.partition(" (")[2].removesuffix(")") or node
