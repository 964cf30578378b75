"""What changes along with the objects that were passed to `slipway.resume`, and would start from nothing in the next attempt."""

from __future__ import annotations

import random
import re
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import counted
from slipway.train.user.data_attributes import LONGEST
from slipway.train.user.found import (
    GENERATORS,
    FoundObject,
    Variable,
    found_objects,
    has_state,
    live_objects,
    tensors_of,
    walk,
)
from slipway.train.user.module_attributes import tensors_at, version_of
from slipway.train.user.names import without_wrappers
from slipway.train.user.objects import NAME, Objects
from slipway.train.user.saved_states import SavedStates, bits_of, is_drawn_on, mark_of
from slipway.train.user.script_places import ScriptPlaces
from slipway.train.user.script_tensors import ScriptTensors
from slipway.train.user.sources import inner_of
from slipway.train.user.step_numbers import StepNumbers
from slipway.train.user.too_late import Seeding, Weights
from slipway.train.user.weight_copies import WeightCopies
from slipway.train.worker.context import Context

ALONE = 10  # boundaries with steps of other optimizers alone; a gradient scaler may leave out a few steps
SEARCHES = (
    4  # each boundary whose number is a power of two is looked at; at one of so many the script is searched again
)
WORDS = (
    (torch.optim.Optimizer, "the optimizer "), (LRScheduler, "the scheduler "), (nn.Module, "the model "),
    (GENERATORS, "the random generator "),
)  # fmt: skip


@dataclass
class Bystander:
    """An object that is not passed, what it was like when it was found, and whether that was after `slipway.resume`."""

    found: FoundObject
    mark: Hashable
    late: bool
    told: bool = False


class Unsaved:
    """Warns once of each object that trains and is in no snapshot; refuses what makes snapshots useless.

    What there is when `slipway.resume` returns and at the first boundary is watched: at that one and, since some things change
    late (a network that is copied every thousand steps), at later ones, which become ever rarer.
    """

    def __init__(
        self, objects: Objects, tensors: ScriptTensors, context: Context, ignored: Collection[object], keeps: bool
    ) -> None:
        """Note which optimizers of this process step, until `close`. `keeps`: there are snapshots at all."""
        self._tensors = tensors
        self.script: ScriptPlaces | None = None  # from where the loop begins
        self._objects, self._context, self._keeps = objects, context, keeps
        self._ignored = [without_wrappers(each) for each in ignored]
        self._seen: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._read: WeakSet[DataLoader[Any]] = WeakSet()
        self._watched: dict[int, Bystander] = {}
        self._stateless: dict[str, tuple[weakref.ref[torch.Tensor], Hashable, int | None]] = {}
        self._weight_copies = WeightCopies(objects, self._ignored)
        self._step_numbers = StepNumbers(objects, self._ignored)
        self._told: WeakSet[torch.optim.Optimizer] = WeakSet()  # of parameters that are nowhere else
        self._told_draws = False
        self._passed = WeakSet(objects.of_kind(torch.optim.Optimizer))
        self._lately: WeakSet[torch.optim.Optimizer] = WeakSet()  # others, since one that was passed stepped
        self._alone = self._longest = self._boundaries = (
            0  # of boundaries: at which these stepped alone, now and at most; all
        )
        self._dtype, self._told_swap = dtype_of(objects), False
        self._late: list[Weights | Seeding] = []
        self._handle = register_optimizer_step_post_hook(self._note_step)
        self._seeded = set[int]()  # generators of `random` that were seeded since the last look
        self._seed = random.Random.seed
        random.Random.seed = self._noting_seed()  # type: ignore[method-assign]

    def begin(self, told: Callable[[], AbstractContextManager[None]]) -> None:
        """When `slipway.resume` returns. `told`: ends the process with one line where a ConfigurationError leaves it."""
        self.search()
        self._weight_copies.note()
        self._step_numbers.note()
        self._stateless = {
            name: (weakref.ref(each), (each.shape, bits_of(each)), version_of(each))
            for name, each, _ in stateless(self._objects)
        }
        if self._context.place.rank == 0:  # DistributedDataParallel gives rank 0's weights to the others
            self._late = [Weights(self._objects, self._ignored, told), Seeding(self._context.warn)]

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, more: object) -> None:
        self._seen.add(optimizer)
        if optimizer in self._passed:
            self._longest, self._alone = max(self._longest, self._alone), 0
            self._lately.clear()
        else:
            self._lately.add(optimizer)

    def _noting_seed(self) -> Callable[..., None]:
        usual, seeded = self._seed, self._seeded

        def seed(generator: random.Random, *args: Any, **more: Any) -> None:
            seeded.add(id(generator))
            usual(generator, *args, **more)

        return seed

    def note_read(self, loader: Any) -> None:
        """Note that `run.batches` reads from a loader: whatever this draws from is a part of the training."""
        if isinstance(inner := inner_of(loader), DataLoader):
            self._read.add(inner)

    def note_draws(self, loader: Any) -> None:
        """Name once a loader whose worker processes draw random numbers that depend on where a pass over it began."""
        if self._keeps and not self._told_draws and not any(loader is each for each in self._ignored):
            self._told_draws = True
            self._warn(
                "worker processes of a DataLoader draw random numbers for its samples: after a resume within an epoch they draw "
                "others. Seed each sample by its position: run.batches(loader, exact_augmentation=True); or say that this is "
                "right: ignore=(loader,)."
            )

    def begin_loop(self) -> None:
        """Note that a loop of `epochs`, `steps` or `batches` has begun."""
        for each in self._late:
            each.begin_loop()

    def search(self) -> None:
        """Watch what there is now, besides what is passed or ignored."""
        self._watched = {number: each for number, each in self._watched.items() if each.found.ref() is not None}
        for found in found_objects([*self._objects.all, *self._ignored]):
            value = found.ref()
            if (found.name or isinstance(value, AveragedModel)) and id(value) not in self._watched:
                with suppress(Exception):  # of somebody's state_dict
                    self._watched[id(value)] = Bystander(found, mark_of(value), self._boundaries > 0)

    def look(self, saved_generators: Collection[int], bare: bool) -> None:
        """At a boundary: name what changed and is not saved.

        `saved_generators`: the identities of those that are. `bare`: the loop calls `boundary` alone.
        """
        self._boundaries += 1
        for each in self._late:
            each.note_boundary(bare)
        if not self._keeps or self._boundaries & (self._boundaries - 1):
            return
        searches = self._boundaries.bit_length() % SEARCHES == 1
        if searches:
            self.search()
        saved = SavedStates(self._objects)
        trained = {id(each) for optimizer in self._seen for each in parameters_of(optimizer)}
        for watched in self._watched.values():
            value = watched.found.ref()
            if value is None:
                continue
            if id(value) in saved_generators:  # for good: the next epoch's loader may have another one
                watched.told = True
                continue
            with suppress(Exception):  # of somebody's state_dict
                trains = not watched.told and self._trains(value, watched, trained)
                if trains and not saved.has(value) and not self._is_beside(value):
                    watched.told = True
                    self._warn(self._line(watched, value))
                if watched.told and not isinstance(value, GENERATORS):
                    saved.add(value, watched.found.name)  # what it has in it needs no line of its own
        self._seeded.clear()
        self._look_for_parameters(saved)
        self._look_into_modules(saved)
        for owner, name in self._step_numbers.changed():
            remedy = "Pass an object with state_dict() and load_state_dict() that has its numbers"
            if isinstance(owner.ref(), nn.Module):
                remedy = f"Pass it: {self._keyword(owner)}={owner.name or '…'}"
            self._warn(
                f"{owner} changes with the training ({name}), and is not saved: after a failure it starts from its beginning. "
                f"{remedy}; or say that this is right: ignore=({owner.name or '…'},)."
            )
        for place in self._tensors.outgrown():
            self._warn(
                f"{place.name} ({place.where()}) is changed where it is, and is too large to be saved: after a failure it starts "
                f"from its beginning. Make it a buffer of a model that is passed; or say that this is right: "
                f"ignore=({place.name},)."
            )
        for place in self.script.outgrown() if self.script else ():
            self._warn(
                f"{place.name} ({place.where()}) changes with the training, and cannot be saved: it has more than {LONGEST} "
                "values, large tensors or some on a device. After a failure it starts from its beginning. Keep its values in "
                "tensors that are made before the loop and changed where they are; or say that this is right: "
                f"ignore=({place.name},)."
            )
        for place in self._weight_copies.lost(saved) if searches else ():
            if self.script and self.script.keeps(place.value):
                continue
            where = f" ({found})" if (found := place.where()) else ""
            self._warn(
                f"the tensors in {place.name}{where} change with the training, and are not saved: after a failure they start "
                "from their beginning. Pass an object with state_dict() and load_state_dict() that has them; or say that this "
                f"is right: ignore=({place.name},)."
            )

    def _trains(self, value: Any, watched: Bystander, trained: set[int]) -> bool:
        """Whether an object takes part in the training, or changes with it."""
        if isinstance(value, LRScheduler) and without_wrappers(value.optimizer) in self._seen:
            return True
        if (isinstance(value, AveragedModel) and watched.found.name) or tensors_of([value]) & trained:
            return True
        if isinstance(value, torch.optim.Optimizer) and value in self._seen:
            return True
        before, watched.mark = watched.mark, mark_of(value)
        seeded = id(value) in self._seeded
        if isinstance(value, torch.Generator):
            seeded = watched.mark[:1] != before[:1]  # type: ignore[index]
        if isinstance(value, np.random.RandomState) and watched.mark != before:
            seeded = not is_drawn_on(before, watched.mark)
        return watched.mark != before and not seeded

    def _is_beside(self, value: Any) -> bool:
        """Whether only loaders that `run.batches` does not read lead to a generator, such as one for a validation."""
        if not isinstance(value, GENERATORS):
            return False
        loaders = live_objects(lambda kind: issubclass(kind, DataLoader))
        leading = [each for each in loaders if id(value) in walk([Variable(each, "", str)])]
        return bool(leading) and not any(each in self._read for each in leading)

    def _look_for_parameters(self, saved: SavedStates) -> None:
        """Name optimizers that train what belongs to no module that was found."""
        modules = [each.found.ref() for each in self._watched.values()]
        known = tensors_of([*self._objects.all, *self._ignored, *modules])
        for optimizer in [*self._seen]:
            own = [each for each in parameters_of(optimizer) if each.requires_grad and id(each) not in known]
            lost = [each for each in own if not saved.has_tensor(each)]
            if lost and optimizer not in self._told:
                self._told.add(optimizer)
                self._warn(
                    f"{type(optimizer).__name__} trains {counted(len(lost), 'parameter')} of no model that was passed to "
                    "slipway.resume, and after a failure starts there from nothing. Pass what holds them: model=model, or "
                    "weights=nn.ParameterList([…])."
                )

    def _look_into_modules(self, saved: SavedStates) -> None:
        """Name tensors of the passed models that change, and that no snapshot has. An attribute that is only replaced may be a
        result. A short one is saved (see ModuleAttributes), unless it was changed behind torch's back, through `.data`.
        """
        for name, tensor, owner in stateless(self._objects):
            ref, before, version = self._stateless.get(name, (lambda: None, None, None))
            if before is None or (tensor.shape, bits_of(tensor)) == before:
                continue
            key, replaced = name.rpartition(".")[2], ref() is not tensor
            kept = any(tensor is each for _, each in tensors_at("", owner)) and (
                replaced or version_of(tensor) != version
            )
            changed = not kept and (not replaced or key in owner._buffers)
            if changed and not saved.has_tensor(tensor) and not any(each is tensor for each in self._ignored):
                del self._stateless[name]
                self._warn(
                    f"{name} changes with the training, and is not in the model's state_dict: after a failure it starts from "
                    f"its beginning. Make it a buffer that is saved: register_buffer({key!r}, …); or say "
                    f"that this is right: ignore=({name},)."
                )

    def _line(self, watched: Bystander, value: Any) -> str:
        """Return what to say of an object."""
        found = watched.found
        what = next((word for kind, word in WORDS if isinstance(value, kind)), "")
        make = "Make it before slipway.resume, and pass it" if watched.late or not found.name else "Pass it"
        return (
            f"{what}{found} was not passed to slipway.resume: after a failure it starts from its beginning. "
            f"{make}: {self._keyword(found)}={found.name or '…'}; or say that this is right: ignore=({found.name or '…'},)."
        )

    def _keyword(self, found: FoundObject) -> str:
        """Return a name for an object among the arguments of `slipway.resume`."""
        words = [word.lower().strip("_") for word in re.findall(r"[^\W\d]\w*", found.name)]
        word = next((word for word in reversed(words) if NAME.fullmatch(word)), found.kind.lower())
        return f"{word}_2" if word in self._objects.named else word

    def require_own_steps(self) -> None:
        """At a boundary where no optimizer had stepped that was passed. Names others that have taken their place; raises
        ConfigurationError where only others ever step.
        """
        passed, others = self._objects.of_kind(torch.optim.Optimizer), [*self._lately]
        self._alone += bool(others)
        if not others or self._alone < max(ALONE, 3 * self._longest):
            return
        if any(each in self._seen for each in passed):
            if not self._told_swap:
                self._told_swap = True
                self._warn(
                    f"{type(others[0]).__name__} steps now, and the {type(passed[0]).__name__} that was passed to slipway.resume "
                    "no more: nothing is saved from here on. Make both before slipway.resume, and pass both."
                )
            return
        if within := attribute_of(passed[0], others[0]):
            named = (each.name for each in found_objects() if each.name and each.ref() is others[0])
            raise ConfigurationError(
                f"{type(passed[0]).__name__} was passed to slipway.resume, and only the {type(others[0]).__name__} in it "
                f"steps, so no step was counted, and nothing can be saved. Pass that one: "
                f"optimizer={next(named, f'….{within}')}."
            )
        raise ConfigurationError(
            f"{type(others[0]).__name__} trains, not the {type(passed[0]).__name__} that was passed to slipway.resume, so "
            "no step was counted, and nothing can be saved. Create the model and the optimizer once, before slipway.resume."
        )

    def require_in_place(self) -> None:
        """Raise ConfigurationError where the models are on another device, or of another type, than when the run began."""
        device, found, dtype = self._context.device, device_of(self._objects), dtype_of(self._objects)
        if found.type != device.type:
            was, now, move = f"on {device}", f"on {found}", f"model.to({found.type!r})"
        elif dtype != self._dtype:
            was, now, move = str(self._dtype), str(dtype), f"model.to({dtype})"
        else:
            return
        raise ConfigurationError(
            f"The model was {was} in slipway.resume, and is {now} now. Move it first: {move}, then make the optimizer, then call "
            "slipway.resume."
        )

    def _warn(self, text: str) -> None:
        if self._context.place.rank == 0:
            self._context.warn(f"warning: {text}")

    def close(self) -> None:
        """Look no more."""
        self._handle.remove()
        random.Random.seed = self._seed  # type: ignore[method-assign]
        for each in self._late:
            each.close()


def stateless(objects: Objects) -> Iterator[tuple[str, torch.Tensor, nn.Module]]:
    """Yield the tensors that modules of the passed models have as attributes or as buffers that are not saved, and the module."""
    for name, model in objects.named_of_kind(nn.Module).items():
        for path, module in without_wrappers(model).named_modules(prefix=name):
            unsaved = {key: module._buffers[key] for key in module._non_persistent_buffers_set}
            for key, value in {**vars(module), **unsaved}.items():
                if isinstance(value, torch.Tensor) and has_state(type(module)):
                    yield f"{path}.{key}", value, module


def attribute_of(outer: object, inner: object) -> str:
    """Return the name under which one object has another, empty where it does not."""
    return next((name for name, value in vars(outer).items() if value is inner), "")


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters that an optimizer trains."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def device_of(objects: Objects) -> torch.device:
    """Return the device that the models are on."""
    for model in objects.of_kind(nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return torch.device(tensor.device)
    return torch.device("cpu")


def dtype_of(objects: Objects) -> torch.dtype | None:
    """Return the type of the models' first parameter, None where there is none."""
    parameters = (parameter for model in objects.of_kind(nn.Module) for parameter in model.parameters())
    return next((parameter.dtype for parameter in parameters), None)
