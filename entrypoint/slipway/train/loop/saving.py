"""What the snapshots of a training contain, how it resumes from one, and how it goes back to one.

snapshots/job.py writes and finds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.arithmetic import NonFiniteError, are_finite
from slipway.train.loop.step import learning_rate
from slipway.train.loop.training import Training
from slipway.train.observe.findings import record_finding
from slipway.train.observe.replay import WrongArithmeticError
from slipway.train.observe.replicas import ReplicasDifferError
from slipway.train.parallel.data_parallel import Shards
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.state import load_model, load_optimizer_state, load_random_states, versions_of


@dataclass
class TrainingContents:
    """What a snapshot of a training contains (see Contents)."""

    training: Training

    @property
    def number(self) -> int:
        """See Contents."""
        return self.training.step

    @property
    def mark(self) -> int:
        """See Contents."""
        return self.training.step

    def align(self) -> None:
        """See Contents."""
        self.training.parallel.align()

    def require_sound(self) -> None:
        """Raise NonFiniteError for a number that is not finite, ReplicasDifferError for replicas that differ."""
        task, context = self.training.task, self.training.context
        states = (value for entries in task.optimizer.state.values() for value in entries.values())
        numbers = (*task.model.state_dict().values(), *states)
        floating = [number for number in numbers if isinstance(number, torch.Tensor) and number.is_floating_point()]
        if any(context.total(not are_finite(floating))):
            raise NonFiniteError(f"weights or optimizer are not finite at step {self.training.step}")
        self.training.verification.verify()

    def of_rank(self) -> Mapping[str, torch.Tensor]:
        """See Contents."""
        return {"numbers": self.training.numbers.state()}

    def collect(self) -> tuple[Shards, dict[str, Any]]:
        """See Contents."""
        training = self.training
        tensors, values = training.parallel.collect()
        return tensors, {
            "workload": training.task.name,
            "model": dict(training.task.description),
            "versions": versions_of(training.task.model),
            "data": training.task.data,
            "steps": training.total,
            "position": training.position,
            "reported": training.reported,
            "stages": count_stages(training),
            "optimizer": values,
            "scaler": training.scaler.state_dict(),
            **training.replays.state(),
        }


def save(training: Training, live: bool = False) -> None:
    """Start writing a snapshot of this step (see JobSnapshots.save)."""
    training.snapshots.save(TrainingContents(training), live)


def is_save_due(training: Training) -> bool:
    """Whether a snapshot of this step is written to disk."""
    every = training.options.save_every
    return training.step == training.total or bool(every and training.step % every == 0)


def wait_for_writers(training: Training) -> None:
    """Return on all ranks when the snapshot in progress is written (see JobSnapshots.wait)."""
    training.snapshots.wait(training.step)


def keep_in_memory(training: Training) -> None:
    """Take a snapshot of this step into memory if one is due (see JobSnapshots.keep_in_memory)."""
    training.snapshots.keep_in_memory(TrainingContents(training))


def resume(training: Training, wanted: str) -> bool:
    """Resume from the snapshot that `wanted` means: none, auto or a path. Returns whether there was one."""
    context, options = training.context, training.options
    found = training.snapshots.find(wanted, training.parallel.wants)
    if found is None:
        return False
    snapshot = found.snapshot
    state = snapshot.state
    if state.get("workload") != training.task.name:
        origin = f"of the workload {state['workload']}" if "workload" in state else "of a script with a loop of its own"
        raise ConfigurationError(f"The snapshot to resume from is {origin}, but this job runs {training.task.name}.")
    load_model(training.task.model, snapshot, training.task.description)
    if state["data"] != training.task.data:
        context.say(f"note: this run was trained on {state['data']} so far, and continues on {training.task.data}")
    note_longer_schedule(training, snapshot)
    load_optimizer_state(
        training.task.optimizer, training.task.model, snapshot.tensors["optimizer"], state["optimizer"]
    )
    if state["scaler"]:  # empty if the snapshot's precision needed no scaler
        training.scaler.load_state_dict(state["scaler"])
    training.step, training.position, training.reported = snapshot.step, state["position"], state["reported"]
    load_ranks(training, snapshot, options.seed + 1 + context.place.rank + snapshot.step)
    training.replays.resume(snapshot.step, state)
    training.snapshots.settle(found, TrainingContents(training), is_save_due(training))
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
            f"step {step:,} the learning rate goes from {was:.3g} to {becomes:.3g}. To keep the low rate, type --schedule "
            f"constant --lr {was:.3g}"
        )


def load_ranks(training: Training, snapshot: Snapshot, seed: int) -> None:
    """Restore this rank's own state. If world size, stages or device changed, random generators start from `seed`."""
    context, tensors = training.context, snapshot.tensors["ranks"]
    divided = snapshot.state["world_size"], snapshot.state["stages"]
    rank, same = context.place.rank, divided == (context.place.world_size, count_stages(training))
    numbers = [tensors[f"{number}.numbers"] for number in range(snapshot.state["world_size"])]
    training.numbers.load(numbers, numbers[rank] if same else None)
    load_random_states(context.device, tensors, rank if same else None, seed)


def count_stages(training: Training) -> int:
    """Return how many processes the model is split over."""
    return training.task.split.stages if training.task.split else 1


def go_back(
    training: Training, error: NonFiniteError | ReplicasDifferError | WrongArithmeticError, gone_back: bool
) -> None:
    """Go back to a snapshot, on all ranks. Raises what ends the training if that does not help.

    `gone_back`: whether this training already went back because of numbers that are not finite; they would come again.
    """
    advice, context, replays = "", training.context, training.replays
    if isinstance(error, NonFiniteError):
        if gone_back:
            raise NonFiniteError(f"{error}, again after a return to a snapshot; {error.advice}") from None
        context.warn(f"{error}; returning to the newest snapshot, once")
        advice = f"; {error.advice}"
    elif isinstance(error, ReplicasDifferError):
        record_finding(context, error)
        context.say(f"{error}; returning to the newest snapshot, in which the replicas are equal")
    training.verification.forget()
    wait_for_writers(training)
    training.snapshots.memory.forget()  # its snapshots may be wrong already
    if isinstance(error, WrongArithmeticError):
        returns = training.snapshots.has(replays.clean)
        training.snapshots.set_aside(replays.clean)
        record_finding(context, error)
        if returns:
            context.say(f"{error}; returning to a snapshot of {replays.right_until}")
        else:
            advice = f"; {replays.start_again}"
    if not resume(training, "auto"):
        error.args = (f"{error}, and there is no snapshot to return to{advice}",)
        raise error from None
