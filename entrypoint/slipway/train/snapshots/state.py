"""What a training consists of besides its step: weights, optimizer, random generators, as tensors and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.snapshot import Snapshot


def optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by name (`ln_f.bias.exp_avg`) and as JSON. Its settings stay with the options."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for parameter, entries in optimizer.state.items():
        for entry, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{names[parameter]}.{entry}"] = value
            else:
                values.setdefault(names[parameter], {})[entry] = value
    return tensors, values


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, torch.Tensor], stored: Mapping[str, Any]
) -> None:
    """Undo `optimizer_state`, for those parameters that it trains; the tensors belong to the optimizer afterwards."""
    named: dict[str, dict[str, Any]] = {name: dict(entries) for name, entries in stored.items()}
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition(".")
        named.setdefault(name, {})[entry] = tensor
    names = {parameter: name for name, parameter in model.named_parameters()}
    trained = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    parameters = dict(model.named_parameters())
    for name, entries in named.items():  # fused optimizers go by the order in memory, channels_last or not
        if name in parameters:
            named[name] = {entry: laid_out(value, parameters[name]) for entry, value in entries.items()}
    state = {number: named[name] for number, name in enumerate(trained) if name in named}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def laid_out(value: Any, parameter: nn.Parameter) -> Any:
    """A tensor of the parameter's shape in the parameter's order in memory; any other value as it is."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


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
    stored, own = snapshot.state["model"], json.loads(json.dumps(dict(description)))  # as JSON gives it back
    other = {name: value for name, value in stored.items() if own.get(name) != value}
    if other:
        wanted = ", ".join(f"{name} {value}, not {description.get(name)}" for name, value in other.items())
        raise ConfigurationError(f"The snapshot at step {snapshot.step} holds another model: {wanted}.")
    model.load_state_dict(snapshot.tensors["model"])
