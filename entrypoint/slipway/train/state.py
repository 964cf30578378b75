"""What a training consists of besides its step: weights, optimizer, random generators, as tensors and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from slipway.train.context import Context
from slipway.train.options import ConfigurationError
from slipway.train.snapshot import Snapshot


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by name (`3.exp_avg`) and as JSON. Its settings stay with the options."""
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    state = optimizer.state_dict()
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                values.setdefault(str(index), {})[name] = value
    return tensors, values


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], stored: Mapping[str, Any]
) -> None:
    """Undo `optimizer_state`; the tensors belong to the optimizer afterwards."""
    state: dict[int, dict[str, Any]] = {int(index): dict(entries) for index, entries in stored.items()}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of this process's random generators, as uint8 tensors: `cpu`, and `cuda` on a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(device: torch.device, states: Mapping[str, torch.Tensor]) -> None:
    """Undo `random_states`."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def load_model(model: nn.Module, snapshot: Snapshot, description: Mapping[str, Any]) -> None:
    """Copy the snapshot's weights into `model`. Raises ConfigurationError where it describes another model."""
    other = {
        name: value for name, value in snapshot.state["model"].items() if json_value(description.get(name)) != value
    }
    if other:
        wanted = ", ".join(f"{name} {value}, not {description.get(name)}" for name, value in other.items())
        raise ConfigurationError(f"The snapshot at step {snapshot.step} holds another model: {wanted}.")
    model.load_state_dict(snapshot.tensors["model"])


def align_buffers(model: nn.Module, context: Context) -> None:
    """Give all ranks rank 0's buffers: running statistics follow each rank's own share of the data."""
    for buffer in model.buffers():
        context.align(buffer)


def json_value(value: object) -> object:
    """A value as it comes back from JSON."""
    return json.loads(json.dumps(value))
