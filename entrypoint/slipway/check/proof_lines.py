"""What `slipway prove` answers, from the events of its runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipway.check import proof
from slipway.protocol.printable import counted
from slipway.protocol.proof import Event, EventKind

WORDS = {
    EventKind.BATCH: "a batch", EventKind.FORWARD: "a call of a model", EventKind.OUTPUT: "a call of a model",
    EventKind.STEP: "a step of an optimizer", EventKind.LOG: "a call of run.log", EventKind.BOUNDARY: "a boundary",
}  # fmt: skip
MODES = {False: "training mode", True: "eval mode (or under no_grad)"}
SHOWN = 5  # values of the script in a message
GENERATORS = {"cpu": "torch", "cuda": "torch on the GPU", "numpy": "numpy", "python": "random"}
SEEDS = (
    "Seed what draws random numbers before it draws (torch.manual_seed, numpy.random.seed, random.seed). On a GPU, call "
    "torch.use_deterministic_algorithms(True). On a CPU, set OMP_NUM_THREADS=1"
)


def exact_lines(reference: proof.Events, killed: int, wanted: int = 0) -> list[str]:
    """Return the answer for a script that resumes exactly, and what the runs did not show. `wanted`: kills."""
    ranks = proof.undisturbed(reference)
    steps = next(iter(ranks.values())).last.step
    few = f"only {killed} of {wanted} kills were possible: a passed optimizer stepped only {counted(steps, 'time')}"
    how_much = f"{counted(steps, 'step')}, {counted(killed, 'kill')}, {counted(len(ranks), 'rank')}"
    return [
        f"resumes exactly: {how_much}; equal: {', '.join(equal_parts(reference))}",
        *[few] * (killed < wanted),
        *notes(reference),
    ]


def unsteady_lines(reference: proof.Events, repeated: proof.Events, first: proof.EventDifference) -> list[str]:
    """Return the answer for a script that does something else each time, also without a kill."""
    where = place_of(reference, repeated, first, exact=True)
    return [f"differs from itself without a kill, first at {where}: {describe(first)}. {SEEDS}"]


def different_lines(
    reference: proof.Events, repeated: proof.Events, kills: Sequence[proof.Kill], cause: str
) -> list[str]:
    """Return the answer for a script that differs, or that fails because of `cause`, after the last of the `kills` that were
    done; nothing if neither is so.
    """
    exact = is_exact(reference)
    first = proof.compare(reference, repeated, exact=exact)
    if cause and (first is None or first.found is None):
        after = f" after a kill {kills[-1].kind}" if kills else ""
        return [f"differs first at step {kills[-1].step if kills else 1}:{after} the script fails: {cause}"]
    if first is None:
        return []
    lost, drawn = proof.find_lost(reference, repeated, first), proof.find_drawn(reference, repeated, first)
    if lost:
        why = f": {'; '.join(map(explain, lost))}"
    elif first.expected and first.found and is_in_another_mode(first.expected, first.found, first):
        why = ". No snapshot has the mode of a model: call model.train() at the start of each epoch"
    elif drawn:
        why = f": the random numbers of {' and '.join(GENERATORS[name] for name in drawn)} are not those of a run without kills"
    elif first.found and first.found.kind == EventKind.BATCH and (data := first.found.facts.get("workers")):
        why = (
            f": worker processes of a DataLoader read it from {data}, and begin again after a kill. What {data} counts, keeps or "
            "draws there is lost. Compute it from a sample's index, or draw with run.batches(loader, exact_augmentation=True)"
        )
    elif values := proof.find_values(reference, repeated, first):
        more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
        why = (
            f". After the kill these values of the script are not what they were: {', '.join(values[:SHOWN])}{more}. Keep in "
            "run.state what the training depends on, or pass an object with state_dict that has it to slipway.resume"
        )
    else:
        why = ". Keep in run.state what the script changes from step to step, or pass an object with state_dict to slipway.resume"
    return [
        f"differs first at {place_of(reference, repeated, first, exact=exact)}: {describe(first)}{why}",
        *notes(reference),
    ]


def is_in_another_mode(expected: Event, found: Event, first: proof.EventDifference) -> bool:
    """Whether a model is given the same in another mode; if it is given something else, that is another call."""
    return expected.validates != found.validates and not first.names


def is_exact(reference: proof.Events) -> bool:
    """Whether gradients have the same bits after a restart: DDP first sums those of more than two ranks in another order."""
    ranks = proof.undisturbed(reference)
    return len(ranks) <= 2 or all(attempt.last.facts["warmed"] for attempt in ranks.values())


def notes(reference: proof.Events) -> list[str]:
    """Return what the runs did not show."""
    facts, found = next(iter(proof.undisturbed(reference).values())).last.facts, []
    if steps := steps_of_epoch(reference):
        found.append(f"the end of an epoch is not proven: --steps {steps}")
    if hookless := ", ".join(facts["hookless"]):
        found.append(
            f"not seen: the steps of {hookless}, whose class does not call Optimizer.__init__; its states were compared"
        )
    if facts["left_out"]:
        found.append(f"GradScaler left out {counted(facts['left_out'], 'step')}, also without a kill")
    if not is_exact(reference):
        found.append(
            f"not compared: weights, since DistributedDataParallel sums the gradients of {len(reference)} ranks in another "
            "order after a restart. Call run.warm_up before the loop"
        )
    return found


def steps_of_epoch(reference: proof.Events) -> int | None:
    """Return how many steps reach into a second epoch; None if the run did, or if it has no epochs of a known length."""
    attempt = next(iter(proof.undisturbed(reference).values()))
    places, length = [each.place for each in attempt.intervals], attempt.last.facts["length"]
    done, batches = places[-1]["step"] - places[0]["step"], places[-1].get("batches")
    if len({place.get("epoch") for place in places}) > 1 or not (length and done and batches):
        return None
    steps: int = math.ceil(1.1 * length * done / batches) + 1
    return steps


def equal_parts(reference: proof.Events) -> list[str]:
    """Return what was compared, as people count it."""
    attempt = next(iter(proof.undisturbed(reference).values()))
    objects = {name: each for name, each in attempt.last.facts["objects"].items() if each[2]}
    sorts = [each[3] for each in objects.values()]
    kinds = {event.kind for interval in attempt.intervals for event in interval.events}
    owners = [
        name
        for entry, value in attempt.last.values.items()
        if isinstance(value, int) and (name := proof.owner(entry, objects))
    ]
    exact = is_exact(reference)
    counts = {
        "parameter": sum(each[4] for each in objects.values()),
        "optimizer state": sum(objects[name][3] == "optimizer" for name in owners),
        "buffer": sum(each[5] for each in objects.values()),
        "scheduler": sorts.count("scheduler"),
        "other object": sorts.count("other"),
    }
    parts = {
        "batches": bool(kinds & {EventKind.BATCH, EventKind.FORWARD}),
        **{counted(number, name): bool(number) and exact for name, number in counts.items()},
        "learning rates": EventKind.STEP in kinds,
        "validations": EventKind.OUTPUT in kinds and exact,
        "what run.log got": EventKind.LOG in kinds and exact,
    }
    return [name for name, there in parts.items() if there]


def place_of(reference: proof.Events, repeated: proof.Events, first: proof.EventDifference, *, exact: bool) -> str:
    """Return the step of a difference, and the ranks, if these are not all."""
    each = proof.first_of_ranks(reference, repeated, exact)
    ranks = [rank for rank, difference in each.items() if difference[:2] == first[:2]]
    return f"step {first.step}" + ("" if len(ranks) == len(reference) else f", rank {', '.join(map(str, ranks))}")


def describe(first: proof.EventDifference) -> str:
    """Return what differs."""
    expected, found = first.expected, first.found
    if expected is None or found is None:
        return (
            f"{WORDS[EventKind(event.kind)]} {'too many' if found else 'is missing'}"
            if (event := found or expected)
            else ""
        )
    if expected.kind != found.kind:
        return f"{WORDS[EventKind(found.kind)]} comes where the undisturbed run has {WORDS[EventKind(expected.kind)]}"
    return describe_event(expected, found, first)


def describe_event(expected: Event, found: Event, first: proof.EventDifference) -> str:
    """Return what differs in an event that both runs have."""
    module = found.facts.get("module", "")
    if is_in_another_mode(expected, found, first):
        return f"{module} is in {MODES[found.validates]} instead of {MODES[expected.validates]}"
    if found.kind == EventKind.BATCH or (found.kind == EventKind.FORWARD and not first.number and not found.validates):
        return "the batch is another one"
    if found.kind == EventKind.FORWARD:
        return f"the batch is the same, what goes into {module} is not" + " (in a validation)" * found.validates
    if found.kind == EventKind.OUTPUT:
        return f"{module} returns something else in a validation"
    if found.kind == EventKind.BOUNDARY:
        return f"the batches are the same, {first.names[0]} is not"
    [name, *_] = first.names or [""]
    what = "the learning rate is" if found.kind == EventKind.STEP else f"run.log got {name} ="
    return f"{what} {found.values.get(name)} instead of {expected.values.get(name)}"


def explain(lost: proof.LostObject) -> str:
    """Return why an object was lost, and what to do."""
    named = f'{lost.kind} "{lost.name}"' + (f" ({lost.where})" if lost.where else "")
    if lost.passed and lost.sort == proof.PARAMETERS:
        return (
            f"{named} trains parameters of no model that was passed. Pass what they belong to, or nn.ParameterList([…])"
        )
    if lost.passed:
        return f"{named} did not come back as it was on this rank"
    if lost.sort == "generator":
        return (
            f"{named} is a generator that is not saved. Keep its state in run.state, or draw from torch's own generator"
        )
    name = lost.name.rpartition(".")[2].partition("[")[0].lower()
    return f"{named} was not passed to slipway.resume. Pass it: slipway.resume(…, {name}={lost.name})"
