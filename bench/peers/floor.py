"""What no loop can do without: forward and backward of the model on ready batches, and the matrix products in them.

Nothing is exchanged between the processes, no weight changes. Each takes a quarter of the steps that the other sides take
in a turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from peers.plan import Plan, Size, read_plan
from peers.training import arithmetic, ours
from peers.turns import Turns


def make_step(plan: Plan) -> Callable[[], None]:
    """Forward and backward of Slipway's model over the parts of a step."""
    model, size = ours(plan), plan.size
    precision = arithmetic(plan)
    windows = torch.randint(size.vocab_size, (size.batch, size.context + 1))

    def step() -> None:
        for _ in range(size.parts):
            with precision.autocast():
                loss = model(windows[:, :-1], windows[:, 1:])
            loss.backward()
        model.zero_grad()

    return step


def make_products(plan: Plan) -> Callable[[], None]:
    """The matrix products of such a step, of those layers that hold the weights: attention's own are left out."""
    size, dtype = plan.size, torch.bfloat16 if arithmetic(plan).name == "bf16" else torch.float32
    rows = size.batch * size.context
    made = [
        (torch.randn(rows, wide, dtype=dtype), torch.randn(out, wide, dtype=dtype), torch.randn(rows, out, dtype=dtype))
        for wide, out in shapes(size)
    ]

    def products() -> None:
        for _ in range(size.parts):
            for inputs, weights, gradient in made:
                inputs @ weights.t()
                gradient @ weights
                gradient.t() @ inputs

    return products


def shapes(size: Size) -> list[tuple[int, int]]:
    """Width and output of each matrix, in all layers and at the end."""
    wide = size.embed
    return [(wide, 3 * wide), (wide, wide), (wide, 4 * wide), (4 * wide, wide)] * size.layers + [
        (wide, size.vocab_size)
    ]


def main() -> None:
    """Tell in what precision all sides train, and take as many turns as they do."""
    plan = read_plan(os.environ)
    dist.init_process_group("gloo")
    sides = [make_step(plan), make_products(plan)]
    turns = Turns(plan.block)
    turns.tell(arithmetic(plan).name)
    for _ in range(plan.steps // plan.block):
        turns.begin()
        turns.tell([measure(side, max(1, plan.block // 4)) for side in sides])
    dist.destroy_process_group()


def measure(side: Callable[[], None], times: int) -> tuple[float, float]:
    """Wall and CPU seconds of one time, when all processes do it at once."""
    dist.barrier()
    wall, begun = time.perf_counter(), time.process_time()
    for _ in range(times):
        side()
    dist.barrier()
    cpu = torch.tensor([time.process_time() - begun])
    wall = time.perf_counter() - wall
    dist.all_reduce(cpu)
    return wall / times, float(cpu) / times


if __name__ == "__main__":
    main()
