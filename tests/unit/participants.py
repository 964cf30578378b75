"""Who takes part in a job, made up: a launcher's info, and how the run ended on a node."""

import time
from typing import Any

from slipway.launch.rendezvous.messages import NodeInfo
from slipway.launch.verdict.cause import said
from slipway.launch.verdict.verdict import Outcome


def make_info(node_rank: int, nodes: int | str, **changes: Any) -> NodeInfo:
    """A plausible launcher's info."""
    fields: dict[str, Any] = {
        "node_rank": node_rank,
        "nodes": str(nodes),
        "host": f"host{node_rank}",
        "workload": "linear",
        "arguments": ("--epochs", "2"),
        "processes": 2,
        "backend": "gloo",
        "version": "0.1.0",
        "torch": "2.10.0+cu128",
        "run": f"linear-of-{node_rank}",
    }
    return NodeInfo(**fields | changes)


def make_outcome(node_rank: int, word: str = "finished", **changes: Any) -> Outcome:
    """How the run ended on a node, just now."""
    fields: dict[str, Any] = {"node_rank": node_rank, "host": f"host{node_rank}", "word": word, "time": time.time()}
    if evidence := changes.pop("evidence", ""):
        fields["cause"] = said(evidence)
    return Outcome(**fields | changes)
