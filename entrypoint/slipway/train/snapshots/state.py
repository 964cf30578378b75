"""What a training consists of besides its step: weights, optimizer, random generators, as tensors and JSON."""

from __future__ import annotations

import json
import math
import random
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
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
    """Return the states of torch's random generators in this process as uint8 tensors: `cpu`, and `cuda` on a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def other_random_states() -> dict[str, torch.Tensor]:
    """Return the states of the generators of numpy and of Python's `random`, likewise: `numpy` and `python`.

    Nothing of ours uses them, and libraries may at any time: in the snapshots of `fit` they would be a difference by chance.
    """
    state: Any = np.random.get_state(legacy=False)  # of the generator that users call
    words, numbers = [0] * WORDS, [math.nan] * 3
    if state["bit_generator"] == MERSENNE:
        words, numbers = state["state"]["key"], [state["state"]["pos"], state["has_gauss"], state["gauss"]]
    _, integers, gauss = random.getstate()
    return {
        "numpy": as_bytes(words, numbers),
        "python": as_bytes(integers, [math.nan if gauss is None else gauss]),
    }


USUAL = 1  # version of a module's state, unless its class says otherwise
MERSENNE = "MT19937"  # numpy's global generator, unless somebody replaced it by one whose state has another form
WORDS = 624  # of its state


def as_bytes(integers: Any, numbers: Any) -> torch.Tensor:
    """Return 32-bit integers and after them float64 numbers as a uint8 tensor."""
    parts = np.asarray(integers, np.uint32).view(np.uint8), np.asarray(numbers, np.float64).view(np.uint8)
    return torch.from_numpy(np.concatenate(parts))


def from_bytes(stored: torch.Tensor, numbers: int) -> tuple[Any, list[float]]:
    """Undo `as_bytes`, where there are so many `numbers`."""
    raw = stored.numpy()
    return raw[: -8 * numbers].copy().view(np.uint32), raw[-8 * numbers :].copy().view(np.float64).tolist()


def set_random_states(device: torch.device, states: Mapping[str, torch.Tensor]) -> None:
    """Undo `random_states` and `other_random_states`; generators without a state are left as they are."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    if "numpy" in states:
        integers, [place, has_gauss, gauss] = from_bytes(states["numpy"], 3)
        if not math.isnan(place):  # where it is another kind of generator
            np.random.set_state((MERSENNE, integers, int(place), int(has_gauss), gauss))
    if "python" in states:
        integers, [gauss] = from_bytes(states["python"], 1)
        random.setstate((3, tuple(integers.tolist()), None if math.isnan(gauss) else gauss))


def load_random_states(device: torch.device, ranks: Mapping[str, torch.Tensor], rank: int | None, seed: int) -> None:
    """Restore the random generators of `rank` from a snapshot's `ranks`. Without them, or without a rank, start from `seed`."""
    states = {name.partition(".")[2]: state for name, state in ranks.items() if name.partition(".")[0] == str(rank)}
    if device.type in states:
        set_random_states(device, states)
        return
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def load_model(model: nn.Module, snapshot: Snapshot, description: Mapping[str, Any]) -> None:
    """Copy the snapshot's weights into `model`. Raises ConfigurationError where it describes another model."""
    stored, own = snapshot.state["model"], json.loads(json.dumps(dict(description)))  # as JSON gives it back
    other = {name: value for name, value in stored.items() if own.get(name) != value}
    if other:
        wanted = ", ".join(f"{name} {value}, not {description.get(name)}" for name, value in other.items())
        raise ConfigurationError(f"The snapshot at step {snapshot.step} holds another model: {wanted}.")
    model.load_state_dict(with_versions(snapshot.tensors["model"], snapshot.state.get("versions"), model))


def versions_of(model: nn.Module) -> dict[str, Any]:
    """Return the version that a module's part of the model's state has, by the module's name, if it is not the usual one."""
    versions = {name: own.get("version") for name, own in getattr(model.state_dict(), "_metadata", {}).items()}
    return {name: version for name, version in versions.items() if version != USUAL}


def with_versions(
    tensors: Mapping[str, torch.Tensor], versions: Mapping[str, Any] | None, model: nn.Module
) -> Mapping[str, torch.Tensor]:
    """Return a state that says of which version each module's part is, as `load_state_dict` needs it: a module may convert what
    an older version of it saved. `versions`: what `versions_of` returned; None: those of the model itself.
    """
    state: Any = OrderedDict(tensors)
    own = getattr(model.state_dict(), "_metadata", {})
    state._metadata = own if versions is None else {name: {"version": versions.get(name, USUAL)} for name in own}
    return state  # type: ignore[no-any-return]
