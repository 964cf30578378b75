"""What changes along with a training and is not saved is named at the first start, and nothing else is."""

from __future__ import annotations

import copy
import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler

import slipway

pytestmark = [pytest.mark.pull, pytest.mark.usefixtures("own_run")]
Adam, SGD = torch.optim.Adam, torch.optim.SGD


def net(width: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 1))


def teach(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """One step of each."""
    for optimizer in optimizers:
        optimizer.zero_grad()
        model(torch.ones(3, 2)).square().sum().backward()
        optimizer.step()


def refused(capsys: pytest.CaptureFixture[str], act: Callable[[], object]) -> str:
    """What is said by an end with 78."""
    with pytest.raises(SystemExit) as end:
        act()
    assert end.value.code == 78
    return capsys.readouterr().err


class Shadow:
    """An average as people write it."""

    def __init__(self, model: nn.Module) -> None:
        self.values = {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, each in model.named_parameters():
            self.values[name].lerp_(each.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": {name: each.clone() for name, each in self.values.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


class Agent:
    """Networks in one object, which is passed as a whole."""

    def __init__(self) -> None:
        self.actor, self.critic = net(), net()
        self.optimizer = Adam([*self.actor.parameters(), *self.critic.parameters()])

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in ("actor", "critic", "optimizer")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, each in state.items():
            getattr(self, name).load_state_dict(each)


class Around(torch.optim.Optimizer):
    """An optimizer around another one, as SAM is."""

    def __init__(self, parameters: Any, saves: bool = False) -> None:
        super().__init__(parameters, {})
        self.base, self.saves = Adam(self.param_groups), saves

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict() if self.saves else super().state_dict()


class Accuracy(nn.Module):
    """A metric."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hits", torch.zeros(()))

    def compute(self) -> float:
        return float(self.hits)

    def reset(self) -> None:
        self.hits.zero_()


class Drawn:
    """A data set that draws from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> float:
        return self.rng.random()


# Each loop is a first start; what has to be named there is in its decorator.

Loop = Callable[[], None]
LOOPS: list[tuple[Loop, tuple[str, ...]]] = []


def names(*expected: str) -> Callable[[Loop], Loop]:
    def note(loop: Loop) -> Loop:
        LOOPS.append((loop, expected))
        return loop

    return note


@names("AveragedModel ema", "Sequential mine", "Shadow shadow")
def averages() -> None:
    model, mine = net(), net()
    ema, shadow, optimizer = AveragedModel(model), Shadow(model), Adam(model.parameters())
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(3):
        teach(model, optimizer)
        ema.update_parameters(model)
        shadow.update(model)
        for one, other in zip(mine.parameters(), model.parameters(), strict=True):
            one.data.lerp_(other.data, 0.1)


@names()
def averages_that_are_passed_or_ignored() -> None:
    model, mine = net(), net()
    ema, shadow, optimizer = AveragedModel(model), Shadow(model), Adam(model.parameters())
    run = slipway.resume(model=model, optimizer=optimizer, ema=ema, shadow=shadow, ignore=(mine,))
    for _ in run.steps(3):
        teach(model, optimizer)
        ema.update_parameters(model)
        shadow.update(model)
        mine.load_state_dict(model.state_dict())


@names("Sequential target")
def a_network_that_is_copied_late() -> None:
    model, target = net(), net()
    optimizer = Adam(model.parameters())
    run = slipway.resume(model=model, optimizer=optimizer)
    for number in run.steps(5):
        teach(model, optimizer)
        if number == 2:
            target.load_state_dict(model.state_dict())


@names("Sequential D", "Adam od")
def a_second_network() -> None:
    model, D = net(), nn.DataParallel(net()).module  # noqa: N806
    optimizer, od = Adam(model.parameters()), Adam(D.parameters())
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(2):
        teach(D, od)
        teach(model, optimizer)


@names("AdamW optimizer", "StepLR schedule", "ReduceLROnPlateau plateau")
def what_belongs_to_an_optimizer() -> None:
    model, other = net(), net()
    optimizer, second = torch.optim.AdamW(model.parameters()), Adam(other.parameters())
    schedule, plateau = StepLR(optimizer, 1), ReduceLROnPlateau(second)
    run = slipway.resume(model=[model, other], optimizer=second)
    for _ in run.steps(2):
        teach(model, optimizer)
        teach(other, second)
        schedule.step()
        plateau.step(1.0)


@names()
def schedulers_in_one_that_is_passed() -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    first, then = ConstantLR(optimizer), LambdaLR(optimizer, lambda step: 1 / (1 + step))
    schedule, plateau = SequentialLR(optimizer, [first, then], [2]), ReduceLROnPlateau(optimizer)
    run = slipway.resume(model=model, optimizer=optimizer, schedule=[schedule, plateau])
    for _ in run.steps(4):
        teach(model, optimizer)
        schedule.step()
        plateau.step(1.0)


@names("Adam optimizer.base")
def an_optimizer_within_another_one() -> None:
    model = net()
    optimizer = Around(model.parameters())
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(2):
        teach(model, optimizer)


@names()
def an_optimizer_that_the_other_one_saves() -> None:
    model = net()
    optimizer = Around(model.parameters(), saves=True)
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(2):
        teach(model, optimizer)


@names("GradScaler scaler")
def a_scaler() -> None:
    model = net()
    optimizer, scaler = SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    unused, off = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(2):
        scaler.scale(model(torch.ones(3, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert unused.is_enabled() > off.is_enabled()


@names("Generator rng", "Random self.draw", "RandomState legacy")
def generators_of_the_loop() -> None:
    class Batches:
        def __init__(self) -> None:
            self.draw = random.Random(0)
            self.made_data = random.Random(1)
            self.made_data.random()

        def train(self) -> None:
            rng, legacy, seeded = np.random.default_rng(0), np.random.RandomState(0), torch.Generator()
            again, older = random.Random(0), np.random.RandomState(0)
            model = net()
            optimizer = SGD(model.parameters(), 0.1)
            run = slipway.resume(model=model, optimizer=optimizer)
            for step in run.steps(2):
                seeded.manual_seed(step)
                torch.rand(1, generator=seeded)
                again.seed(step)
                again.random()
                older.seed(step)
                older.rand(1000)
                rng.random(), legacy.rand(), self.draw.random(), np.random.rand(), random.random(), torch.rand(1)
                teach(model, optimizer)

    Batches().train()


@names("Generator loader.dataset.rng")
def generators_of_data() -> None:
    own, held = torch.Generator(), torch.Generator()
    loader = DataLoader(Drawn(0), sampler=RandomSampler(range(4), generator=own))  # type: ignore[arg-type]
    validation = DataLoader(Drawn(1), shuffle=True, generator=held)  # type: ignore[arg-type]
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.epochs(2):
        for _ in run.batches(loader):
            teach(model, optimizer)
            assert len([*validation]) == 4


class Noam:
    """A schedule around an optimizer, as many scripts have it."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module | None = None) -> None:
        self.optimizer, self.number = optimizer, 0
        if model:
            self.model = model

    def step(self) -> None:
        self.number += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 / self.number


class SavedNoam(Noam):
    """One that is passed."""

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


@names("Noam noam")
def schedules_of_ones_own() -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    noam, saved, ignored, idle = Noam(optimizer), SavedNoam(optimizer), Noam(optimizer), Noam(optimizer)
    trainer = Noam(optimizer, model)  # whose numbers may be there to be shown
    run = slipway.resume(model=model, optimizer=optimizer, saved=saved, ignore=(ignored,))
    for _ in run.steps(4):
        teach(model, optimizer)
        for each in (noam, saved, ignored, trainer):
            each.step()
    assert not idle.number


@names("PowerSGDState state")
def a_hook_that_compresses_gradients() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(net())
        state = PowerSGDState(process_group=None)
        model.register_comm_hook(state, powerSGD_hook)
        DistributedDataParallel(net()).register_comm_hook(None, fp16_compress_hook)
        optimizer = SGD(model.parameters(), 0.1)
        run = slipway.resume(model=model, optimizer=optimizer)
        for _ in run.steps(4):
            teach(model, optimizer)
    finally:
        dist.destroy_process_group()


@names()
def a_generator_that_is_made_in_each_epoch() -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    run = slipway.resume(model=model, optimizer=optimizer)
    for epoch in run.epochs(4):
        for part in (0, 1):
            generator = torch.Generator().manual_seed(2 * epoch + part)
            for _ in run.batches(DataLoader(list(range(3)), shuffle=True, generator=generator)):  # type: ignore[arg-type]
                teach(model, optimizer)


@names()
def what_does_not_train() -> None:
    model, metric = net(), Accuracy()
    parallel, tied = nn.DataParallel(model), nn.Sequential(model[0])
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer, of_others = SGD(model.parameters(), 0.1), Adam([torch.ones(1)])
    run = slipway.resume(model=parallel, optimizer=optimizer)
    for _ in run.steps(4):
        teach(parallel, optimizer, of_others)
        metric.hits += 1  # type: ignore[operator]
        assert teacher(torch.ones(2)) is not tied


class Wrapper:
    """A scheduler of a framework's, around torch's."""

    def __init__(self, scheduler: StepLR) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state)


@names("Wrapper schedule")
def what_has_another_one_in_it() -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    schedule = Wrapper(StepLR(optimizer, 1))
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(4):
        teach(model, optimizer)
        schedule.scheduler.step()


LONG = 20_000  # values of a tensor that is too large to be saved as an attribute


class Contrast(nn.Module):
    """A model with a queue of what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("queue", torch.zeros(LONG), persistent=False)
        self.register_buffer("bank", torch.zeros(LONG), persistent=False)
        self.register_buffer("short", torch.zeros(4), persistent=False)  # which is saved
        self.register_buffer("kept", torch.zeros(LONG))
        self.register_buffer("still", torch.ones(LONG), persistent=False)
        self.prior, self.ignored, self.last = torch.zeros(LONG), torch.zeros(LONG), torch.zeros(LONG)
        self.behind = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in (self.queue, self.kept, self.prior, self.ignored, self.short):
            each += 1
        self.behind.data.add_(1)  # which torch does not count
        self.bank, self.last = self.bank + 1, self.last + 1
        result: torch.Tensor = self.inner(x)
        return result


@names("model.queue", "model.bank", "model.behind")
def tensors_of_a_model_that_are_in_no_state() -> None:
    model = Contrast()
    optimizer = SGD(model.parameters(), 0.1)
    run = slipway.resume(model=model, optimizer=optimizer, ignore=(model.ignored,))
    for _ in run.steps(4):
        teach(model, optimizer)


@names()
def a_whole_agent() -> None:
    agent, model = Agent(), net()
    run = slipway.resume(agent=agent)
    for _ in run.steps(2):
        teach(agent.actor, agent.optimizer)
    assert model is not agent.actor


@names("SGD trains 1 parameter of no model")
def a_parameter_of_no_model() -> None:
    model, scale = net(), nn.Parameter(torch.ones(1))
    optimizer = SGD([*model.parameters(), scale], 0.1)
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(2):
        teach(model, optimizer)


GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "torch": (lambda: torch.Generator().manual_seed(1), lambda rng: float(torch.rand(1, generator=rng))),
    "numpy": (lambda: np.random.default_rng(1), lambda rng: float(rng.random())),
    "mersenne": (lambda: np.random.Generator(np.random.MT19937(1)), lambda rng: float(rng.random())),
    "legacy": (lambda: np.random.RandomState(1), lambda rng: float(rng.rand())),
    "python": (lambda: random.Random(1), lambda rng: float(rng.random())),
}


@pytest.mark.parametrize(("make", "draw"), GENERATORS.values(), ids=GENERATORS)
def test_a_generator_that_is_passed_goes_on(
    make: Callable[[], Any], draw: Callable[[Any], float], capsys: pytest.CaptureFixture[str]
) -> None:
    def train(steps: int) -> list[float]:
        rng, model = make(), net()
        optimizer = SGD(model.parameters(), 0.1)
        run = slipway.resume(model=model, optimizer=optimizer, rng=rng, save_every=1)
        drawn: list[float] = []
        for _ in run.steps(steps):
            drawn.append(draw(rng))
            teach(model, optimizer)
        return drawn

    alone = make()
    expected = [draw(alone) for _ in range(4)]
    assert train(2) == expected[:2]
    assert train(4) == expected
    assert "warning" not in capsys.readouterr().err


class Unhooked(torch.optim.Optimizer):
    """An optimizer that never was made as one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.param_groups, self.state = inner.param_groups, defaultdict(dict)


def test_an_optimizer_without_hooks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer = Unhooked(Adam(model.parameters()))
    said = refused(capsys, lambda: slipway.resume(model=model, optimizer=optimizer))
    assert "optimizer: the class Unhooked never calls super().__init__()" in said


@pytest.mark.parametrize(("loop", "expected"), LOOPS, ids=[loop.__name__ for loop, _ in LOOPS])
def test_what_is_not_saved_is_named_once(
    loop: Loop, expected: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    loop()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    said = [
        re.sub(r'^warning: (?:the [a-z ]+ )?(\w+) "(.*?)" \(test_own_unsaved.py:\d+\).*', r"\1 \2", line)
        for line in lines
    ]
    said = [re.sub(r"^warning: (.*no model|[a-z.]+(?= changes)).*", r"\1", line) for line in said]
    assert sorted(said) == sorted(expected), lines


def test_the_advice_can_be_followed(capsys: pytest.CaptureFixture[str]) -> None:
    """It names an argument that is allowed and free, and what has to be passed."""

    class Trainer:
        def __init__(self) -> None:
            self._G, self.model = net(), net()
            self.optimizer, self.second = SGD(self.model.parameters(), 0.1), SGD(self._G.parameters(), 0.1, momentum=1)

    trainer = Trainer()
    run = slipway.resume(model=trainer.model, g=trainer.optimizer)
    for _ in run.steps(2):
        teach(trainer.model, trainer.optimizer)
        teach(trainer._G, trainer.second)
    said = capsys.readouterr().err
    assert "Pass it: g_2=trainer._G; or say that this is right: ignore=(trainer._G,)." in said
    assert "Pass it: second=trainer.second; " in said


def test_a_hook_of_the_users_own_is_called_in_the_first_step_too() -> None:
    model, seen = net(), list[int]()
    optimizer = SGD(model.parameters(), 0.1)
    run = slipway.resume(model=model, optimizer=optimizer)
    register_optimizer_step_pre_hook(lambda *_: seen.append(run.step))
    for _ in run.steps(2):
        teach(model, optimizer)
    assert seen == [0, 1]


# What is done too late


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight.data)


SET: dict[str, Callable[[nn.Sequential], object]] = {
    "apply": lambda model: model.apply(initialize),
    "load_state_dict": lambda model: model.load_state_dict(net().state_dict()),
    "data": lambda model: [setattr(each, "data", torch.rand_like(each)) for each in model.parameters()],
    "vector": lambda model: nn.utils.vector_to_parameters(torch.rand(9), model.parameters()),
}


@pytest.mark.parametrize("act", SET.values(), ids=SET)
@pytest.mark.parametrize("start", ["first", "second"])
def test_weights_set_after_resume_are_refused(
    act: Callable[[nn.Sequential], object], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(late: bool) -> None:
        model = net()
        optimizer = Adam(model.parameters())
        run = slipway.resume(model=model, optimizer=optimizer, save_every=1)
        if late:
            act(model)
        for _ in run.steps(4 if late else 2):
            teach(model, optimizer)

    if start == "second":
        train(late=False)
    said = refused(capsys, lambda: train(late=True))
    assert "Weights were set after slipway.resume" in said
    assert "model.0.weight" in said


class Renormed(nn.Module):
    """Changes its weights in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(3, 2, max_norm=0.1), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(torch.arange(len(x))))  # type: ignore[no-any-return]


class Perturbing(Around):
    """Moves the weights before the optimizer within it steps, and back but for rounding; its own step is never called."""

    def move(self) -> None:
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each.add_(0.1).sub_(0.1).mul_(1.5)


def test_what_leaves_the_weights_alone_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """Equal weights, another order in memory, DataParallel, tied weights, buffers, a warm-up, a renorm, and what is ignored."""
    model, norm, late, renormed, moved = net(), nn.BatchNorm1d(2), net(), Renormed(), net()
    models = [model, norm, late, renormed, moved]
    optimizer = SGD([each for one in (model, norm, late, renormed) for each in one.parameters()], 0.1)
    around = Perturbing(moved.parameters())
    run = slipway.resume(model=models, optimizer=[optimizer, around, around.base], ignore=(late,))
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    for each in model.parameters():
        each.data = each.data.t().contiguous().t()
    norm(torch.rand(4, 2))
    late.apply(initialize)
    run.warm_up(lambda: model(torch.ones(3, 2)).sum())
    model[1].weight = model[1].weight
    for _ in run.steps(2):
        renormed(torch.ones(3, 2)).sum().backward()
        teach(model, optimizer)
    assert "Weights" not in capsys.readouterr().err


class Augmented:
    """A data set whose samples draw as `draw` does."""

    def __init__(self, draw: Callable[[int], object]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> int:
        self.draw(number)
        return number


def draws(batch: list[int]) -> list[int]:
    np.random.rand()
    return batch


DRAWN: dict[str, tuple[Callable[[int], object], dict[str, Any], bool]] = {
    "torch": (lambda number: torch.rand(1), {}, True),
    "numpy": (lambda number: np.random.rand(), {}, True),
    "python": (lambda number: random.random(), {}, True),
    "collate": (lambda number: None, {"collate_fn": draws}, True),
    "nothing": (lambda number: None, {}, False),
    "seeded": (lambda number: (torch.manual_seed(number), np.random.seed(number), random.seed(number)), {}, False),
    "own": (lambda number: np.random.default_rng(number).random(), {}, False),
    "exact": (lambda number: torch.rand(1), {"exact": True}, False),
    "ignored": (lambda number: torch.rand(1), {"ignore": True}, False),
    "alone": (lambda number: torch.rand(1), {"num_workers": 0}, False),
}


@pytest.mark.parametrize(("draw", "more", "named"), DRAWN.values(), ids=DRAWN)
def test_what_worker_processes_draw_is_named(
    draw: Callable[[int], object], more: dict[str, Any], named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"num_workers": 1, **{key: value for key, value in more.items() if key not in ("exact", "ignore")}}
    loader: DataLoader[Any] = DataLoader(Augmented(draw), 2, **own)  # type: ignore[arg-type]
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    run = slipway.resume(model=model, optimizer=optimizer, ignore=(loader,) if more.get("ignore") else ())
    for _ in run.epochs(2):
        for _ in run.batches(loader, exact_augmentation=bool(more.get("exact"))):
            teach(model, optimizer)
    assert capsys.readouterr().err.count("draw random numbers for its samples") == named


class Momentum(nn.Module):
    """Averages its encoder into a frozen one in each forward pass, as MoCo does."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for mean, new in zip(self.key.parameters(), self.query.parameters(), strict=True):
            mean.data = 0.9 * mean.data + 0.1 * new.data
        return self.query(x) - self.key(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["epochs", "steps", "boundary"])
def test_weights_may_be_set_within_the_loop(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, encoder = net(), Momentum()
    optimizer = SGD([*model.parameters(), *encoder.parameters()], 0.1)
    run = slipway.resume(models=[model, encoder], optimizer=optimizer)
    run.warm_up(lambda: encoder(torch.ones(1, 2)).sum())

    def step() -> None:
        encoder(torch.ones(1, 2)).sum().backward()
        teach(model, optimizer)

    if kind == "epochs":
        for epoch in run.epochs(2):
            if not epoch:
                model.apply(initialize)
            for _ in run.batches(range(2)):
                step()
    elif kind == "steps":
        for number in run.steps(2):
            if not number % 2:
                model.apply(initialize)
            step()
    while kind == "boundary" and run.step < 2:
        step()
        run.boundary()
    assert "Weights" not in capsys.readouterr().err


SEEDED: dict[str, tuple[Callable[[], object], Callable[[int], object], list[str]]] = {
    "before": (lambda: torch.manual_seed(1), lambda step: None, ["torch.manual_seed"]),
    "numpy": (lambda: np.random.seed(1), lambda step: None, ["numpy.random.seed"]),
    "random": (lambda: random.seed(1), lambda step: None, ["random.seed"]),
    "never": (lambda: None, lambda step: None, []),
    "each_step": (lambda: None, torch.manual_seed, []),
    "own": (lambda: torch.Generator().manual_seed(1), lambda step: None, []),
}


@pytest.mark.parametrize("loop", ["boundary", "steps"])
@pytest.mark.parametrize("name", SEEDED)
def test_seeds_after_resume_are_named_in_a_loop_of_boundaries(
    name: str, loop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, within, expected = SEEDED[name]
    usual = torch.manual_seed
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    run = slipway.resume(model=model, optimizer=optimizer)
    before()
    for step in range(3) if loop == "boundary" else run.steps(3):
        within(step)
        teach(model, optimizer)
        if loop == "boundary":
            run.boundary()
    said = re.findall(
        r"warning: ([\w.]+) was called after slipway.resume \(test_own_unsaved.py:\d+\)", capsys.readouterr().err
    )
    assert said == (expected if loop == "boundary" else [])
    assert torch.manual_seed is usual


class Average:
    """The average of many tutorials: it has no state_dict."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, each in model.named_parameters():
            self.shadow[name] = (0.9 * self.shadow[name] + 0.1 * each.detach()).clone()


@pytest.mark.parametrize("large", [True, False])
def test_large_weights_that_a_script_keeps_in_a_dictionary_or_list_of_its_own_are_named(
    large: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.train.user.data_attributes.LARGEST", 8 if large else 2**16)
    model = net()
    optimizer, average = Adam(model.parameters()), Average(model)
    slow = [[each.detach().clone() for each in group["params"]] for group in optimizer.param_groups]
    first = [each.detach().clone() for each in model.parameters()]  # as for the distance from the start: they stay
    before = [each.detach().clone() for each in model.parameters()]
    run = slipway.resume(model=model, optimizer=optimizer)
    for _ in run.steps(20):
        before = [each.detach().clone() for each in model.parameters()]  # made in each step
        teach(model, optimizer)
        average.update(model)
        with torch.no_grad():
            for each, parameter in zip(slow[0], model.parameters(), strict=True):
                each.lerp_(parameter, 0.5)
    said = capsys.readouterr().err
    found = re.findall(r"warning: the tensors in (\S+) \(test_own_unsaved.py:\d+\) change", said)
    assert found == ["average.shadow"] * large, "short ones, and those that are changed where they are, come back"
    assert ("ignore=(average.shadow,)" in said) is large
    assert len(first) == len(before) == 4


def test_weights_that_are_saved_or_ignored_are_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer, shadow, average = Adam(model.parameters()), Shadow(model), Average(model)
    teacher = net().requires_grad_(False)
    weights = {"teacher": teacher.state_dict()}  # of a module that is left as it is
    run = slipway.resume(model=model, optimizer=optimizer, shadow=shadow, ignore=(average,))
    for _ in run.steps(20):
        teach(model, optimizer)
        shadow.update(model)
        average.update(model)
    assert weights
    assert "warning" not in capsys.readouterr().err


def test_an_optimizer_that_takes_the_place_of_the_one_that_was_passed_is_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = net()
    first = Adam(model.parameters())
    run = slipway.resume(model=model, optimizer=first)
    for step in range(40):
        if step == 12:
            second = SGD(model.parameters(), lr=0.1)
        teach(model, first if step < 12 else second)
        run.boundary()
    said = capsys.readouterr().err
    assert said.count("SGD steps now, and the Adam that was passed to slipway.resume no more: nothing is saved") == 1


def test_an_inner_optimizer_that_steps_between_two_steps_of_the_one_that_was_passed_takes_no_ones_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = net()
    outer, inner = Adam(model.parameters()), SGD(model.parameters(), lr=0.1)
    run = slipway.resume(model=model, optimizer=outer, ignore=(inner,))
    for step in range(60):
        teach(model, outer if step % 8 == 0 else inner)
        run.boundary()
    assert "steps now" not in capsys.readouterr().err
