"""What a script says of its training, which may be other than what the run that it resumes was started with."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from slipway.protocol.mistake import ConfigurationError
from slipway.train.user.objects import Objects
from slipway.train.user.sources import inner_of

FOLLOWING = {
    "base_lrs",
    "_last_lr",
    "initial_lr",
}  # what schedulers take from the learning rate, or add to an optimizer


class Declared:
    """The numbers of the script beside those that the run was started with; names each difference once, and which one applies."""

    def __init__(self, objects: Objects, warn: Callable[[str], None]) -> None:
        """Before anything is restored; `warn` prints a line."""
        self._warn, self._run = warn, declared(objects)
        self._sizes: dict[str, float] = {}  # of batches, in the run so far
        self._read: set[str] = set()

    def load(self, stored: Mapping[str, Any]) -> None:
        """Compare with what a snapshot says of the run."""
        own, self._run, self._sizes = self._run, stored["numbers"], dict(stored["sizes"])
        for name in own.keys() & self._run.keys():
            if own[name] != self._run[name]:
                self._warn(
                    f"warning: {name} is {own[name]:g} in the script, and was {self._run[name]:g} when this run was started: "
                    f"{self._run[name]:g} applies, unless the script sets it after slipway.resume."
                )

    def note_batches(self, call: int, loader: Any) -> None:
        """Compare the size of the batches of a loader, in a `call` of `run.batches` in an epoch, from 0."""
        inner = inner_of(loader)
        size = getattr(inner, "batch_size", None) or getattr(getattr(inner, "batch_sampler", None), "batch_size", None)
        name = f"the batch size of run.batches{f' (call {call + 1} in an epoch)' if call else ''}"
        if not isinstance(size, int):
            return
        before, self._sizes[name] = self._sizes.get(name, size), size
        if size != before and name not in self._read:  # later the script's own plan changes it
            self._warn(
                f"warning: {name} is {size} in the script, and was {before:g} in the run so far: {size} applies."
            )
        self._read.add(name)

    def state(self) -> dict[str, Any]:
        """Return what a snapshot says of the run, as JSON."""
        return {"numbers": self._run, "sizes": self._sizes}


def declared(objects: Objects) -> dict[str, Any]:
    """Return the numbers in optimizers and schedulers as the script made them, before anything is restored, by name."""
    found: dict[str, Any] = {}
    for name, optimizer in objects.named_of_kind(torch.optim.Optimizer).items():
        for number, group in enumerate(optimizer.param_groups):
            own = {key: value for key, value in group.items() if key not in ("params", *FOLLOWING)}
            own["lr"] = group.get("initial_lr", group.get("lr"))  # a warm-up has changed it already
            where = f"{name} (group {number})" if len(optimizer.param_groups) > 1 else name
            found |= {f"{key} of {where}": value for key, value in numbers("", own)}
    for name, scheduler in objects.named_of_kind(LRScheduler).items():
        found |= {f"{key} of {name}": value for key, value in numbers("", scheduler.state_dict())}
    return found


def numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a value, by how one would write them after its name."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key not in FOLLOWING:
                yield from numbers(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from numbers(f"{name}[{number}]", each)
    elif isinstance(value, int | float):
        yield name, value
    elif isinstance(value, torch.Tensor) and value.numel() == 1:
        yield name, value.item()


def require_same_arguments(own: Sequence[str], stored: Sequence[str], run_dir: str) -> None:
    """Raise ConfigurationError where a script without launcher was started with other arguments than the run in its folder."""
    had, has = differing_options(stored, own)
    if had:
        raise ConfigurationError(
            f"The run in {run_dir} was started with other arguments: it had {had}, and this start has {has}. Start a new run in "
            "another folder: SLIPWAY_RUN_DIR=PATH; or go on with this one all the same: SLIPWAY_RESUME=auto."
        )


def differing_options(stored: Sequence[str], own: Sequence[str]) -> tuple[str, str]:
    """Return which of the arguments of two starts the other has not, as one would type them; empty texts where there are none."""
    before, now = options_of(stored), options_of(own)
    if sorted(before) == sorted(now):
        return "", ""
    had = shlex.join(word for each in before if each not in now for word in each)
    has = shlex.join(word for each in now if each not in before for word in each)
    return had or "no others", has or "no others"


def options_of(arguments: Sequence[str]) -> list[list[str]]:
    """Return arguments as options, each with its values."""
    found: list[list[str]] = []
    for each in arguments:
        if each.startswith("-") or not found:
            found.append([each])
        else:
            found[-1].append(each)
    return found
