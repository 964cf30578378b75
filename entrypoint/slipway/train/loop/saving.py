"""Snapshots of a training, by all ranks together: written to disk or into memory, resumed from, and gone back to.

Snapshots in memory outlive the training's processes (snapshots/memory_buffers.py).
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Mapping
from typing import Any

import torch

from slipway.protocol.files import snapshot_name
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase
from slipway.protocol.replicas import ReplicaDifference, read_differences, write_differences
from slipway.train.loop.arithmetic import NonFiniteError, are_finite
from slipway.train.loop.step import learning_rate
from slipway.train.loop.training import Training
from slipway.train.observe.replicas import ReplicaMismatch, ReplicasDifferError
from slipway.train.parallel.data_parallel import Shards
from slipway.train.snapshots.resume import POLL, share_snapshot
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.state import load_model, load_optimizer_state, random_states, set_random_states
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import PeerError, UnhealthyError


def save(training: Training, live: bool = False) -> None:
    """Start writing a snapshot of this step, on the ranks that write snapshots.

    `live`: no tensor changes before `wait_for_writers`, so no copy is needed. Raises, on all ranks, NonFiniteError if the
    snapshot would contain a number that is not finite, ReplicasDifferError if the replicas differ, and what
    `wait_for_writers` raises about the previous snapshot.
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
    """Whether a snapshot of this step is written to disk."""
    every = training.options.save_every
    return training.step == training.total or bool(every and training.step % every == 0)


def wait_for_writers(training: Training) -> None:
    """Return on all ranks when the snapshot in progress is written. Raises OSError, or PeerError if another rank failed.

    The ranks poll, so no rank waits in one long exchange however long the disks take.
    """
    context, writer = training.context, training.writer
    seen = -1
    while True:
        busy, failed, written = context.total(writer.wait(POLL), writer.failed, writer.written)
        if failed:
            writer.check()
            raise PeerError("another rank could not write its snapshot")
        if written > seen:  # a beat means progress
            context.beat(Phase.SAVE)
            seen = written
        if not busy:
            break
    if training.saved >= 0:
        context.progress(training.step, snapshot_name(training.saved))


def keep_in_memory(training: Training) -> None:
    """Take a snapshot of this step into memory if one is due. By all ranks; none waits for a GPU.

    The measurements that decide when the next one is due travel with the data that the ranks exchange anyway. The cost of a
    snapshot is the copying time of the slowest rank, plus the exchange time of the rank that the others wait for: the others
    would have waited as long in the next step.
    """
    rhythm, memory = training.rhythm, training.memory
    if training.step < rhythm.due:
        return
    begun = time.perf_counter()
    memory.wait()
    copying = rhythm.copying + memory.seconds if memory.usable else 0.0
    numbers = copying, rhythm.exchanging, rhythm.pace(training.step), float(memory.usable)
    ranks, [copies, exchanges, paces, usable] = gather_ranks(training, *numbers)
    training.parallel.align()
    exchanged = time.perf_counter()
    rhythm.exchanging = exchanged - begun
    if memory.usable:
        tensors, values = training.parallel.collect()
        if memory.start(describe(training, tensors, values, ranks), are_finite):
            rhythm.copying = time.perf_counter() - exchanged
    cost = max(copies) + min(exchanges) if any(copies) else 0.0
    rhythm.go_on(training.step, cost, paces[0], any(usable))


def gather_ranks(training: Training, *numbers: float) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """Return the state that differs from rank to rank, of all ranks, as it is stored; and for each of the `numbers` every rank's.

    Called by all ranks.
    """
    context = training.context
    own = {**random_states(context.device), "more": torch.tensor(numbers, dtype=torch.float64)}
    state = training.numbers.state()
    if state.is_cuda:  # a separate exchange, so that the host does not wait for the GPU
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
    """Build the snapshot of this step from what `collect` and `gather_ranks` returned."""
    state = {
        "workload": training.task.name,
        "model": dict(training.task.description),
        "data": training.task.data,
        "steps": training.total,
        "position": training.position,
        "reported": training.reported,
        "world_size": training.context.place.world_size,
        "stages": count_stages(training),
        "optimizer": values,
        "scaler": training.scaler.state_dict(),
    }
    return Snapshot(training.step, state, {**tensors, "ranks": ranks}, training.context.place.attempt)


def resume(training: Training, wanted: str) -> bool:
    """Resume from the snapshot that `wanted` means: none, auto or a path. Returns whether there was one."""
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
    if state["scaler"]:  # empty if the snapshot's precision needed no scaler
        training.scaler.load_state_dict(state["scaler"])
    training.step, training.position, training.reported = snapshot.step, state["position"], state["reported"]
    load_ranks(training, snapshot, options.seed + 1 + context.place.rank + snapshot.step)
    held = held and not (shared.in_memory and is_save_due(training))
    training.held = snapshot.step if held and not shared.in_memory else -1
    [without] = context.total(context.place.keeps_snapshots and not held)
    training.saved = -1 if without or shared.in_memory else snapshot.step
    if (
        without
    ):  # a node that lacks this snapshot gets a copy now, and so does a run that starts from another run's snapshot
        save(training)
    return True


def note_longer_schedule(training: Training, snapshot: Snapshot) -> None:
    """Say where the learning rate jumps because the schedule that the run has followed ended at another step."""
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
    """Restore this rank's own state. If world size, stages or device changed, random generators start from `seed`."""
    context, tensors = training.context, snapshot.tensors["ranks"]
    divided = snapshot.state["world_size"], snapshot.state["stages"]
    rank, same = context.place.rank, divided == (context.place.world_size, count_stages(training))
    numbers = [tensors[f"{number}.numbers"] for number in range(snapshot.state["world_size"])]
    training.numbers.load(numbers, numbers[rank] if same else None)
    kinds = {kind: tensors[f"{rank}.{kind}"] for kind in ("cpu", "cuda") if f"{rank}.{kind}" in tensors}
    if same and context.device.type in kinds:
        set_random_states(context.device, kinds)
    else:
        torch.manual_seed(seed)


def count_stages(training: Training) -> int:
    """Return how many processes the model is split over."""
    return training.task.split.stages if training.task.split else 1


def go_back(training: Training, error: NonFiniteError | ReplicasDifferError, gone_back: bool) -> None:
    """Go back to the newest snapshot, on all ranks. Raises what ends the training if that does not help.

    `gone_back`: whether this training already went back because of numbers that are not finite; they would come again.
    """
    advice = ""
    if isinstance(error, NonFiniteError):
        if gone_back:
            raise NonFiniteError(f"{error}, again after going back to a snapshot; {error.advice}") from None
        training.context.warn(f"{error}; going back to the newest snapshot, once")
        advice = f"; {error.advice}"
    else:
        record_mismatch(training.context, error.difference)
        training.verification.forget()
        training.context.say(f"{error}; going back to the newest snapshot, in which they are equal")
    wait_for_writers(training)
    training.memory.forget()  # its snapshots may be wrong already
    if not resume(training, "auto"):
        error.args = (f"{error}, and there is no snapshot to go back to{advice}",)
        raise error from None


DAY = 86_400.0  # seconds; a second wrong replica on the same node within a day is not a coincidence
UNKNOWN = "nobody knows which node"  # there are several, and no majority shows which one is wrong


def record_mismatch(context: Context, difference: ReplicaMismatch) -> None:
    """Record which node's replica was wrong, by all ranks.

    If it is the second time within a day, raises UnhealthyError on that node and PeerError on the others, or
    ReplicasDifferError if the node is unknown.
    """
    nodes = wrong_nodes(context, difference)
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
    if node_name(context) in again:
        raise UnhealthyError(f"{difference}, for the second time within a day on {node_name(context)}")
    if again:
        raise PeerError(f"the replica of {again[0]} was wrong for the second time within a day")


def wrong_nodes(context: Context, difference: ReplicaMismatch) -> list[str]:
    """Return the nodes of the ranks whose replicas are wrong; by all ranks."""
    nodes = list(dict.fromkeys(context.share_text(node_name(context), rank) for rank in difference.ranks))
    if nodes:
        return nodes
    several = len(set(context.gather_number(context.place.node_rank))) > 1
    return [UNKNOWN if several else node_name(context)]


def node_name(context: Context) -> str:
    """Return this node's name in files and messages."""
    return f"node {context.place.node_rank} ({socket.gethostname()})"
