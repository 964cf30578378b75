"""A launcher without torchrun, as a process: `python stub.py JSON`. It prints what a launcher says and one last JSON line.

The job after the start is a sleep of `seconds`, cut short by news of another node.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

from stage import make_info, make_outcome

from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.verdict.block import block
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.errors import LaunchError


def main(node_rank: int, nodes: int, address: str, port: int, folder: str, **more: object) -> int:
    """The exit code of a launcher."""
    info = make_info(node_rank, nodes, runtime=more.get("runtime", "host"))
    timeout = float(str(more.get("timeout", 20.0)))
    try:
        with Rendezvous(
            RendezvousConfig(
                node_rank=node_rank,
                nodes=nodes,
                address=address,
                port=port,
                timeout=timeout,
                folder=Path(folder),
                say=lambda line: print(line, flush=True),
                heartbeat=float(str(more.get("heartbeat", 30.0))),
            )
        ) as rendezvous:
            start = rendezvous.join(info)
            assert start is not None
            print(json.dumps({"start": dataclasses.asdict(start)}), flush=True)
            ended = work(rendezvous, node_rank, float(str(more.get("seconds", 0.0))))
            verdict = rendezvous.report(ended, lambda verdict, leaving: Ending(verdict)).verdict
            print("\n".join(block(verdict)), flush=True)
            return verdict.code(node_rank)
    except LaunchError as error:
        print(error, flush=True)
        return error.code


def work(rendezvous: Rendezvous, node_rank: int, seconds: float) -> Outcome:
    """Stands in for torchrun."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if news := rendezvous.news:
            return make_outcome(node_rank, "peer", evidence=f"ended because of node {news.node_rank}")
        time.sleep(0.02)
    return make_outcome(node_rank)


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
