"""From a training to a snapshot and back, on all ranks together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from slipway.protocol.files import snapshot_name
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase
from slipway.train.loop.nonfinite import NonFiniteError, are_finite
from slipway.train.loop.step import learning_rate
from slipway.train.loop.training import Training
from slipway.train.parallel.data_parallel import Shards
from slipway.train.snapshots.resume import POLL, share_snapshot
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.state import load_model, load_optimizer_state, random_states, set_random_states
from slipway.train.worker.outcome import PeerError


def save(training: Training, live: bool = False) -> None:
    """Begin to write a snapshot of this step, on the ranks that keep one.

    `live`: nothing changes before `wait_for_writers`, so it needs no copy. Raises NonFiniteError, on all ranks, where
    it would hold something that is not finite, ReplicasDifferError where the replicas are not equal, and what `wait_for_writers`
    raises about the one before.
    """
    if training.saved == training.step:
        return
    wait_for_writers(training)
    context = training.context
    training.parallel.align()
    states = (value for entries in training.task.optimizer.state.values() for value in entries.values())
    numbers = (*training.task.model.state_dict().values(), *states)
    floating = [number for number in numbers if isinstance(number, torch.Tensor) and number.is_floating_point()]
    if any(context.total(not are_finite(floating))):
        raise NonFiniteError(f"weights or optimizer are not finite at step {training.step}")
    training.verification.verify()
    tensors, values = training.parallel.collect()
    ranks, _ = gather_ranks(training)
    if context.place.keeps_snapshots and training.held != training.step:
        training.writer.start(describe(training, tensors, values, ranks), copy=not live)
    training.saved = training.step


def is_save_due(training: Training) -> bool:
    """Whether there is a snapshot of this step on the disk in the end."""
    every = training.options.save_every
    return training.step == training.total or bool(every and training.step % every == 0)


def gather_ranks(training: Training, *numbers: float) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """What differs from rank to rank, of all ranks, as it is stored; and of each of the numbers every rank's. By all ranks."""
    context = training.context
    own = {**random_states(context.device), "more": torch.tensor(numbers, dtype=torch.float64)}
    state = training.numbers.state()
    if state.is_cuda:  # where the host would have to wait for them
        rows = [
            {**row, "numbers": part}
            for row, part in zip(context.gather_named(own), context.gather_on_device(state), strict=True)
        ]
    else:
        rows = context.gather_named({**own, "numbers": state})
    more = torch.stack([row.pop("more") for row in rows])
    return {f"{rank}.{name}": part for rank, row in enumerate(rows) for name, part in row.items()}, more.T.tolist()


def describe(
    training: Training, tensors: Shards, values: dict[str, Any], ranks: Mapping[str, torch.Tensor]
) -> Snapshot:
    """The snapshot of this step, of what `collect` and `gather_ranks` brought together."""
    state = {
        "workload": training.task.name,
        "model": dict(training.task.description),
        "data": training.task.data,
        "steps": training.total,
        "position": training.position,
        "reported": training.reported,
        "world_size": training.context.place.world_size,
        "stages": stages(training),
        "optimizer": values,
        "scaler": training.scaler.state_dict(),
    }
    return Snapshot(training.step, state, {**tensors, "ranks": ranks}, training.context.place.attempt)


def wait_for_writers(training: Training) -> None:
    """Return on all ranks once the snapshot under way is there. Raises OSError, or PeerError where it failed elsewhere.

    No rank waits in one long exchange, however long the disks take.
    """
    context, writer = training.context, training.writer
    seen = -1
    while True:
        busy, failed, written = context.total(writer.wait(POLL), writer.failed, writer.written)
        if failed:
            writer.check()
            raise PeerError("another rank could not write its snapshot")
        if written > seen:  # only then does anything move
            context.beat(Phase.SAVE)
            seen = written
        if not busy:
            break
    if training.saved >= 0:
        context.progress(training.step, snapshot_name(training.saved))


def resume(training: Training, wanted: str) -> bool:
    """Go on from the snapshot that `wanted` means: none, auto or a path. Returns whether there was one."""
    context, options = training.context, training.options
    shared = share_snapshot(context, wanted, training.parallel.wants, training.memory)
    if shared is None:
        return False
    snapshot, held = shared.snapshot, shared.held
    state = snapshot.state
    if state.get("workload") != training.task.name:
        origin = f"of the workload {state['workload']}" if "workload" in state else "of a script with a loop of its own"
        raise ConfigurationError(f"The snapshot to resume from is {origin}, and this is {training.task.name}.")
    load_model(training.task.model, snapshot, training.task.description)
    if state["data"] != training.task.data:
        context.say(f"note: so far it was trained on {state['data']}, now on {training.task.data}")
    note_longer_schedule(training, snapshot)
    load_optimizer_state(
        training.task.optimizer, training.task.model, snapshot.tensors["optimizer"], state["optimizer"]
    )
    if state["scaler"]:  # else it comes from an arithmetic that needs none
        training.scaler.load_state_dict(state["scaler"])
    training.step, training.position, training.reported = snapshot.step, state["position"], state["reported"]
    load_ranks(training, snapshot, options.seed + 1 + context.place.rank + snapshot.step)
    held = held and not (shared.in_memory and is_save_due(training))
    training.held = snapshot.step if held and not shared.in_memory else -1
    [without] = context.total(context.place.keeps_snapshots and not held)
    training.saved = -1 if without or shared.in_memory else snapshot.step
    if without:  # a node without this snapshot gets its copy now, and a run that branches off its beginning
        save(training)
    return True


def note_longer_schedule(training: Training, snapshot: Snapshot) -> None:
    """Say where the learning rate jumps, since the schedule that the run followed so far ended at another step."""
    before, now, step = snapshot.state.get("steps"), training.total, snapshot.step
    if before in (None, now) or training.options.schedule == "constant":
        return
    was, becomes = (learning_rate(training.options, step, total) for total in (before, now))
    if not math.isclose(was, becomes, rel_tol=1e-3):
        training.context.say(
            f"note: so far the {training.options.schedule} schedule ended at step {before:,}, now it ends at step {now:,}: at "
            f"step {step:,} the learning rate goes from {was:.3g} to {becomes:.3g}. For a rate that stays low type --schedule "
            f"constant --lr {was:.3g}"
        )


def load_ranks(training: Training, snapshot: Snapshot, seed: int) -> None:
    """Take what this rank had; with another world size, split or device, generators begin anew from `seed`."""
    context, tensors = training.context, snapshot.tensors["ranks"]
    divided = snapshot.state["world_size"], snapshot.state["stages"]
    rank, same = context.place.rank, divided == (context.place.world_size, stages(training))
    numbers = [tensors[f"{number}.numbers"] for number in range(snapshot.state["world_size"])]
    training.numbers.load(numbers, numbers[rank] if same else None)
    kinds = {kind: tensors[f"{rank}.{kind}"] for kind in ("cpu", "cuda") if f"{rank}.{kind}" in tensors}
    if same and context.device.type in kinds:
        set_random_states(context.device, kinds)
    else:
        torch.manual_seed(seed)


def stages(training: Training) -> int:
    """Over how many processes the model is split."""
    return training.task.split.stages if training.task.split else 1
