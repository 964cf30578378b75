"""What a script does after `slipway.resume` and has to do before, since in the next attempt it undoes what was restored."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import wraps
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slipway.protocol.mistake import ConfigurationError
from slipway.train.user.found import is_users, tensors_of
from slipway.train.user.objects import Objects
from slipway.train.user.saved_states import bits_of

SHOWN = 3  # parameters in a message
SEEDING = (
    (torch, "manual_seed"), (torch.random, "manual_seed"), (torch, "seed"), (np.random, "seed"), (random, "seed"),
    (torch.cuda, "manual_seed"), (torch.cuda, "manual_seed_all"),
)  # fmt: skip


class Weights:
    """The trained parameters as `slipway.resume` left them, until the loop begins: what is done within one is done again just so.

    Where a loop of `boundary` alone begins nobody knows, so there it is until the first step of any optimizer.
    """

    def __init__(
        self, objects: Objects, ignored: Collection[object], told: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`told`: a context that ends the process where it is left by a ConfigurationError."""
        self._passed, self._told = objects.of_kind(torch.optim.Optimizer), told
        trained = {
            id(each) for optimizer in self._passed for group in optimizer.param_groups for each in group["params"]
        }
        trained -= tensors_of(ignored) | normalized(objects.of_kind(nn.Module))
        self._before = {
            f"{name}.{key}": (parameter, kind_of(parameter), bits_of(parameter))
            for name, model in objects.named_of_kind(nn.Module).items()
            for key, parameter in model.named_parameters()
            if id(parameter) in trained and not is_lazy(parameter)
        }
        self._handle = register_optimizer_step_pre_hook(self._compare)

    def _compare(self, optimizer: torch.optim.Optimizer, args: object, more: object) -> None:
        # An optimizer around this one, such as SAM, may have moved the parameters in a step of its own.
        moved: set[int] = set()
        if not any(optimizer is each for each in self._passed):
            moved = {id(each) for group in optimizer.param_groups for each in group["params"]}
        # A forward moves some, such as MoCo's average of the encoder.
        moved |= {id(each) for each, *_ in self._before.values() if not each.requires_grad}
        self._require_same(moved)

    def begin_loop(self) -> None:
        """Compare where the loop begins. Raises ConfigurationError, by `told`, as the first step does."""
        if self._before:
            self._require_same(())

    def _require_same(self, moved: Collection[int]) -> None:
        before, self._before = self._before, {}
        changed = [
            name
            for name, (parameter, kind, bits) in before.items()
            if id(parameter) not in moved and kind_of(parameter) == kind and bits_of(parameter) != bits
        ]
        with self._told():
            if changed:
                raise ConfigurationError(
                    f"Weights were set after slipway.resume, which would be done again after a restart, over what was trained: "
                    f"{', '.join(changed[:SHOWN])}{f' and {len(changed) - SHOWN} more' if changed[SHOWN:] else ''}. Set them "
                    "before slipway.resume, which replaces them where it resumes; or say that this is right: ignore=(model,)."
                )

    def note_boundary(self, bare: bool) -> None:
        """Compare no more after the first step; torch goes through all hooks in a step, so none can be removed there."""
        if not self._before:
            self._handle.remove()

    def close(self) -> None:
        """Stop comparing."""
        self._before = {}
        self._handle.remove()


def kind_of(parameter: torch.Tensor) -> tuple[torch.device, torch.dtype]:
    """Return what changes where a model is moved, for which there is another message."""
    return parameter.device, parameter.dtype


def normalized(models: Collection[nn.Module]) -> set[int]:
    """Return the identities of weights that change in a forward pass already."""
    embeddings = [each for model in models for each in model.modules() if getattr(each, "max_norm", None) is not None]
    return tensors_of(embeddings)


class Seeding:
    """Who seeds the global random generators after `slipway.resume`, until the loop has begun.

    `run.epochs`, `steps` and `batches` restore the generators when they begin. In a loop of `boundary` alone it is too late then.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        """`warn` prints a line."""
        self._warn, self._lines, self._boundaries = warn, dict[str, str](), 0
        self._before: dict[str, str] = {}
        self._replaced = [(module, name, getattr(module, name)) for module, name in SEEDING]
        for module, name, usual in self._replaced:
            setattr(module, name, self._noting(usual, f"{module.__name__.replace('torch.random', 'torch')}.{name}"))

    def _noting(self, usual: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(usual)
        def noted(*args: Any, **more: Any) -> Any:
            if line := line_of_user(sys._getframe(1)):
                self._lines.setdefault(line, name)
            return usual(*args, **more)

        return noted

    def begin_loop(self) -> None:
        """Seeds count until the first boundary."""

    def note_boundary(self, bare: bool) -> None:
        """Warn at the second boundary of a loop of `bare` ones; one that seeds in each iteration does so again by then."""
        if not self._replaced:
            return
        self._boundaries += 1
        if bare and self._boundaries == 1:
            self._before, self._lines = self._lines, {}
            return
        if bare:
            for line, name in self._before.items():
                if line not in self._lines:
                    self._warn(
                        f"warning: {name} was called after slipway.resume ({line}): after a failure it is called again, and the "
                        "same random numbers are drawn a second time. Call it before slipway.resume."
                    )
        self.close()

    def close(self) -> None:
        """Look no more."""
        for module, name, usual in self._replaced:
            setattr(module, name, usual)
        self._replaced = []


def line_of_user(frame: FrameType | None) -> str:
    """Return `file:line` of the user's that called a function; empty where one of ours or nobody did."""
    while frame is not None and not is_users(frame.f_globals):
        if str(frame.f_globals.get("__name__", "")).startswith("slipway."):
            return ""
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame else ""
