"""What a snapshot of a user's loop may contain, and what is refused, with its path."""

from __future__ import annotations

import copy
import datetime
import enum
import json
import math
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.snapshot import Snapshot, load_snapshot, save_snapshot
from slipway.train.snapshots.state import load_model, versions_of
from slipway.train.snapshots.tensors import DTYPES
from slipway.train.user.gradients import FEW, Gradients
from slipway.train.user.objects import Objects
from slipway.train.user.unrepeatable import Modes, Structure, explain_unset
from slipway.train.user.values import Packing, from_bytes, pack, to_bytes, unpack

pytestmark = pytest.mark.pull

VALUES: list[Any] = [
    None, True, 0, 2**80, -1.5, math.inf, -math.inf, "ä\n", [], [1, [2]], (1, (2, "x")), {}, {"a": {1: 2}, "b": ()},
    OrderedDict(b=1, a=2), Counter({5: 2, 9: 1}), {"tensor": "no tensor"}, {"mapping": [1]}, torch.Size([2, 3]),
    defaultdict(list, a=[1]), defaultdict(None, a=1), {"deep": [defaultdict(Counter, {1: Counter("x")})]}, {1: "a", "1": "b"},
]  # fmt: skip


def form(value: Any) -> Any:
    """The types of a value and what it contains, and what defaultdicts make."""
    if isinstance(value, dict):
        return type(value), getattr(value, "default_factory", None), [(key, form(each)) for key, each in value.items()]
    return (type(value), [*map(form, value)]) if isinstance(value, list) else isinstance(value, tuple)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack(value, "run.state", tensors), allow_nan=False))
    found = unpack(packed, tensors)
    assert found == value
    assert form(found) == form(value)
    assert from_bytes(to_bytes(value, "it")) == value


@pytest.mark.parametrize("make", [list, dict, Counter, lambda: torch.zeros(2), lambda: np.zeros(2)])
def test_what_has_two_names_comes_back_as_one_thing(make: Callable[[], Any]) -> None:
    one = make()
    found = from_bytes(to_bytes({"a": one, "b": [make(), (one, [one])], "c": make()}, "run.state"))
    assert found["a"] is found["b"][1][0]
    assert found["a"] is found["b"][1][1][0]
    assert len({id(each) for each in (found["a"], found["b"][0], found["c"])}) == 3


class Loose(dict[str, Any]):
    """A mapping of a class of its own, whose items are attributes; others have none, and raise KeyError."""

    __getattr__ = dict.__getitem__


class LooseDefault(defaultdict[str, Any]):
    """A defaultdict of a class of its own."""


LOOSE = [(UserDict(), "collections.UserDict"), (ChainMap(), "ChainMap"), (MappingProxyType({}), "mappingproxy"), (Loose(), "Loose"),
    (LooseDefault(list), "LooseDefault"), (defaultdict(lambda: 1), "factory of its own"), (defaultdict(Loose), "factory of its own")]  # fmt: skip


@pytest.mark.parametrize(("value", "said"), LOOSE, ids=[said for _, said in LOOSE])
def test_a_mapping_that_would_come_back_as_another_is_refused_in_values_and_told_in_states(
    value: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        pack({"hist": value}, "run.state", {})
    others: list[str] = []
    Packing({}, others).pack({"hist": value}, "queue.state_dict()")
    assert len(others) == 1
    assert said in others[0]


def test_not_a_number_comes_back() -> None:
    assert math.isnan(unpack(pack(math.nan, "run.state", {}), {}))


@pytest.mark.parametrize("kind", DTYPES)
def test_a_tensor_of_every_type_that_safetensors_has_is_on_the_disk(kind: str, tmp_path: Any) -> None:
    value = torch.arange(6).reshape(2, 3).to(getattr(torch, kind)).T
    tensors: dict[str, torch.Tensor] = {}
    packed = pack({"x": [value]}, "run.state", tensors)
    path = save_snapshot(tmp_path, Snapshot(1, {"values": packed}, {"run": tensors}), 1)
    snapshot = load_snapshot(path)
    found = unpack(snapshot.state["values"], snapshot.tensors["run"])["x"][0]
    assert found.dtype == value.dtype
    assert found.contiguous().view(torch.uint8).tolist() == value.contiguous().view(torch.uint8).tolist()


@pytest.mark.parametrize(
    "value",
    [np.float32(1.5), np.int64(7), np.bool_(True), np.arange(6.0).reshape(2, 3), np.array(3 + 1j), np.zeros((0, 2))],
)
def test_what_is_numpys_comes_back_as_numpys(value: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    found = unpack(pack(value, "run.state", tensors), tensors)
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)


class Colour(enum.IntEnum):
    RED = 1


Pair = namedtuple("Pair", "a b")
DEEP: list[Any] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"f": print}, 'run.state["f"]: a builtin_function_or_method'),
        ({"f": lambda: 0}, 'run.state["f"]: a function'),
        ({"a": [1, {2}]}, 'run.state["a"][1]: a set'),
        ({"when": datetime.date(2020, 1, 1)}, 'run.state["when"]: an object of datetime.date'),
        ({1.5: 0}, "run.state: the key 1.5, a float"),
        ({True: 0}, "run.state: the key True, a bool"),
        ({"b": b"x"}, 'run.state["b"]: a bytes'),
        ({"c": Colour.RED}, 'run.state["c"]: an object of'),
        ({"p": Pair(1, 2)}, 'run.state["p"]: an object of'),
        ({"t": torch.zeros(2, dtype=torch.complex128)}, 'run.state["t"]: a tensor that is complex128'),
        ({"t": torch.zeros(2).to_sparse()}, 'run.state["t"]: a tensor that is sparse_coo'),
        ({"t": torch.zeros(2, device="meta")}, 'run.state["t"]: a tensor that is on the meta device'),
        ({"o": np.array([None])}, 'run.state["o"]: an array of object'),
        (DEEP, "more than 100 levels"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_refused_with_its_path(value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        pack(value, "run.state", {})
    assert said in str(error.value)
    assert "Allowed are" in str(error.value) or "dense" in str(error.value)


def snapshot_of(objects: Objects) -> Snapshot:
    tensors, packed, sharded = objects.collect()
    return Snapshot(5, {"objects": json.loads(json.dumps(packed)), "sharded": sharded}, tensors)


def test_a_model_of_another_shape_is_refused_and_three_tensors_are_named() -> None:
    stored = snapshot_of(Objects({"model": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))}))
    own = Objects({"model": nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(2, 2))})
    before = {name: tensor.clone() for name, tensor in own.named["model"][""].state_dict().items()}
    with pytest.raises(ConfigurationError) as error:
        own.load(stored)
    text = str(error.value)
    assert "0.weight: 4 × 3 in the snapshot, 5 × 3 in the model" in text
    assert text.count("in the snapshot,") == 3
    assert "and 2 more" in text
    after = own.named["model"][""].state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_snapshot_of_another_script_is_refused() -> None:
    stored = snapshot_of(Objects({"model": nn.Linear(1, 1), "ema": nn.Linear(1, 1)}))
    with pytest.raises(ConfigurationError, match=r"contains model, ema, and slipway.resume was called with model"):
        Objects({"model": nn.Linear(1, 1)}).load(stored)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"model": 5}, "model: an int has no state_dict"),
        ({"models": [nn.Linear(1, 1), print]}, "models[1]: a builtin_function_or_method has no"),
        ({"_model": nn.Linear(1, 1)}, "a name consists of letters from a to z, digits and _, and begins with a letter"),
        ({"modèle": nn.Linear(1, 1)}, "a name consists of letters from a to z, digits and _, and begins with a letter"),
        ({"ranks": nn.Linear(1, 1)}, "ranks= cannot be the name"),
        ({"Run": nn.Linear(1, 1)}, "snapshots have a file run of their own"),
        ({"netG": nn.Linear(1, 1), "netg": nn.Linear(1, 1)}, "on some disks its file would be the one of netG="),
    ],
)
def test_what_has_no_state_or_no_name_is_refused(named: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Objects(named)
    assert said in str(error.value)


class Gain(nn.Module):
    """A module whose first version had twice the weights, as MNASNet's blocks had others."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *more: Any) -> None:
        if metadata.get("version") != 2:
            state[f"{prefix}gain"] = state[f"{prefix}gain"] / 2
        super()._load_from_state_dict(state, prefix, metadata, *more)


class Keeper:
    """An object of a user's, with models in its state."""

    def __init__(self, *models: nn.Module) -> None:
        self.models = models

    def state_dict(self) -> dict[str, Any]:
        return {"all": [model.state_dict() for model in self.models]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for model, each in zip(self.models, state["all"], strict=True):
            model.load_state_dict(each)


def test_modules_know_the_version_of_what_they_load() -> None:
    def make(gain: float) -> tuple[nn.Module, Objects]:
        models = [nn.Sequential(nn.Linear(2, 2), Gain()), nn.Sequential(Gain())]
        nn.init.constant_(models[0][1].gain, gain), nn.init.constant_(models[1][0].gain, gain)  # type: ignore[arg-type]
        return nn.ModuleList(models), Objects({"model": models[0], "keeper": Keeper(models[1])})

    (old, stored), (new, own) = make(6), make(1)
    own.load(snapshot_of(stored))
    assert [each.tolist() for each in new.parameters()] == [each.tolist() for each in old.parameters()]
    snapshot = snapshot_of(stored)
    snapshot.state["objects"]["model"][""] = {
        "mapping": snapshot.state["objects"]["model"][""]["state"][0]
    }  # as before
    own.load(snapshot)
    assert new.get_parameter("0.1.gain").tolist() == [6, 6]


def test_fit_loads_a_model_of_the_version_that_it_saved() -> None:
    model, new = nn.Sequential(nn.Linear(2, 2), Gain()), nn.Sequential(nn.Linear(2, 2), Gain())
    assert versions_of(model) == {"1": 2}
    for versions, gain in ({"1": 2}, 1.0), ({}, 0.5), (None, 1.0):
        load_model(new, Snapshot(1, {"model": {}, "versions": versions}, {"model": model.state_dict()}), {})
        assert new.get_parameter("1.gain").tolist() == [gain, gain]


class Alike:
    """A key that prints like others."""

    def __repr__(self) -> str:
        return "key"


@pytest.mark.parametrize(
    "keys", [[Alike(), Alike()], [1, "1"], [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]]
)
def test_objects_whose_keys_print_alike_are_all_saved(keys: list[Any]) -> None:
    old, new = ({key: nn.Linear(1, 1) for key in keys} for _ in range(2))
    Objects({"models": new}).load(snapshot_of(Objects({"models": old})))
    assert all(torch.equal(new[key].weight, old[key].weight) for key in keys)


def compile_it(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def compile_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compile_a_part(model: nn.Module) -> nn.Module:
    model[1] = compile_it(model[1])  # type: ignore[index, operator]
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "as it is": lambda model: model,
    "compiled": compile_it,
    "compiled in place": compile_in_place,
    "a part compiled": compile_a_part,
    "compiled around DDP": lambda model: compile_it(DistributedDataParallel(model)),
    "DDP around compiled": lambda model: DistributedDataParallel(compile_it(model)),
    "DDP around a compiled part": lambda model: DistributedDataParallel(compile_a_part(model)),
    "DDP around a part": lambda model: nn.Sequential(DistributedDataParallel(model[0]), model[1]),  # type: ignore[index]
}


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


PAIRS = [(name, "as it is") for name in WRAPPERS] + [("as it is", name) for name in list(WRAPPERS)[1:]]


@pytest.mark.parametrize(("before", "after"), [*PAIRS, ("compiled around DDP", "DDP around a compiled part")])
def test_a_model_resumes_from_a_snapshot_in_whichever_wrappers_both_are(group: None, before: str, after: str) -> None:
    def make(wrapper: str) -> tuple[nn.Module, Objects]:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        wrapped = WRAPPERS[wrapper](model)
        average = torch.optim.swa_utils.AveragedModel(WRAPPERS[wrapper](copy.deepcopy(model)))
        return wrapped, Objects({"model": wrapped, "averages": [average]})

    (old, stored), (new, own) = make(before), make(after)
    x = torch.ones(1, 2)
    with torch.no_grad():
        assert not torch.equal(old(x), new(x))
        own.load(snapshot_of(stored))
        assert torch.equal(old(x), new(x))
    assert all(
        "_orig_mod" not in name and "module.module" not in name
        for tensors in own.collect()[0].values()
        for name in tensors
    )


@pytest.mark.parametrize("style", ["none after", "zeros after", "before backward", "two optimizers"])
def test_gradients_are_pending_between_a_backward_and_the_step(style: str) -> None:
    one, two = nn.Linear(2, 1), nn.Linear(1, 2)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (one, two)]
    gradients = Gradients(optimizers, lambda: True)
    for number in range(1, 4):
        if style == "before backward":
            optimizers[0].zero_grad()
        for _ in range(2):
            one(torch.ones(1, 2)).sum().backward()
            assert gradients.pending, "accumulating"
        optimizers[0].step()
        if style == "two optimizers":
            optimizers[1].zero_grad()
            one(two(torch.ones(1, 1))).sum().backward()  # into the first model, too
            optimizers[1].step()
            assert not gradients.pending
            optimizers[0].zero_grad()
        if style in ("none after", "zeros after"):
            optimizers[0].zero_grad(set_to_none=style == "none after")
        assert not gradients.pending
        assert gradients.steps == number


@pytest.mark.parametrize(("optimizers", "pending"), [(FEW - 1, False), (FEW, True)])
def test_what_many_optimizers_did_not_remember_counts_as_pending(optimizers: int, pending: bool) -> None:
    model = nn.Linear(2, 1)
    several = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(optimizers)]
    gradients = Gradients(several, lambda: False)
    assert not gradients.pending, "before the first backward"
    model(torch.ones(1, 2)).sum().backward()
    assert gradients.pending
    several[0].step()
    assert gradients.pending is pending


def test_names_may_have_capital_letters(tmp_path: Path) -> None:
    own = Objects({"netG": nn.Linear(1, 1), "optimizer_D2": nn.Linear(1, 1)})
    path = save_snapshot(tmp_path, snapshot_of(own), 1)
    own.load(load_snapshot(path))


def sparse_model() -> nn.Module:
    return nn.Embedding(5, 2, sparse=True)


@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 1), sparse_model], ids=["dense", "sparse"])
def test_gradients_that_became_zeros_in_place_are_not_pending(make: Callable[[], nn.Module]) -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = Gradients([optimizer], lambda: True)
    inputs = torch.tensor([1, 1]) if isinstance(model, nn.Embedding) else torch.ones(1, 2)
    for _ in range(2):
        model(inputs).sum().backward()
        assert gradients.pending or gradients.steps == 0
        optimizer.step()
        assert not gradients.pending
        optimizer.zero_grad(set_to_none=False)
        assert not gradients.pending


@pytest.mark.parametrize("first", [True, False])
def test_a_group_that_joins_after_the_step_is_pending_once_it_has_a_gradient(first: bool) -> None:
    old, new, other = (nn.Linear(2, 1) for _ in range(3))
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (old, other))
    gradients = Gradients([one, two] if first else [two, one], lambda: True)
    (old(torch.ones(1, 2)) + other(torch.ones(1, 2))).sum().backward()
    one.step()
    two.step()
    one.add_param_group({"params": list(new.parameters())})
    assert not gradients.pending
    new(torch.ones(1, 2)).sum().backward()
    assert gradients.pending


def lose_the_head(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    del model[1]  # type: ignore[attr-defined]


def grow_a_buffer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.register_buffer("seen", torch.zeros(3))


def grow_a_group(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def lengthen_a_group(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))


def grow_what_is_not_saved(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.register_buffer("scratch", torch.zeros(3), persistent=False)
    optimizer.param_groups[0]["lr"] = 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose_the_head, "model has other tensors than in slipway.resume (1.bias, 1.weight)"),
        (grow_a_buffer, "model has other tensors than in slipway.resume (seen)"),
        (grow_a_group, "optimizer has groups of 4, 1 parameters, and had 4"),
        (lengthen_a_group, "optimizer has groups of 5 parameters, and had 4"),
        (grow_what_is_not_saved, ""),
    ],
)
def test_what_no_restart_could_load_is_named_once(change: Callable[..., None], said: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = Structure(Objects({"model": model, "optimizer": optimizer}))
    assert list(structure.changes()) == []
    change(model, optimizer)
    lines = list(structure.changes())
    assert len(lines) == bool(said)
    assert said in "".join(lines)
    assert list(structure.changes()) == []


def leave_in_eval(step: int, model: nn.Module, other: nn.Module) -> None:
    if step == 3:
        model.eval()


def validate_well(step: int, model: nn.Module, other: nn.Module) -> None:
    model.eval()
    model.train()


def freeze_a_part(step: int, model: nn.Module, other: nn.Module) -> None:
    next(model.children()).eval()


def evaluate_the_other(step: int, model: nn.Module, other: nn.Module) -> None:
    other.train(step % 2 == 0)


def stay_in_eval(step: int, model: nn.Module, other: nn.Module) -> None:
    model.eval()


@pytest.mark.parametrize(
    ("validate", "told"),
    [
        (leave_in_eval, True),
        (validate_well, False),
        (freeze_a_part, False),
        (evaluate_the_other, False),
        (stay_in_eval, False),
    ],
)
@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel])
def test_a_model_that_a_validation_leaves_in_eval_mode_is_named_once(
    validate: Callable[..., None], told: bool, wrap: Callable[..., nn.Module]
) -> None:
    model, other = nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[str] = []
    Modes(Objects({"net": wrap(model), "ema": other, "optimizer": optimizer}), said.append)
    for step in range(6):
        validate(step, model, other)
        optimizer.step()
    assert [line.partition(" has")[0] for line in said] == ["warning: net"] * told


def unset_in_function(made: bool) -> None:
    if made:
        loss = 1.0
    print(loss)


UNSET_IN_MODULE = "for loss in ():\n    pass\nprint(loss)"


@pytest.mark.parametrize(
    ("fail", "named"),
    [
        (lambda: unset_in_function(False), "`loss`"),
        (lambda: exec(compile(UNSET_IN_MODULE, "train.py", "exec"), {}), "`loss`"),
        (lambda: misspelt, ""),  # type: ignore[name-defined]  # noqa: F821
        (lambda: {}["loss"], ""),
    ],
)
def test_a_variable_of_an_earlier_iteration_is_explained(fail: Callable[[], object], named: str) -> None:
    with pytest.raises((NameError, KeyError)) as error:
        fail()
    said = explain_unset(error.value, 7)
    assert (f"the loop resumed after step 7, and {named} is set in an iteration before that" in said) is bool(named)
    assert bool(said) is bool(named)
    assert explain_unset(None, 7) == ""
