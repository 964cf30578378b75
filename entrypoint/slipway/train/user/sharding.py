"""Tensors that `fully_shard` spread over ranks (FSDP2, HSDP): as this rank's part of them in a snapshot, and back."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.parts import RankParts, divide
from slipway.train.worker.context import Context

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

# Classes that keep different values on each rank, in a form of their own.
OTHERS = {
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "Use fully_shard (FSDP2) instead.",
    "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer": (
        "Use fully_shard (FSDP2), or the optimizer itself."
    ),
}


def is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor, of which each rank holds a part. The module that has it is slow to import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor; the tensor itself where that is all of it."""
    return tensor._local_tensor if is_sharded(tensor) else tensor


def require_known(path: str, value: Any) -> None:
    """Raise ConfigurationError for an object that is sharded in another way than by `fully_shard`."""
    modules = value.modules() if isinstance(value, nn.Module) else [value]
    for each in modules:
        for kind in type(each).__mro__:
            if advice := OTHERS.get(f"{kind.__module__}.{kind.__qualname__}"):
                raise ConfigurationError(f"{path}: slipway.resume cannot save a {kind.__name__}. {advice}")


class Layouts:
    """How the tensors of a user's objects lie on a mesh of ranks: by the mesh's form and their placements in it."""

    def __init__(self) -> None:
        """None is known yet."""
        self._known: dict[str, tuple[DeviceMesh, Any]] = {}
        self._complete = False

    def take_parts(self, tensors: dict[str, torch.Tensor], path: str) -> dict[str, list[Any]]:
        """Put this rank's part in the place of each sharded tensor. Returns layout, shape and stride of those, for JSON.

        Raises ConfigurationError for a layout that the objects did not have when they were passed.
        """
        found = {}
        for name, tensor in tensors.items():
            if is_sharded(tensor):
                found[name] = [self._note(tensor, f"{path}, {name}"), [*tensor.shape], [*tensor.stride()]]
                tensors[name] = tensor._local_tensor.detach()
        return found

    def join_parts(
        self, tensors: Mapping[str, torch.Tensor], sharded: Mapping[str, list[Any]], path: str
    ) -> dict[str, torch.Tensor]:
        """Undo `take_parts`. Raises ConfigurationError for a layout that the objects do not have."""
        joined = dict(tensors)
        for name, (layout, shape, stride) in sharded.items():
            if layout not in self._known:
                own = ", ".join(self._known) or "none"
                raise ConfigurationError(
                    f"{path}, {name}: in the snapshot it is spread over ranks as {layout}, and the objects that were passed to "
                    f"slipway.resume know: {own}. Call fully_shard as before, or start another run: --run-dir PATH."
                )
            from torch.distributed.tensor import DTensor

            mesh, placements = self._known[layout]
            with torch.no_grad():
                joined[name] = DTensor.from_local(
                    tensors[name], mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
                )
        return joined

    def divide(self, context: Context) -> RankParts:
        """Return which ranks hold the same parts of all tensors; by all ranks. No new layout is taken from now on."""
        self._complete = True
        places = {}
        for layout, (mesh, placements) in sorted(self._known.items()):
            coordinate = mesh.get_coordinate() or [-1] * mesh.ndim  # of a rank outside the mesh
            places[layout] = [
                place for place, placement in zip(coordinate, placements, strict=True) if not placement.is_replicate()
            ]
        digest = hashlib.blake2b(json.dumps(places).encode(), digest_size=7).digest()
        own = torch.tensor([int.from_bytes(digest, "little"), context.place.node_rank])
        digests, nodes = torch.stack(context.gather(own)).T.tolist()
        parts = divide(context.place, [digests.index(each) for each in digests], nodes)
        if parts.scattered:
            context.say(
                "note: parameters are spread over nodes that share no disk. If a node is lost, its part of all snapshots is lost "
                "with it, and the run has to start from the beginning. Choose a --run-dir that all nodes see, or keep a replica "
                "on another node (HSDP)."
            )
        return parts

    def _note(self, tensor: DTensor, path: str) -> str:
        if any(placement.is_partial() for placement in tensor.placements):
            raise ConfigurationError(f"{path}: a tensor that has not been reduced yet ({tensor.placements}).")
        mesh = tensor.device_mesh
        axes = ", ".join(
            f"{name or number}={size}"
            for number, (name, size) in enumerate(zip(mesh.mesh_dim_names or [""] * mesh.ndim, mesh.shape, strict=True))
        )
        layout = f"({axes}) {', '.join(map(str, tensor.placements))}"
        if layout not in self._known and self._complete:
            raise ConfigurationError(
                f"{path}: a tensor that is spread over ranks as {layout}, which no object was when slipway.resume was called. "
                "Call fully_shard before it."
            )
        self._known.setdefault(layout, (mesh, tensor.placements))
        return layout
