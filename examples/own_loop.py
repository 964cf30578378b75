"""A loop of your own with Slipway's helpers: who we are, the order of the samples, snapshots, and leaving when asked to.

slipway examples/own_loop.py --steps 100000       # Ctrl-C, `slipway stop` or SIGTERM: saves, and says so in its exit code
slipway run --resume auto examples/own_loop.py --steps 200000

With `fit` (own_task.py) all of this is done; a loop of your own is for what `fit` does not do.
"""

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway.train import Context, Sampler, Snapshot, load_newest, open_context, save_snapshot

BATCH = 64  # samples per step, all processes together


def train(context: Context, steps: int) -> None:
    """Train a linear layer; model and DDP are gone when this returns."""
    place, folder = context.place, context.place.run_dir / "snapshots"
    torch.manual_seed(0)
    inputs = torch.randn(4096, 20, device=context.device)
    labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
    model: nn.Module = nn.Linear(20, 1).to(context.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, word = 0, None
    # Every rank reads, so all machines must see the run directory.
    if found := load_newest(folder, context.warn):
        path, snapshot = found
        model.load_state_dict(snapshot.tensors["model"])
        step = snapshot.step
        context.say(f"resuming from {path}")
    parallel = DistributedDataParallel(model) if place.world_size > 1 else model
    sampler = Sampler(len(inputs), seed=0)
    while step < steps:
        word, _ = context.agree()  # None, `stopped` or `cancelled`: the same on all ranks
        if word:
            break
        # An endless stream of samples, epoch after epoch; each rank takes its share of the next ones.
        mine = torch.from_numpy(sampler.indices(step * BATCH, BATCH)[place.rank :: place.world_size]).to(context.device)
        loss = nn.functional.binary_cross_entropy_with_logits(parallel(inputs[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        if step % 200 == 0:
            context.say(f"step {step} of {steps}: loss {loss.item():.4f}")
    if place.rank == 0:
        save_snapshot(folder, Snapshot(step, state={}, tensors={"model": model.state_dict()}), keep=2)
    context.wait_for_all()
    context.progress(step)
    context.conclude(word or "finished", f"{word or 'finished'} at step {step}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    with open_context() as context:
        train(context, parser.parse_args().steps)
