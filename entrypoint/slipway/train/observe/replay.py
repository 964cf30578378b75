"""Whether every rank computes correctly: all of them compute the same micro-batch, and the results are compared bit by bit.

A processor that computes wrongly is not found by comparing replicas, because its gradient is averaged into all of them. So every
few steps one rank's micro-batch goes to all ranks, in turn, with its buffers and the states of its random generators. Each rank
computes loss and gradients from them, with the weights that all have, and training continues as if that had not happened.
"""

from __future__ import annotations

import json
import os
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slipway.options.common import AUTO
from slipway.protocol.cgroups import read_kernel_file
from slipway.train.observe.known_answers import find_wrong
from slipway.train.observe.replicas import TIMED, UNTIMED, ReplicaExchange, ReplicasDifferError, interval
from slipway.train.snapshots.state import other_random_states, random_states, set_random_states
from slipway.train.snapshots.tensors import is_dense, raw_bytes, sum_of_bits
from slipway.train.worker.context import Context

Tensors = tuple[torch.Tensor, ...]
# Of a micro-batch: loss and gradients of all trained parameters, on this rank alone, without effects on the training.
Compute = Callable[[Tensors], tuple[torch.Tensor, Sequence[torch.Tensor | None]]]
Signature = tuple[int, ...]  # of one computation: a number for each place that `Replays` looks at

PRIME = 1_000_003  # the sums of a module that is called several times are combined as digits of this base
KNOWN_SEEDS, KNOWN_TIMES = 4, 8  # of the problems with known answers that decide where there is no majority


@dataclass(frozen=True)
class WrongArithmetic:
    """Ranks that computed a micro-batch of rank `source` wrongly; no `ranks` if nobody knows which.

    `place`: where the difference was first seen. `known`: what a rank with known answers computed wrongly, if any did.
    """

    ranks: tuple[int, ...]
    source: int
    place: str
    known: str = ""

    def __str__(self) -> str:
        """Return the text for messages."""
        named = ", ".join(map(str, self.ranks))
        who = f"rank {named} computed wrongly" if self.ranks else "the ranks did not compute the same"
        what = f"{who}: a micro-batch of rank {self.source} differs, first in {self.place}"
        return f"{what}; known answers were wrong, too ({self.known})" if self.known else what


class WrongArithmeticError(Exception):
    """A rank computes wrongly; `difference` says which. `proven`: its known answers were wrong, too."""

    def __init__(self, text: str, difference: WrongArithmetic, proven: bool = False) -> None:
        super().__init__(text)
        self.difference, self.proven = difference, proven


class ReplayError(Exception):
    """A micro-batch cannot be replayed in this training; the message says why."""


class Replays:
    """Replays a micro-batch every few steps and compares what the ranks computed."""

    def __init__(self, context: Context, model: nn.Module, compute: Compute, every: int | str) -> None:
        """`model`: what `compute` uses. `every`: steps between replays, 0 for none, `auto`: as often as is cheap."""
        self._context, self._model, self._compute = context, model, compute
        self._every = 0 if context.side is None else every
        self._steps, self._since, self._turn = 0, 0.0, 0
        self._batch: Tensors | None = None
        self._leaves = [name for name, module in model.named_modules() if not any(module.children())]
        self._calls: dict[str, None] = {}  # modules in the order in which the forward pass called them
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.places = (
            "the micro-batch as it arrived",
            *(f"the output of {name or 'the model'}" for name in self._leaves),
            "the loss",
            *(f"the gradient of {name}" for name in trained),
        )
        self.clean = 0  # the last step at which all ranks computed the same
        self._agreed = False  # whether all ranks computed the same since this process began

    @property
    def active(self) -> bool:
        """Whether micro-batches are replayed."""
        return self._every != 0

    def keep(self, step: int, batch: Tensors) -> None:
        """Keep the first micro-batch of a step if it is to be replayed; call before anything is computed with it."""
        if self._is_due(step) and self._turn == self._context.place.rank:
            self._batch = tuple(tensor.clone() for tensor in batch)

    def look(self, step: int) -> None:
        """Call after each step on every rank. Raises WrongArithmeticError or ReplicasDifferError, on all ranks."""
        if not self.active:
            return
        due, choosing = self._is_due(step), self._every == AUTO
        self._steps += choosing
        if choosing and self._steps == UNTIMED:
            self._since = time.monotonic()
        if not due:
            return
        begun = time.monotonic()
        if choosing:
            self._steps = 0  # if the training returns to a snapshot, its steps are timed again
        self._replay(step)
        if choosing and self.active:
            cost, per_step = time.monotonic() - begun, (begun - self._since) / TIMED
            self._every = int(self._context.share(torch.tensor([interval(cost, per_step)])))

    def _is_due(self, step: int) -> bool:
        if self._every == AUTO:
            return self._steps + 1 == UNTIMED + TIMED
        return isinstance(self._every, int) and self._every > 0 and step % self._every == 0

    def _replay(self, step: int) -> None:
        source, self._turn = self._turn, (self._turn + 1) % self._context.place.world_size
        batch, self._batch = self._batch, None
        try:
            given = self._share(batch, source)
            first = self._gather(given)
            if len(set(first)) == 1:
                self.clean, self._agreed = step, True
                return
            again = self._gather(given)
        except ReplayError as reason:
            self._every = 0
            self._context.say(f"note: no more replays: {reason}")
            return
        self._require_equal_weights()
        self._judge(first, again, source)

    def _share(self, batch: Tensors | None, source: int) -> dict[str, torch.Tensor]:
        """Rank `source`'s micro-batch, buffers and random generators, on every rank, each in memory of its own."""
        context, own = self._context, {}
        if batch is not None:
            own = {f"batch.{number}": tensor for number, tensor in enumerate(batch)}
            own |= {f"buffer.{name}": buffer for name, buffer in self._model.named_buffers()}
            own |= {f"random.{name}": state for name, state in self._random_states().items()}
            own = {name: tensor if is_dense(tensor) else tensor.contiguous() for name, tensor in own.items()}
        forms = json.loads(context.share_text(json.dumps([describe(*item) for item in own.items()]), source))
        parts = [raw_bytes(tensor).cpu() for tensor in own.values()]
        data = torch.cat(parts) if parts else torch.empty(sum(form["bytes"] for form in forms), dtype=torch.uint8)
        context.share(data, source)
        pieces = torch.split(data, [form["bytes"] for form in forms])
        return {form["name"]: rebuild(piece, form, context.device) for form, piece in zip(forms, pieces, strict=True)}

    def _random_states(self) -> dict[str, torch.Tensor]:
        return random_states(self._context.device) | other_random_states()

    def _gather(self, given: Mapping[str, torch.Tensor]) -> list[Signature]:
        """Compute once, on every rank; the signature of each. Raises ReplayError, on all ranks, if any could not."""
        reason = ""
        try:
            own = self._sign(given)
        except Exception as error:  # whatever it is, the others wait for this rank
            reason = (str(error).splitlines() or [""])[0]
            reason = reason if isinstance(error, ReplayError) else f"{type(error).__name__}: {reason}"
            own = torch.zeros(len(self.places), dtype=torch.int64)
        failed = self._context.gather_number(bool(reason))
        if any(failed):
            rank = failed.index(1)
            raise ReplayError(f"rank {rank}: {self._context.share_text(reason, rank)}")
        return [tuple(row.tolist()) for row in self._context.gather(own)]

    def _sign(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Compute from what was `given`; a sum of bits for each of the `places`, int64 on the CPU."""
        batch = tuple(tensor.clone() for name, tensor in given.items() if name.startswith("batch."))
        arrived = combine(sum_of_bits(tensor).cpu() for tensor in given.values())
        with self._undone(given), repeatable(self._context.device), self._watched() as outputs:
            loss, gradients = self._compute(batch)
            sums = [outputs[name] for name in self._leaves] + [sum_of_bits(loss)]
            none = torch.zeros((), dtype=torch.int64, device=loss.device)
            sums += [none if gradient is None else sum_of_bits(gradient) for gradient in gradients]
            return torch.stack([arrived, *(each.cpu() for each in sums)])

    @contextmanager
    def _undone(self, given: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """A context with the buffers and random generators that were `given`; after it they are as before."""
        random, device = self._random_states(), self._context.device
        kept = [
            (module, name, buffer, buffer.clone())
            for module in self._model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        try:
            with torch.no_grad():
                for name, buffer in self._model.named_buffers():
                    buffer.copy_(given[f"buffer.{name}"])
            states = {name[7:]: state for name, state in given.items() if name.startswith("random.")}
            set_random_states(device, states)
            yield
        finally:
            set_random_states(device, random)
            with torch.no_grad():
                for module, name, buffer, before in kept:
                    buffer.copy_(before)
                    module._buffers[name] = buffer

    @contextmanager
    def _watched(self) -> Iterator[dict[str, torch.Tensor]]:
        """A context that sums the bits of what each module without submodules returns, by name."""
        sums = {name: torch.zeros((), dtype=torch.int64) for name in self._leaves}

        def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def note(module: nn.Module, inputs: Any, output: Any) -> None:
                self._calls.setdefault(name)
                sums[name] = combine([sums[name], *(sum_of_bits(tensor) for tensor in tensors_in(output))])

            return note

        hooks = [self._model.get_submodule(name).register_forward_hook(watch(name)) for name in self._leaves]
        try:
            yield sums
        finally:
            for hook in hooks:
                hook.remove()

    def _require_equal_weights(self) -> None:
        """Raise ReplicasDifferError where the ranks did not compute with the same weights."""
        exchange = ReplicaExchange(self._context.side)
        weights = {name: parameter.detach() for name, parameter in self._model.named_parameters()}
        sums = torch.stack([sum_of_bits(weight).cpu() for weight in weights.values()])
        if difference := exchange.describe(weights, sums):
            raise ReplicasDifferError(str(difference), difference)

    def _judge(self, first: list[Signature], again: list[Signature], source: int) -> None:
        """Raise WrongArithmeticError, or stop the replays if what differs is not a wrong result."""
        own = known_wrong(self._context.device)
        failing = [rank for rank, failed in enumerate(self._context.gather_number(bool(own))) if failed]
        known = self._context.share_text(own, failing[0]) if failing else ""
        if 2 * len(failing) > len(first):  # nothing that is wrong on most ranks is one rank's fault
            failing, known = [], ""
        ranks = find_wrong_ranks(first, again)
        if not failing and not ranks and (ranks is None or not self._agreed):
            self._every = 0
            self._context.say(
                "warning: no more replays: the ranks, or a rank and itself, do not compute the same bits, first in "
                f"{self._first_place(first, again)}. {TO_REPEAT}"
            )
            return
        difference = WrongArithmetic(tuple(failing or ranks or ()), source, self._first_place(first, again), known)
        raise WrongArithmeticError(str(difference), difference, proven=bool(failing))

    def _first_place(self, *rounds: Sequence[Signature]) -> str:
        """Return where ranks differ first, in the order of the computation: modules, the loss, gradients from the end."""
        columns = zip(*(signature for signatures in rounds for signature in signatures), strict=True)
        differing = {place for place, column in zip(self.places, columns, strict=True) if len(set(column)) > 1}
        called = [f"the output of {name or 'the model'}" for name in self._calls]
        before, after = self.places[0], self.places[1 + len(self._leaves) :]
        order = [before, *called, after[0], *reversed(after[1:])]
        return next((place for place in order if place in differing), "an output")


TO_REPEAT = (
    "That is no fault if the arithmetic depends on the order of threads; torch.use_deterministic_algorithms(True) makes it "
    "repeatable. If in doubt, type `slipway check --burn 60` on each node."
)


def known_wrong(device: torch.device) -> str:
    """Return what is wrong first among problems with known answers; empty if nothing is, or if they cannot be computed."""
    with suppress(Exception):  # whatever it is, the others wait for this rank
        wrong = (find_wrong(device, seed, KNOWN_TIMES) for seed in range(KNOWN_SEEDS))
        return next(filter(None, wrong), "")
    return ""


def find_wrong_ranks(first: Sequence[Signature], again: Sequence[Signature]) -> list[int] | None:
    """Return the ranks that computed wrongly; empty if nobody knows which, None if the arithmetic does not repeat itself.

    `first` and `again`: what each rank computed, twice, from the same inputs.
    """
    usual, _ = Counter(first).most_common(1)[0]
    both = list(zip(first, again, strict=True))
    right = [pair == (usual, usual) for pair in both]
    if 2 * sum(right) > len(right):
        return [rank for rank, is_right in enumerate(right) if not is_right]
    unstable = [rank for rank, (one, other) in enumerate(both) if one != other]
    if len(first) == 2 and len(unstable) == 1:
        return unstable
    return None if unstable else []


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


def describe(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Return how a tensor is rebuilt from its bytes, for JSON."""
    return {
        "name": name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "bytes": tensor.numel() * tensor.element_size(),
        "on_device": tensor.device.type != "cpu",
    }


def rebuild(piece: torch.Tensor, form: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """Return the tensor that `describe` described, in memory of its own, aligned alike on all ranks."""
    data = piece.clone().view(getattr(torch, form["dtype"])).as_strided(form["shape"], form["stride"])
    return data.to(device) if form["on_device"] else data


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """A context in which a GPU repeats its results bit by bit. Raises ReplayError for an operation that cannot."""
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    kept = cudnn.benchmark, cudnn.deterministic
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        cudnn.benchmark, cudnn.deterministic = False, True
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = kept
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    for each in told:
        if "does not have a deterministic implementation" in str(each.message):
            raise ReplayError(f"{str(each.message).split(',')[0]}, so its results cannot be compared bit by bit")


def require_replayable(model: nn.Module, split: bool) -> None:
    """Raise ReplayError where the forward pass exchanges data between the ranks, which would spread a wrong result."""
    from torch.distributed.tensor import DTensor

    if split:
        raise ReplayError("the stages of a pipeline exchange data with each other")
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise ReplayError("SyncBatchNorm exchanges data between the ranks in the forward pass")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ReplayError("the parameters are spread over the ranks")


def require_one_processor(context: Context) -> None:
    """Raise ReplayError, on all ranks, unless all have the same kind of processor, used in the same way."""
    own = describe_processor(context.device, os.environ)
    marks = context.gather_number(zlib.crc32(own.encode()))
    odd = next((rank for rank, mark in enumerate(marks) if mark != marks[0]), None)
    if odd is not None:
        one, other = (context.share_text(own, rank) for rank in (0, odd))
        raise ReplayError(
            f"rank 0 has {one}, and rank {odd} has {other}. Their results cannot be compared bit by bit; give all ranks the "
            "same kind"
        )


LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


def describe_processor(device: torch.device, environ: Mapping[str, str]) -> str:
    """Return what the bits of a result depend on besides the inputs: processor, instruction set, threads, version of torch."""
    torch_version = f"torch {torch.__version__}"
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return f"{torch.cuda.get_device_name(device)}, {torch_version}, cuDNN {cudnn}"
    limits = "".join(f", {name}={environ[name]}" for name in LIMITS if name in environ)
    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    lines = (line.partition(":") for line in read_kernel_file(Path("/proc/cpuinfo")).splitlines())
    name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), "a CPU")
    return f"{name} ({capability}), {threads} thread{'s' * (threads > 1)}, {torch_version}{limits}"
