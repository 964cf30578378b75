"""What a task must be so that it can be saved and averaged: asked before the first step, not at the first snapshot."""

from __future__ import annotations

import torch

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.tensors import DTYPES
from slipway.train.task import Task


def require_saveable(task: Task) -> None:
    """Raise ConfigurationError for what would be lost: parameters outside the model, and states that no snapshot holds."""
    require_own_parameters(task)
    for name, value in task.model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise ConfigurationError(
                f"{name} in the state_dict() of the model of {task.name} is a {type(value).__name__}, and snapshots hold "
                "tensors alone. Return a tensor from get_extra_state (a text: torch.tensor(list(text.encode()), "
                "dtype=torch.uint8)), or keep the value in a buffer: register_buffer."
            )
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in DTYPES or value.layout != torch.strided:
            odd = kind if kind not in DTYPES else str(value.layout).removeprefix("torch.")
            raise ConfigurationError(
                f"{name} in the state_dict() of the model of {task.name} is {odd}, which safetensors does not hold. These are "
                f"saved: dense tensors of {', '.join(DTYPES)}."
            )


def require_own_parameters(task: Task) -> None:
    """Raise ConfigurationError where the optimizer trains a parameter that is not the model's."""
    own = set(map(id, task.model.parameters()))
    groups = enumerate(task.optimizer.param_groups)
    others = [
        f"number {place} of group {group} ({' × '.join(map(str, part.shape)) or 'a single value'})"
        for group, settings in groups
        for place, part in enumerate(settings["params"])
        if id(part) not in own
    ]
    if others:
        raise ConfigurationError(
            f"The optimizer of {task.name} trains {len(others)} parameter{'s' if len(others) > 1 else ''} outside the model: "
            f"{', '.join(others[:4])}. Nothing would average them over the processes or save them. Make them a part of the "
            "model: self.scale = nn.Parameter(…) in a module that holds both, whose forward returns what the loss needs."
        )
