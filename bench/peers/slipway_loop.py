"""`slipway gpt` with everything that a job has: heartbeat, stop flag, metrics, charts, reports and the snapshot at the end."""

from __future__ import annotations

import os

import torch

from peers.plan import Plan, read_plan
from peers.turns import Turns
from slipway.options import parse
from slipway.options.gpt import GptOptions
from slipway.train.loop.fit import fit
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import leave_group, open_group, read_place
from slipway.train.workloads.gpt import make_task


class InTurns(Context):
    """Training's place in its job, where it waits for its turn."""

    turns: Turns
    last: int

    def progress(self, step: int, snapshot: str | None = None) -> None:
        """What a step calls last, and a snapshot as well."""
        super().progress(step, snapshot)
        if snapshot is None and self.turns.step_ended() and step < self.last:
            self.turns.begin()


def words(plan: Plan) -> str:
    """What one types for the plan; evaluation and snapshot come at the end alone, as on the other sides."""
    size = plan.size
    return (
        f"--preset tiny --layers {size.layers} --heads {size.heads} --embed {size.embed} --context {size.context} "
        f"--vocab-size {size.vocab_size} --batch-size-per-process {size.batch * size.parts} --accumulate {size.parts} "
        f"--steps {plan.steps} --lr {plan.lr} --warmup {plan.warmup} --schedule cosine --clip {plan.clip} "
        f"--weight-decay {plan.weight_decay} --precision {plan.precision} --seed {plan.seed} --log-every {plan.log_every} "
        "--save-every 0 --eval-every 0 --sample-tokens 0"
    )


def train(plan: Plan) -> None:
    """Train in turns, and tell the loss."""
    place = read_place(os.environ)
    heartbeat = Heartbeat(place.node_dir / "heartbeat" / f"rank-{place.rank}.json")
    device = torch.device("cpu")
    context = InTurns(place, device, open_group(place, device), heartbeat)
    context.turns, context.last = Turns(plan.block), plan.steps
    options = parse(GptOptions, words(plan).split())
    task = make_task(options, context)
    context.turns.begin()
    result = fit(task, options, context)
    context.turns.tell(result.evaluation["val_loss"])
    context.close()


def main() -> None:
    """Run as a worker."""
    train(read_plan(os.environ))
    leave_group()


if __name__ == "__main__":
    main()
