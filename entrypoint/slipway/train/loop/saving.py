"""From a training to a snapshot and back, on all ranks together."""

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
from slipway.train.observe.replicas import Difference, ReplicasDifferError
from slipway.train.parallel.data_parallel import Shards
from slipway.train.snapshots.resume import POLL, share_snapshot
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.state import load_model, load_optimizer_state, random_states, set_random_states
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import PeerError, UnhealthyError

DAY = 86_400.0  # seconds within which a second wrong replica of one node is no chance any more
UNKNOWN = "nobody knows which node"  # where no majority tells, and there are several


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


def keep_in_memory(training: Training) -> None:
    """Take a snapshot of this step into memory where one is due. By all ranks; none waits for a GPU.

    What decides on the next one travels with what the ranks exchange for it anyway. It costs what the dearest rank's copying
    takes, and the exchange of the rank that all others wait for there: in the next step they would have waited as long.
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


def go_back(training: Training, error: NonFiniteError | ReplicasDifferError, gone_back: bool) -> None:
    """Go back to the newest snapshot, on all ranks. Raises what ends the training where that does not help.

    `gone_back`: whether this training went back already because of numbers that are not finite; those come again.
    """
    advice = ""
    if isinstance(error, NonFiniteError):
        if gone_back:
            raise NonFiniteError(f"{error}, again after going back to a snapshot; {error.advice}") from None
        training.context.warn(f"{error}; going back to the newest snapshot, once")
        advice = f"; {error.advice}"
    else:
        note(training.context, error.difference)
        training.verification.forget()
        training.context.say(f"{error}; going back to the newest snapshot, in which they are equal")
    wait_for_writers(training)
    training.memory.forget()  # what is in it may be wrong already
    if not resume(training, "auto"):
        error.args = (f"{error}, and there is no snapshot to go back to{advice}",)
        raise error from None


def note(context: Context, difference: Difference) -> None:
    """Write down which node's replica was wrong, by all ranks. Raises UnhealthyError on that node, and PeerError on the others,
    where it is the second time within a day, and ReplicasDifferError where it is, and nobody knows which.
    """
    nodes = blamed(context, difference)
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
    if own_name(context) in again:
        raise UnhealthyError(f"{difference}, for the second time within a day on {own_name(context)}")
    if again:
        raise PeerError(f"the replica of {again[0]} was wrong for the second time within a day")


def blamed(context: Context, difference: Difference) -> list[str]:
    """The nodes of the ranks whose replicas are wrong; by all ranks."""
    nodes = list(dict.fromkeys(context.share_text(own_name(context), rank) for rank in difference.ranks))
    if nodes:
        return nodes
    several = len(set(context.gather_number(context.place.node_rank))) > 1
    return [UNKNOWN if several else own_name(context)]


def own_name(context: Context) -> str:
    """This node, as files and messages call it."""
    return f"node {context.place.node_rank} ({socket.gethostname()})"
