"""What `slipway check` does on several nodes with torch: a short all-reduce tells who computes wrongly, and who is slow.

Started by the launcher alone, through torchrun. Writes `check.json` into the run directory, which each node has for itself.
"""

from __future__ import annotations

from typing import Any

import torch

from slipway.options import parse
from slipway.options.allreduce import ALL_REDUCE, AllreduceOptions
from slipway.protocol.files import CHECK_FILE, write_json
from slipway.protocol.outcomes import Word
from slipway.protocol.printable import counted
from slipway.train.measure.bandwidth import count_elements, find_slowest, rate_text, size_text
from slipway.train.measure.collectives import LINK_BYTES, first_of_nodes, make_buffers, time_links
from slipway.train.worker.context import Context, open_context
from slipway.train.workloads.allreduce import Findings, measure_one

BYTES = {"cuda": "256M", "cpu": "8M"}  # large enough for bandwidth to count, and not latency
CALLS = ("--iterations", "10", "--warmup-iterations", "2")


def measure_exchange(context: Context, leaders: list[int]) -> dict[str, Any]:
    """The all-reduce in words, what each node's link carries, and who stands out as slow: the index of its node.

    `leaders` are the first ranks of all nodes.
    Raises UnhealthyError on a rank that got wrong numbers, PeerError on the others.
    """
    kind, ranks, findings = context.device.type, context.place.world_size, Findings()
    options = parse(AllreduceOptions, [*CALLS, "--min-bytes", BYTES[kind], "--max-bytes", BYTES[kind]])
    elements = count_elements(ALL_REDUCE, options.min_bytes, torch.float32.itemsize, ranks)
    row = measure_one(make_buffers(ALL_REDUCE, elements, torch.float32, context), options, context, findings)
    links = time_links(context)
    own = context.gather_number(findings.own)
    straggler = find_slowest(own, links)
    best = [min((seconds for link, seconds in links.items() if rank in link), default=None) for rank in leaders]
    node = max(index for index, rank in enumerate(leaders) if rank <= straggler.rank)
    slow = {"node": node, "what": straggler.what, "text": f"rank {straggler.rank}: {straggler.text}"}
    processes = counted(ranks, "process")
    return {
        "text": f"{rate_text(row.bus)} bus bandwidth at {size_text(row.size)}, {processes}, {context.place.backend}",
        "links": [rate_text(LINK_BYTES / seconds) if seconds else "" for seconds in best],
        "slow": slow if straggler.certain else None,
    }


def main() -> None:
    """Run as a worker."""
    with open_context(abandon=True) as context:
        exchange = measure_exchange(context, first_of_nodes(context))
        if context.is_local_leader:
            write_json(context.place.run_dir / CHECK_FILE, exchange)
        context.conclude(Word.FINISHED, exchange["text"])


if __name__ == "__main__":
    main()
