"""What a script changes of a model beside its tensors: numbers that it keeps as attributes, and which parameters are frozen.

No `state_dict` has them. A temperature that is lowered in each step, a dropout that is set in some epoch and a layer that is
thawed there would be as the script builds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from slipway.train.user.names import inside_of, without_wrappers
from slipway.train.user.objects import Objects
from slipway.train.user.values import PLAIN

MODE = "training"  # each epoch sets it
FROZEN = "requires_grad"
Values = dict[str, Any]  # by the path of the attribute


class ModuleAttributes:
    """The plain attributes of the passed models' modules, and whether their parameters get gradients."""

    def __init__(self, objects: Objects) -> None:
        """As the script has built them."""
        self._models = {name: without_wrappers(model) for name, model in objects.named_of_kind(nn.Module).items()}
        self._built = self.values()

    def values(self) -> Values:
        """Return all of them."""
        found: Values = {}
        for path, module in self._modules():
            attributes = vars(module).items()
            found |= {
                f"{path}.{key}": value
                for key, value in attributes
                if type(value) in PLAIN and key != MODE and not key.startswith("_")
            }
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    found[f"{path}.{key}.{FROZEN}"] = parameter.requires_grad
        return found

    def changed(self) -> Values:
        """Return those that are not as the script has built them."""
        return {key: value for key, value in self.values().items() if key in self._built and self._built[key] != value}

    def load(self, changed: Mapping[str, Any]) -> None:
        """Have these be so, and all others as the script has built them."""
        wanted = {**self._built, **changed}
        for path, module in self._modules():
            for key, value in [*vars(module).items()]:
                if type(value) in PLAIN and (stored := wanted.get(f"{path}.{key}", value)) != value:
                    vars(module)[key] = stored
            for key, parameter in module._parameters.items():
                if parameter is not None and parameter.is_leaf:
                    parameter.requires_grad_(wanted.get(f"{path}.{key}.{FROZEN}", parameter.requires_grad))

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        for name, model in self._models.items():
            yield from ((path, module) for path, module in model.named_modules(prefix=name) if not inside_of(module))
