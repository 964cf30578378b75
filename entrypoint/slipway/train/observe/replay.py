"""Whether every rank computes correctly: all of them compute the same micro-batch, and the results are compared bit by bit.

A processor that computes wrongly is not found by comparing replicas, because its gradient is averaged into all of them. So every
few steps one rank's micro-batch goes to all ranks, in turn, with its buffers and the states of its random generators. Each rank
computes loss and gradients from them, with the weights that all have, and training continues as if that had not happened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from slipway.protocol.mistake import ExplainedError
from slipway.train.observe.comparability import NoCollectives, listing, repeatable
from slipway.train.observe.comparison import ComparableRanks, Signature, divide, find_wrong_ranks
from slipway.train.observe.known_answers import find_wrong
from slipway.train.observe.micro_batches import (
    ReplayError,
    describe,
    make_room,
    put_together,
    rebuild,
    require_dense,
    take_apart,
)
from slipway.train.observe.replicas import ReplicaExchange, ReplicasDifferError
from slipway.train.snapshots.state import other_random_states, random_states, set_random_states
from slipway.train.snapshots.tensors import is_dense, raw_bytes, sum_of_bits
from slipway.train.worker.context import Context
from slipway.train.worker.rhythm import CheckInterval

Batch = tuple[Any, ...]
# Of a micro-batch: loss and gradients of all parameters (None where there is none), on this rank alone, without effects on the
# training.
Compute = Callable[[Batch], tuple[torch.Tensor, Sequence[torch.Tensor | None]]]

PRIME = 1_000_003  # the sums of a module that is called several times are combined as digits of this base
KNOWN_SEEDS, KNOWN_TIMES = range(4), 8  # of the problems with known answers that decide where there is no majority
UNTESTED = 2  # what a rank tells that could not compute them; 1 is a wrong answer, 0 none
SHOWN = 3  # places that a message lists


@dataclass(frozen=True)
class WrongArithmetic:
    """Ranks that computed a micro-batch of rank `source` wrongly; no `ranks` if nobody knows which.

    `place`: where a difference was first seen, if any was. `known`: what a rank with known answers computed wrongly, if any did.
    """

    ranks: tuple[int, ...]
    source: int
    place: str
    known: str = ""

    def __str__(self) -> str:
        """Return the text for messages."""
        named = ", ".join(map(str, self.ranks))
        who = f"rank {named} computed wrongly" if self.ranks else "the ranks computed different results"
        what = [f"a micro-batch of rank {self.source} differs, first in {self.place}"] if self.place else []
        too = ", too" if self.place else ""
        what += [f"computations with known results were wrong{too} ({self.known})"] if self.known else []
        return f"{who}: {'; '.join(what)}"


class WrongArithmeticError(ExplainedError):
    """A rank computes wrongly; `difference` says which. `proven`: its known answers were wrong, too."""

    def __init__(self, text: str, difference: WrongArithmetic, proven: bool = False) -> None:
        super().__init__(text)
        self.difference, self.proven = difference, proven


class Unsolved(NamedTuple):
    """Ranks that computed problems with known answers wrongly, and what was wrong first on the first of them."""

    ranks: tuple[int, ...] = ()
    known: str = ""


@dataclass(frozen=True)
class Given:
    """What all ranks compute from: a micro-batch as `take_apart` has it, and by name its tensors, buffers and random states."""

    parts: Any
    tensors: Mapping[str, torch.Tensor]


class Replays:
    """Replays a micro-batch every few steps and compares what the ranks computed."""

    def __init__(
        self,
        context: Context,
        model: nn.Module,
        compute: Compute,
        every: int | str,
        kinds: Sequence[int] = (),
        alike: bool = True,
    ) -> None:
        """`model`: what `compute` uses. `every`: steps between replays, 0 for none, `auto`: as often as is cheap.

        `kinds`: for each rank what it is compared with, those of the same number; by default all ranks are of one kind.
        `alike`: whether `compute` is known to be the same on all ranks. Otherwise no rank is named before all have agreed once.
        """
        self._context, self._model, self._compute, self._alike = context, model, compute, alike
        self._interval = CheckInterval(context, 0 if context.side is None else every)
        self._asked = every != 0
        self._recorded = self.active  # in snapshots, also after the replays have ended by themselves
        self._once, self._turn = 0.0, 0
        self._kept: Given | Exception | None = None
        self._checked = False
        self._kinds = divide(kinds or [0] * context.place.world_size)
        self._alone = [kind.ranks[0] for kind in self._kinds if kind.alone]
        self._untested: set[int] = set()  # ranks of which a line said that they cannot compute known answers
        modules = dict(model.named_modules())
        self._leaves = {name: module for name, module in modules.items() if not any(module.children())}
        self._calls: dict[str, None] = {}  # modules in the order in which the forward pass called them
        self._parameters = [name for name, _ in model.named_parameters()]
        self.places = (
            "the micro-batch as it arrived",
            *(f"the output of {name or 'the model'}" for name in self._leaves),
            "the loss",
            *(f"the gradient of {name}" for name in self._parameters),
        )
        self.clean = 0  # the last step at which all ranks computed the same
        self.agreed = False  # whether they ever did, in this attempt or an earlier one

    @property
    def active(self) -> bool:
        """Whether micro-batches are replayed."""
        return self._interval.every != 0

    @property
    def right_until(self) -> str:
        """Return, for messages, of which step a snapshot may be that was made before a rank computed wrongly."""
        return f"step {self.clean} or before, {'when all ranks agreed' if self.agreed else 'where the replays began'}"

    @property
    def start_again(self) -> str:
        """Return, for messages, how the run starts again where it has no such snapshot."""
        other = self._context.place.resume
        if other in ("none", "auto"):
            again = "If the job does not restart by itself, type the same command with --resume auto"
            return f"the next attempt starts where this run began. {again}"
        return f"{other} may contain wrong numbers, too: type --resume with a snapshot of step {self.clean} or before"

    def state(self) -> dict[str, Any]:
        """Return what a snapshot says of the replays, as JSON; nothing if none were asked for."""
        return {"clean": self.clean, "agreed": self.agreed} if self._recorded else {}

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue from a snapshot of that step, which has this state. What was trained without replays counts as right."""
        self._recorded |= self._asked and "clean" in state  # an attempt of a single process passes it on
        self.clean = min(step, max(self.clean, state.get("clean", step)))
        self.agreed = self.agreed or state.get("agreed", False)

    def keep(self, step: int, batch: Batch) -> None:
        """Keep the first micro-batch of a step if it is to be replayed; call before anything is computed with it."""
        if self._interval.is_next(step) and self._turn == self._context.place.rank:
            tensors: dict[str, torch.Tensor] = {}
            try:
                self._kept = Given(take_apart(batch, "batch", tensors), tensors)
            except Exception as error:  # whatever it is, the others wait for this rank
                self._kept = error

    def check(self, step: int) -> None:
        """Call after each step on every rank. Raises WrongArithmeticError or ReplicasDifferError, on all ranks."""
        if self._interval.is_due(step):
            begun, self._once = time.monotonic(), 0.0
            self._replay(step)
            self._interval.choose(time.monotonic() - begun - self._once)

    def _replay(self, step: int) -> None:
        source, self._turn = self._turn, (self._turn + 1) % self._context.place.world_size
        try:
            given = self._share(source)
            if not self._checked:
                self._check(given)
            first = self._gather(given)
            again = self._gather(given) if self._alone or self._differing(first) else first
            wrong = self._solve(self._alone, [KNOWN_SEEDS[source % len(KNOWN_SEEDS)]])
            if not wrong.ranks:
                left_out = self._leave_out(first, again)
                if not self._differing(first, again):
                    self.agreed = True
                    if not left_out:  # a fault of two ranks, which may share a device, looks the same
                        self.clean = step
                    for kind in self._kinds:
                        kind.repeated = True
                    return
                self._require_equal_weights()
        except ReplayError as reason:
            self._interval.every = 0
            self._context.say(f"note: replays are turned off: {reason}")
            return
        self._judge(first, again, source, wrong)

    def _share(self, source: int) -> Given:
        """What rank `source` has kept, on every rank, in memory of its own. Raises ReplayError, on all ranks."""
        context, data = self._context, torch.empty(0, dtype=torch.uint8)
        layout = reason = ""
        if context.place.rank == source:
            try:
                own = self._complete(self._kept)
                parts = [raw_bytes(tensor).cpu() for tensor in own.tensors.values()]
                data = torch.cat([data, *parts])
                forms = [describe(*item) for item in own.tensors.items()]
                layout = json.dumps({"parts": own.parts, "tensors": forms})
            except Exception as error:  # whatever it is, the others wait for this rank
                reason = explain(error)
        self._kept = None
        self._require_none(reason)
        described = json.loads(context.share_text(layout, source))
        forms = described["tensors"]
        sizes = [form["bytes"] for form in forms]
        if context.place.rank != source:
            try:
                data = make_room(sum(sizes))
            except Exception as error:
                reason = explain(error)
        self._require_none(reason)
        context.share(data, source)
        rebuilt: dict[str, torch.Tensor] = {}
        try:
            for piece, form in zip(torch.split(data, sizes), forms, strict=True):
                rebuilt[form["name"]] = rebuild(piece, form, context.device)
        except Exception as error:
            reason = explain(error)
        self._require_none(reason)
        return Given(described["parts"], rebuilt)

    def _require_none(self, reason: str) -> None:
        """Raise ReplayError, on all ranks, if any rank has a `reason` why it cannot go on."""
        failed = self._context.gather_number(bool(reason))
        if any(failed):
            rank = failed.index(1)
            raise ReplayError(f"rank {rank}: {self._context.share_text(reason, rank)}")

    def _complete(self, kept: Given | Exception | None) -> Given:
        """Add this rank's buffers and random generators. Raises ReplayError, or what `keep` has met."""
        if not isinstance(kept, Given):
            raise kept or ReplayError("the micro-batch was not kept")
        own = dict(kept.tensors)
        for name, buffer in self._model.named_buffers():
            require_dense(buffer, f"the buffer {name}")
            own[f"buffer.{name}"] = buffer
        own |= {f"random.{name}": state for name, state in self._random_states().items()}
        return Given(kept.parts, {name: each if is_dense(each) else each.contiguous() for name, each in own.items()})

    def _random_states(self) -> dict[str, torch.Tensor]:
        return random_states(self._context.device) | other_random_states()

    def _check(self, given: Given) -> None:
        """Compute once in vain. Raises ReplayError, on all ranks, where the computation exchanges data between them."""
        begun = time.monotonic()
        self._gather(given, NoCollectives())
        self._solve(self._alone, KNOWN_SEEDS)  # makes the answers, which takes longer than all later replays
        self._checked, self._once = True, time.monotonic() - begun

    def _gather(self, given: Given, within: AbstractContextManager[Any] | None = None) -> list[Signature]:
        """Compute once, on every rank; the signature of each. Raises ReplayError, on all ranks, if any could not."""
        reason = ""
        try:
            own = self._sign(given, within or nullcontext())
        except Exception as error:  # whatever it is, the others wait for this rank
            reason = explain(error)
            own = torch.zeros(len(self.places), dtype=torch.int64)
        self._require_none(reason)
        return [tuple(row.tolist()) for row in self._context.gather(own)]

    def _sign(self, given: Given, within: AbstractContextManager[Any]) -> torch.Tensor:
        """Compute from what was `given`, `within` a context; a sum of bits for each of the `places`, int64 on the CPU."""
        batch = put_together(given.parts, given.tensors)
        arrived = combine(sum_of_bits(tensor).cpu() for tensor in given.tensors.values())
        with within, self._undone(given.tensors), repeatable(self._context.device), self._watched() as outputs:
            loss, gradients = self._compute(batch)
            sums = [outputs[name] for name in self._leaves] + [sum_of_bits(loss)]
            for name, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is None:
                    sums.append(torch.zeros((), dtype=torch.int64, device=loss.device))
                    continue
                require_dense(gradient, f"the gradient of {name}")
                sums.append(sum_of_bits(gradient))
            return torch.stack([arrived, *(each.cpu() for each in sums)])

    @contextmanager
    def _undone(self, given: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """In this context, the model has the buffers and random states that are `given`; afterwards it has its own again.

        Raises ReplayError for a buffer that has another shape here.
        """
        random, device = self._random_states(), self._context.device
        kept = [
            (module, name, each, None if each is None else each.clone())
            for module in self._model.modules()
            for name, each in module._buffers.items()
        ]
        torch.clear_autocast_cache()  # weights that were cast for the training belong to its graph
        try:
            for name, buffer in self._model.named_buffers():
                new = given.get(f"buffer.{name}", buffer)  # none was given of one that the forward pass made since
                if new.shape != buffer.shape:
                    raise ReplayError(
                        f"the buffer {name} has another shape than on the rank whose micro-batch is replayed"
                    )
                buffer.data.copy_(new)  # `data`: a graph of the training may hold the buffer
            states = {name[7:]: state for name, state in given.items() if name.startswith("random.")}
            set_random_states(device, states)
            yield
        finally:
            torch.clear_autocast_cache()
            set_random_states(device, random)
            for module, name, own, before in kept:
                module._buffers[name] = own
                if own is not None and before is not None:
                    own.data.copy_(before)

    @contextmanager
    def _watched(self) -> Iterator[dict[str, torch.Tensor]]:
        """A context that sums the bits of what each module without submodules returns, by name."""
        sums = {name: torch.zeros((), dtype=torch.int64) for name in self._leaves}

        def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def note(module: nn.Module, inputs: Any, output: Any) -> None:
                self._calls.setdefault(name)
                sums[name] = combine([sums[name], *(sum_of_bits(tensor) for tensor in tensors_in(output))])

            return note

        hooks = [module.register_forward_hook(watch(name)) for name, module in self._leaves.items()]
        try:
            yield sums
        finally:
            for hook in hooks:
                hook.remove()

    def _require_equal_weights(self) -> None:
        """Raise ReplicasDifferError where the ranks did not compute with the same weights, ReplayError if they never did."""
        exchange = ReplicaExchange(self._context.side)
        weights = {name: parameter.detach() for name, parameter in self._model.named_parameters()}
        sums = torch.stack([sum_of_bits(weight).cpu() for weight in weights.values()])
        if difference := exchange.describe(weights, sums):
            if not (self._alike or self.agreed):
                raise ReplayError(f"the ranks do not have the same weights: {difference}")
            raise ReplicasDifferError(str(difference), difference)

    def _solve(self, ranks: Collection[int], seeds: Iterable[int]) -> Unsolved:
        """Compute known problems on these ranks; by all ranks. Which were wrong; a line names, once, each rank that could not."""
        if not ranks:
            return Unsolved()
        own = reason = ""
        if self._context.place.rank in ranks:
            try:
                own = known_wrong(self._context.device, seeds)
            except Exception as error:  # whatever it is, the others wait for this rank
                reason = explain(error)
        results = self._context.gather_number(UNTESTED if reason else bool(own))
        failing, untested = ([rank for rank, each in enumerate(results) if each == what] for what in (1, UNTESTED))
        if new := [rank for rank in untested if rank not in self._untested]:
            self._untested.update(new)
            self._context.say(
                f"note: replays: {listing(new)} not been tested with known results: "
                f"{self._context.share_text(reason, new[0])}"
            )
        if not failing or 2 * len(failing) > len(results) - len(untested):
            return Unsolved()  # nothing that is wrong on most ranks is one rank's fault
        return Unsolved(tuple(failing), self._context.share_text(own, failing[0]))

    def _leave_out(self, first: list[Signature], again: list[Signature]) -> bool:
        """Leave out what does not repeat itself, and say so; whether there was any. Raises ReplayError if nothing is left."""
        left_out = False
        for kind in self._kinds:
            if not (found := kind.leave_out(first, again)):
                continue
            left_out = True
            who, places = listing(kind.ranks), self._in_order(found)
            if not any(number for signature in kind.pick(first) for number in signature[1:]):
                raise ReplayError(f"{who} computed different bits in a second pass, first in {places[0]}. {TO_REPEAT}")
            more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
            self._context.say(
                f"note: replays: {who} computed different bits in a second pass in {', '.join(places[:SHOWN])}{more}: no longer "
                f"compared there. {TO_REPEAT}"
            )
        return left_out

    def _judge(self, first: list[Signature], again: list[Signature], source: int, wrong: Unsolved) -> None:
        """Raise WrongArithmeticError, or stop the replays if what differs is not a wrong result."""
        if not wrong.ranks:
            wrong = self._solve(range(len(first)), KNOWN_SEEDS)
        kinds = self._differing(first, again)
        verdicts = [find_wrong_ranks(kind.pick(first), kind.pick(again)) for kind in kinds]
        named = [kind.ranks[place] for kind, verdict in zip(kinds, verdicts, strict=True) for place in verdict or ()]
        ranks = None if all(verdict is None for verdict in verdicts) else named
        place = self._first_place(kinds[0].pick(first), kinds[0].pick(again)) if kinds else ""
        sure = self.agreed or (self._alike and ranks)
        if not wrong.ranks and (ranks is None or not sure):
            self._interval.every = 0
            self._context.say(
                "warning: replays are turned off: results differ between ranks, or between two passes on one rank, first in "
                f"{place}. {TO_REPEAT}"
            )
            return
        difference = WrongArithmetic(wrong.ranks or tuple(ranks or ()), source, place, wrong.known)
        raise WrongArithmeticError(str(difference), difference, proven=bool(wrong.ranks))

    def _differing(self, *rounds: Sequence[Signature]) -> list[ComparableRanks]:
        """Return the kinds of which the ranks did not compute the same in all rounds."""
        return [kind for kind in self._kinds if kind.differs(*rounds)]

    def _first_place(self, *rounds: Sequence[Signature]) -> str:
        """Return where ranks differ first, in the order of the computation: modules, the loss, gradients from the end."""
        columns = zip(*(signature for signatures in rounds for signature in signatures), strict=True)
        differing = [number for number, column in enumerate(columns) if len(set(column)) > 1]
        return next(iter(self._in_order(differing)), "an output")

    def _in_order(self, numbers: Iterable[int]) -> list[str]:
        """Return these places in the order of the computation."""
        wanted = {self.places[number] for number in numbers}
        called = [f"the output of {name or 'the model'}" for name in self._calls]
        before, after = self.places[0], self.places[1 + len(self._leaves) :]
        return [place for place in (before, *called, after[0], *reversed(after[1:])) if place in wanted]


TO_REPEAT = (
    "This is not a fault if the arithmetic depends on the order of threads, or if the computation depends on the rank; "
    "torch.use_deterministic_algorithms(True) makes arithmetic repeatable. If in doubt, type `slipway check --burn 60` on each "
    "node."
)


def explain(error: Exception) -> str:
    """Return why a rank could not compute or send a micro-batch, in one line."""
    reason = (str(error).splitlines() or [""])[0]
    return reason if isinstance(error, ReplayError) else f"{type(error).__name__}: {reason}"


def known_wrong(device: torch.device, seeds: Iterable[int]) -> str:
    """Return what is wrong first among problems with known answers; empty if nothing is."""
    return next(filter(None, (find_wrong(device, seed, KNOWN_TIMES) for seed in seeds)), "")


def combine(sums: Any) -> torch.Tensor:
    """Return one number for several, int64; which of them changed does not matter, their order does."""
    total = torch.zeros((), dtype=torch.int64)
    for each in sums:
        total = total.to(each.device) * PRIME + each
    return total


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in what a module returned: a tensor, or a list, tuple or dictionary of such."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from tensors_in(part)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from tensors_in(part)
