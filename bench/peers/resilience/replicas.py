"""The loop on torchft: each rank is a replica group of its own, which fetches the weights from the other one's memory."""

import os
from datetime import timedelta
from typing import Any

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from peers.resilience import common

rank = int(os.environ["REPLICA_GROUP_ID"])
model = common.make_model()
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)


def load(kept: dict[str, Any]) -> None:
    """Take over the other group's state."""
    model.load_state_dict(kept["model"])
    inner.load_state_dict(kept["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
    min_replica_size=1,
    replica_id=f"bench_{rank}",
    timeout=timedelta(seconds=20),
)
parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
while manager.current_step() < common.STEPS:
    step = manager.current_step()
    optimizer.zero_grad()  # starts the agreement on who takes part
    common.fail_if_asked(rank, step)
    loss = parallel(*common.batch(step, rank))
    loss.backward()
    optimizer.step()
    if manager.current_step() > step:
        common.note(rank, manager.current_step(), loss)
common.finish(rank, model)
