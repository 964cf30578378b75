"""What a loop does that a restart cannot repeat, and the lines that say so."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

from slipway.train.own.names import state_of_model
from slipway.train.own.objects import Objects, shapes

SHOWN = 3  # names in a line
UNSET = re.compile(r"'(\w+)'")  # the variable in the message of a NameError


class Structure:
    """What the objects that were passed consisted of in `slipway.resume`, since that is what a restart will load states into."""

    def __init__(self, objects: Objects) -> None:
        """Look at them now."""
        self._objects = objects
        self._begun = dict(structures(objects))

    def changes(self) -> Iterator[str]:
        """Yield a line for each object that no restart could load any more, once."""
        for name, now in structures(self._objects):
            before = self._begun.pop(name, now)
            if isinstance(now, list) and now != before:
                yield (
                    f"warning: {name} has groups of {listed(now)} parameters, and had {listed(before)} in slipway.resume: no "
                    "restart can load the snapshots from here on. Give the optimizer all parameters before slipway.resume: "
                    "those that are frozen, without a gradient, stay as they are."
                )
            elif now != before:
                odd = sorted({key for key in {**now, **before} if now.get(key) != before.get(key)})
                yield (
                    f"warning: {name} has other tensors than in slipway.resume ({listed(odd)}): no restart can load the "
                    "snapshots from here on. Build the whole model before slipway.resume."
                )
            else:
                self._begun[name] = before


def structures(objects: Objects) -> Iterator[tuple[str, Any]]:
    """Yield what decides whether a state can be loaded, by object: shapes of tensors, numbers of parameters."""
    for name, model in objects.named_of_kind(nn.Module).items():
        yield name, shapes(state_of_model(model))  # compiled later, it has the same
    for name, optimizer in objects.named_of_kind(torch.optim.Optimizer).items():
        yield name, [len(group["params"]) for group in optimizer.param_groups]


def listed(values: list[Any]) -> str:
    """Return values in words, the first ones of many."""
    more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(map(str, values[:SHOWN])) + more


def explain_unset(error: BaseException | None, step: int) -> str:
    """Return why a variable had no value in a loop that resumed after `step`; empty for any other error."""
    named = UNSET.search(str(error)) if isinstance(error, NameError) else None
    frame = error.__traceback__ if error else None
    while frame and frame.tb_next:
        frame = frame.tb_next
    if not named or not frame or named[1] not in set_in(frame.tb_frame.f_code):
        return ""
    return (
        f"slipway: the loop resumed after step {step}, and `{named[1]}` is set in an iteration before that. Set it before the "
        f"loop, or keep it in run.state: run.state[{named[1]!r}]."
    )


def set_in(code: CodeType) -> set[str]:
    """Return the names of the variables that code gives a value."""
    stored = (each for each in dis.get_instructions(code) if each.opname.startswith("STORE_"))
    return {name for each in stored for name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))}
