"""Replays of a user's own loop (observe/replay.py): what computes a micro-batch apart from the training, and what follows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slipway.options.common import AUTO
from slipway.protocol.mistake import ConfigurationError
from slipway.train.observe.comparability import kinds_of_ranks, require_replayable
from slipway.train.observe.findings import record_finding, was_found
from slipway.train.observe.micro_batches import ReplayError
from slipway.train.observe.replay import Replays, WrongArithmeticError
from slipway.train.observe.replicas import ReplicasDifferError
from slipway.train.snapshots.job import JobSnapshots
from slipway.train.user.objects import Objects
from slipway.train.worker.context import Context

Work = Callable[..., Any]


class UserReplays:
    """Replays micro-batches of a loop that says itself what computes them."""

    def __init__(self, context: Context, objects: Objects, keeps: bool) -> None:
        """They begin with the first `check`. `keeps`: there are snapshots."""
        self._context, self._objects, self._keeps = context, objects, keeps
        self._work: Work  # of the last `check`
        self._replays: Replays | None = None
        self._step = -1  # at which `check` was called last
        self._resumed: tuple[int, Mapping[str, Any]] = (0, {})  # the step of a snapshot, and what it says of replays

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue from a snapshot of that step, which has this state."""
        self._resumed = step, {name: state[name] for name in ("clean", "agreed") if name in state}

    def state(self) -> Mapping[str, Any]:
        """Return what a snapshot says of the replays; until they begin, what the one that was resumed from says."""
        return self._replays.state() if self._replays else self._resumed[1]

    def check(self, step: int, work: Work, batch: tuple[Any, ...], every: int | str, snapshots: JobSnapshots) -> None:
        """Replay `batch` if it is the first of this `step`, and one that is due; by all ranks.

        Raises what ends the process where a rank computes wrongly, and ConfigurationError.
        """
        if self._replays is None:
            self._replays = self._begin(every)
        if step == self._step:
            return
        self._step, self._work = step, work
        self._replays.keep(step, batch)
        found: ReplicasDifferError | WrongArithmeticError | None = None
        try:
            self._replays.check(step)
        except (ReplicasDifferError, WrongArithmeticError) as error:
            found = error
        if found:  # here, so that what follows is not its consequence in a traceback
            self._end_attempt(found, self._replays, snapshots)

    def _begin(self, every: int | str) -> Replays:
        """Prepare replays, none where the model forbids them; a line says why. Raises ConfigurationError."""
        if every != AUTO and (not isinstance(every, int) or every < 0):
            raise ConfigurationError(f"run.replay(every={every!r}): type a number of steps, 0 for never, or 'auto'.")
        if every == 0 or self._context.side is None:
            none = Replays(self._context, nn.Module(), lambda batch: compute_apart(self._work, batch, ()), every)
            none.resume(*self._resumed)
            return none
        named = self._objects.named_of_kind(nn.Module)
        if not (named or self._keeps):
            raise ConfigurationError(
                "run.replay needs snapshots, to which the training returns if a rank computes wrongly, and slipway.resume has "
                "snapshots=False. Pass the model to slipway.resume(model=…) instead."
            )
        if not named:
            raise ConfigurationError("run.replay needs the model: pass it to slipway.resume(model=…).")
        model = nn.Module()
        for name, each in named.items():
            model._modules[name] = each  # unlike add_module, with any name
        model = next(iter(named.values())) if len(named) == 1 else model
        kinds: list[int] = []
        try:
            require_replayable(model, split=False)
            require_one_model(self._context, model)
            kinds = kinds_of_ranks(self._context)
        except ReplayError as reason:
            every = 0
            self._context.say(f"note: no micro-batch is replayed (run.replay): {reason}")
        parameters = list(model.parameters())
        replays = Replays(
            self._context,
            model,
            lambda batch: compute_apart(self._work, batch, parameters),
            every,
            kinds,
            alike=False,
        )
        replays.agreed = replays.active and was_found(self._context)
        replays.resume(*self._resumed)
        return replays

    def _end_attempt(
        self, error: ReplicasDifferError | WrongArithmeticError, replays: Replays, snapshots: JobSnapshots
    ) -> NoReturn:
        """Set aside the snapshots that may contain wrong numbers, record which node was wrong, and raise what ends the process.

        By all ranks. The next attempt resumes from a snapshot of the last step at which all ranks agreed, or before.
        """
        snapshots.wait(self._step)
        snapshots.memory.forget()
        returns = snapshots.has(replays.clean)
        then = f"the next attempt starts from a snapshot of {replays.right_until}" if returns else replays.start_again
        self._context.say(f"{error}; {then}")
        snapshots.set_aside(replays.clean)
        record_finding(self._context, error)
        raise error


def compute_apart(
    work: Work, batch: tuple[Any, ...], parameters: Sequence[nn.Parameter]
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Return the loss of a micro-batch, and its gradient for each parameter, as this process alone computes them.

    `work` returns the loss, or calls `backward` itself. Neither DistributedDataParallel, torch.compile, optimizers nor the
    gradients of the training take part. Raises ReplayError where it does neither.
    """
    pending = [parameter.grad for parameter in parameters]
    handle = register_optimizer_step_pre_hook(refuse_step)
    backward = Backward(parameters)
    try:
        for parameter in parameters:
            parameter.grad = None
        with (
            torch.enable_grad(),
            torch.compiler.set_stance("force_eager"),
            replaced(DistributedDataParallel, "forward", forward_alone),
            replaced(torch.autograd, "backward", backward),
            replaced(GradScaler, "unscale_", refuse_unscaling),
        ):
            loss = work(*batch)
            if not backward.losses and isinstance(loss, torch.Tensor) and loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
    finally:
        handle.remove()
        for parameter, gradient in zip(parameters, pending, strict=True):
            parameter.grad = gradient
    if not backward.losses:
        raise ReplayError("the function that was passed to run.replay returns no loss and calls no backward")
    return torch.stack(backward.losses), backward.gradients


class Backward:
    """Stands for `torch.autograd.backward`, which every `loss.backward()` calls, and adds the gradients here.

    Unlike that, it reaches neither `parameter.grad` nor the hooks of DistributedDataParallel.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """`parameters`: whose gradients are wanted, where they are trained."""
        self._parameters = parameters
        self.losses: list[torch.Tensor] = []  # scalars
        self.gradients: list[torch.Tensor | None] = [None] * len(parameters)

    def __call__(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        """See `torch.autograd.backward`."""
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        trained = [place for place, each in enumerate(self._parameters) if each.requires_grad]
        inputs = [self._parameters[place] for place in trained]
        found = torch.autograd.grad(losses, inputs, grad_tensors, retain_graph, create_graph, allow_unused=True)
        self.losses += [loss.detach().sum().float() for loss in losses]
        for place, new in zip(trained, found, strict=True):
            before = self.gradients[place]
            self.gradients[place] = new if before is None else before if new is None else before + new


def forward_alone(parallel: DistributedDataParallel, *inputs: Any, **more: Any) -> Any:
    """What `DistributedDataParallel.forward` does, without what it exchanges or prepares. Raises ReplayError."""
    if parallel.mixed_precision is not None:
        raise ReplayError("mixed_precision of DistributedDataParallel changes the parameters in the forward pass")
    if parallel.device_ids:
        [inputs], [more] = parallel.to_kwargs(inputs, more, parallel.device_ids[0])  # type: ignore[no-untyped-call]
    return parallel.module(*inputs, **more)


def refuse_step(*_: Any) -> NoReturn:
    """Raise ReplayError: a replay changes nothing."""
    raise ReplayError(
        "the function that was passed to run.replay calls optimizer.step(); let it end after the backward"
    )


def refuse_unscaling(*_: Any) -> NoReturn:
    """Raise ReplayError: a GradScaler would count it as the training's own, which may call it once per step."""
    raise ReplayError(
        "the function that was passed to run.replay calls unscale_() of a GradScaler; let it end after the backward"
    )


@contextmanager
def replaced(place: Any, name: str, stand_in: Any) -> Iterator[None]:
    """A context in which an attribute has another value."""
    before = getattr(place, name)
    setattr(place, name, stand_in)
    try:
        yield
    finally:
        setattr(place, name, before)


def require_one_model(context: Context, model: nn.Module) -> None:
    """Raise ReplayError, on all ranks, unless all have parameters and modules of the same names and shapes."""
    form = [(name, tuple(each.shape), each.requires_grad) for name, each in model.named_parameters()]
    names = [name for name, _ in model.named_modules()]
    marks = context.gather_number(zlib.crc32(repr((form, names)).encode()))
    odd = next((rank for rank, mark in enumerate(marks) if mark != marks[0]), None)
    if odd is not None:
        raise ReplayError(f"rank 0 and rank {odd} have different models")
