"""Faults in the arithmetic of one rank, and trainings without a fault: what replays find, and how often they are mistaken.

    PYTHONPATH=tests/train:tests .venv/bin/python tests/train/replay_trials.py --faults 80 --clean 20000 --seed 61 --add-to FILE

A fault (`--faults`, `--alone`, `--curve`) changes what operations of torch return in one of several threads, forward and backward,
as a processor would that computes wrongly. Trainings (`--clean`) are real jobs (clean_steps.py). The seed chooses everything, also
which of the programs are trained: five seeds in a row train each of them. With `--add-to` the counts are added to those of the file,
and all of them are printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import clean_steps
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from slipway.options.common import AUTO
from slipway.train.models.cnn import small
from slipway.train.models.gpt import Gpt, GptConfig
from slipway.train.observe.replay import Replays, Unsolved, WrongArithmetic, WrongArithmeticError
from slipway.train.user.replaying import compute_apart

CPU = torch.device("cpu")
ALONE = threading.RLock()  # random generators belong to the process: one rank at a time computes
Tensors = tuple[torch.Tensor, ...]


class Exchange:
    """What ranks that are threads tell each other."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=120)
        self._said: list[Any] = [None] * ranks

    def tell(self, rank: int, value: Any) -> list[Any]:
        """The values of all ranks."""
        self._said[rank] = value
        self._barrier.wait()
        told = list(self._said)
        self._barrier.wait()
        return told

    def leave(self) -> None:
        """Let nobody wait any more."""
        self._barrier.abort()


class ThreadContext:
    """The part of a Context that replays need."""

    def __init__(self, exchange: Exchange, rank: int, ranks: int) -> None:
        self.place, self.side, self.device = SimpleNamespace(rank=rank, world_size=ranks, resume="none"), object(), CPU
        self._exchange = exchange
        self.said: list[str] = []

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._exchange.tell(self.place.rank, tensor.clone())

    def gather_number(self, number: float) -> list[float]:
        return self._exchange.tell(self.place.rank, number)

    def share(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        return tensor.copy_(self._exchange.tell(self.place.rank, tensor)[source])

    def share_text(self, text: str, source: int = 0) -> str:
        return self._exchange.tell(self.place.rank, text)[source]

    def say(self, text: str) -> None:
        self.said.append(text)


class ThreadReplays(Replays):
    """Replays in a thread. `solving`: in which problems with known answers are computed; None: they are all right."""

    solving: Callable[[], AbstractContextManager[object]] | None = None

    def _solve(self, ranks: Collection[int], seeds: Iterable[int]) -> Unsolved:
        if self.solving is None:
            return Unsolved()
        with self.solving():
            return super()._solve(ranks, seeds)

    def _sign(self, *given: Any) -> torch.Tensor:
        with ALONE:
            return super()._sign(*given)

    def _require_equal_weights(self) -> None:
        """They are: no rank trains here."""


@dataclass(frozen=True)
class Program:
    """A model, what a micro-batch of it looks like, and its loss."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Tensors]
    loss: Callable[[nn.Module, Tensors], torch.Tensor]
    precision: torch.dtype = torch.float32
    own: bool = False  # computed as in an own loop, with DistributedDataParallel where there is a process group


def gpt_loss(model: nn.Module, batch: Tensors) -> torch.Tensor:
    return model(*batch)


def class_loss(model: nn.Module, batch: Tensors) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 5))


PROGRAMS = {
    "gpt": Program(
        lambda: Gpt(GptConfig(layers=2, heads=2, embed=16, context=8, vocab_size=32, dropout=0.1)),
        lambda: (torch.randint(32, (2, 8)), torch.randint(32, (2, 8))),
        gpt_loss,
    ),
    "vision": Program(lambda: small(4), lambda: (torch.randn(4, 3, 16, 16), torch.randint(4, (4,))), class_loss),
    "plain": Program(plain, lambda: (torch.randn(6, 12), torch.randint(5, (6,))), class_loss, own=True),
    "gpt in bf16": Program(
        lambda: Gpt(GptConfig(layers=1, heads=2, embed=16, context=8, vocab_size=32, dropout=0.1)),
        lambda: (torch.randint(32, (2, 8)), torch.randint(32, (2, 8))),
        gpt_loss,
        torch.bfloat16,
    ),
}

PRODUCTS = ("mm.", "addmm.", "bmm.", "convolution.", "convolution_backward.", "linear_backward.")
FIRST = 1  # replays before a fault shows
KINDS = ("wrong bit", "stuck lane", "scaled gradient", "certain inputs")
INTERMITTENT = "intermittent"


@dataclass
class Fault:
    """A fault of one rank, at random places."""

    kind: str
    chance: float  # that it shows in a computation, forward and backward
    dice: random.Random

    def __post_init__(self) -> None:
        self.bit, self.lane, self.number = (self.dice.randrange(n) for n in (32, 8, 10**6))
        self.active = True
        self.changed = (
            self.kind == "scaled gradient"
        )  # whether any result was changed: a bit may be stuck at what it should be

    def begin(self) -> None:
        """A computation begins."""
        self.active = self.dice.random() < self.chance

    def spoil(self, result: torch.Tensor) -> torch.Tensor:
        """What comes out of a product instead of `result`."""
        if not self.active or result.dtype not in (torch.float32, torch.bfloat16) or not result.numel():
            return result
        wrong = result.contiguous().clone()
        words = wrong.view(torch.int32 if result.dtype == torch.float32 else torch.int16).view(-1)
        mask = 1 << self.bit % (8 * result.itemsize - 1)
        if self.kind == "wrong bit":
            words[self.number % len(words)] ^= mask
        elif self.kind == "stuck lane":
            words[self.lane :: 8] |= mask
        elif self.kind == "certain inputs":
            chosen = words % 64 == self.number % 64
            words[chosen] ^= 1 << 20 if result.dtype == torch.float32 else 1 << 4
        self.changed = self.changed or not torch.equal(wrong, result)
        return wrong


@dataclass(frozen=True)
class Dialect:
    """A kind of processor: of its results, every so many have another last bit than on other kinds."""

    kind: int

    def spoil(self, result: torch.Tensor) -> torch.Tensor:
        """What comes out of a product on this kind of processor instead of `result`."""
        if not self.kind or result.dtype not in (torch.float32, torch.bfloat16) or not result.numel():
            return result
        own = result.contiguous().clone()
        own.view(torch.int32 if result.dtype == torch.float32 else torch.int16).view(-1)[:: self.kind + 1] ^= 1
        return own


class Spoiled(TorchDispatchMode):
    """In this thread products are as a fault makes them, or another kind of processor."""

    def __init__(self, fault: Fault | Dialect) -> None:
        super().__init__()
        self._fault = fault

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if not str(operation).removeprefix("aten.").startswith(PRODUCTS):
            return result
        if isinstance(result, torch.Tensor):
            return self._fault.spoil(result)
        return tuple(None if part is None else self._fault.spoil(part) for part in result)


def compute(program: Program, model: nn.Module, fault: Fault | None, batch: Tensors) -> Any:
    """What a rank computes alone."""
    parameters = [*model.parameters()]
    if program.own:
        loss, gradients = compute_apart(lambda *parts: program.loss(model, parts), batch, parameters)
    else:
        with torch.autocast("cpu", program.precision, enabled=program.precision != torch.float32):
            loss = program.loss(model, batch)
        gradients = [*torch.autograd.grad(loss, parameters, allow_unused=True)]
    if fault and fault.kind == "scaled gradient" and fault.active:
        place = fault.number % len(gradients)
        gradients[place] = gradients[place] * 1.001  # type: ignore[operator]
    return loss.detach(), gradients


@dataclass
class Outcome:
    """What the ranks said after so many replays, and the `state` that snapshots have of them then."""

    replays: int
    found: WrongArithmetic | None = None
    said: tuple[str, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict, compare=False)


def run_ranks(
    name: str,
    ranks: int,
    replays: int,
    seed: int,
    wrong: int = -1,
    fault: Fault | None = None,
    kinds: Sequence[int] = (),
    solve: bool = False,
    resumed: Mapping[str, Any] | None = None,
) -> Outcome:
    """One replay without the `fault`, then so many with it on rank `wrong`; ends with the first that is found.

    `kinds`: of the ranks' processors. `solve`: whether the fault also shows in problems with known answers. `resumed`: the state
    of a snapshot of step 5 that was resumed from.
    """
    program, exchange = PROGRAMS[name], Exchange(ranks)
    torch.manual_seed(seed)
    model, outcomes = program.model(), [Outcome(0) for _ in range(ranks)]

    def be(rank: int) -> None:
        context = ThreadContext(exchange, rank, ranks)
        own = copy.deepcopy(model)
        with ALONE:
            trained = DistributedDataParallel(own) if program.own and dist.is_initialized() else own
        mine = fault if rank == wrong else None
        spoil = Spoiled(mine) if mine else nullcontext()
        dialect = Spoiled(Dialect(kinds[rank])) if kinds else nullcontext()

        def work(batch: Tensors) -> Any:
            with dialect, spoiled() as shown:
                return compute(program, trained, shown, batch)

        @contextmanager
        def spoiled() -> Iterator[Fault | None]:
            if mine is None or not started.is_set():
                yield None
                return
            mine.begin()
            with spoil:
                yield mine

        started = threading.Event()
        if not FIRST:
            started.set()
        replay_of = ThreadReplays(context, own, work, 1, kinds)  # type: ignore[arg-type]
        replay_of.solving = spoiled if solve else None
        if resumed is not None:
            replay_of.resume(5, resumed)
        outcome = outcomes[rank]
        try:
            for step in range(1, replays + 1 + FIRST):
                with ALONE:
                    torch.manual_seed(seed * 1000 + step * 10 + rank)
                    replay_of.keep(step, program.batch())
                replay_of.check(step)
                if step > FIRST:
                    outcome.replays += 1
                elif step == FIRST:
                    started.set()
                if not replay_of.active:
                    break
        except WrongArithmeticError as error:
            outcome.replays += 1
            outcome.found = error.difference
        except BaseException:
            exchange.leave()
            raise
        outcome.said, outcome.state = tuple(context.said), replay_of.state()

    threads = [threading.Thread(target=be, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes[0]


def main() -> None:
    """Try faults and trainings, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (
        ("faults", "faults that are tried"),
        ("alone", "faults of a rank that has no other of its kind"),
        ("curve", "faults for each point of the curve of those that come and go"),
        ("clean", "steps without a fault"),
    ):
        parser.add_argument(f"--{name}", type=int, default=0, help=what)
    parser.add_argument("--every", default=AUTO, help="steps between two replays of `--clean` (auto)")
    parser.add_argument(
        "--device", default="cpu", help="cuda: `--clean` trains Slipway's workloads, whose ranks share a GPU (cpu)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--add-to", type=Path, help="a file with the counts of several calls")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dice = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    counts = try_faults(options.faults, options.seed, dice) + try_faults(options.alone, options.seed, dice, alone=True)
    try_curve(options.curve, dice)
    counts += try_clean(options.clean, options.seed, options.every, options.device)
    report(counts)
    if options.add_to:
        with options.add_to.open("a+") as file:
            file.write(json.dumps(counts) + "\n")
            file.seek(0)
            parts = [Counter[str](json.loads(line)) for line in file]
        print(f"\nall {len(parts)} parts in {options.add_to}:")
        report(sum(parts, Counter[str]()))
    dist.destroy_process_group()


def report(counts: Counter[str]) -> None:
    """Print what was counted."""
    for group in ("", "alone of its kind, "):
        for kind in (*KINDS, INTERMITTENT):
            if tried := counts[f"{group}{kind}: tried"]:
                print(f"{group}{kind}: {counts[f'{group}{kind}: found']} of {tried} found within two rotations")
        if any_named := counts[f"{group}named"]:
            print(f"{group}right rank named: {counts[f'{group}right']} of {any_named}")
    if counts["steps"]:
        print(
            f"{counts['steps']:,} steps without a fault, {counts['replays']:,} replays, {counts['alarms']} alarms",
            flush=True,
        )


def try_faults(count: int, seed: int, dice: random.Random, alone: bool = False) -> Counter[str]:
    """Return how many faults of each kind there were, and were found, and print those that were not.

    `alone`: of ranks that have no other of their kind, which compute problems with known answers, too; otherwise only the replays
    are tested, and nobody is named in a pair.
    """
    counts, group = Counter[str](), "alone of its kind, " if alone else ""
    for number in range(seed * count, seed * count + count):  # so that several seeds go on with each other
        name, ranks = [*PROGRAMS][number % len(PROGRAMS)], 2 + number // 4 % 3
        kind = (*KINDS, INTERMITTENT)[number // 12 % 5]
        wrong, intermittent = dice.randrange(ranks), kind == INTERMITTENT
        actual = dice.choice(KINDS) if intermittent else kind
        fault = Fault(actual, 0.3 if intermittent else 1.0, random.Random(dice.randrange(2**32)))
        kinds = [int(rank == wrong) for rank in range(ranks)] if alone else ()
        outcome = run_ranks(name, ranks, 2 * ranks, dice.randrange(10**6), wrong, fault, kinds, alone)
        if not fault.changed:
            print(f"without effect: {number} {group}{kind} {name} {ranks} ranks, bit {fault.bit}")
            continue
        counts[f"{group}{kind}: tried"] += 1
        counts[f"{group}{kind}: found"] += outcome.found is not None
        if outcome.found and (alone or ranks > 2):
            counts[f"{group}named"] += 1
            counts[f"{group}right"] += outcome.found.ranks == (wrong,)
        if outcome.found is None and not intermittent and not alone:
            print(f"missed: {number} {kind} {name} {ranks} ranks, bit {fault.bit}: {outcome}")
    return counts


ROTATIONS = (1, 2, 4, 8)  # after which one looks how many faults were found


def try_curve(count: int, dice: random.Random) -> None:
    """Print the share of faults that was found within some rotations, where a fault shows in a part of the passes only.

    Stuck bits are left out: nobody could tell one that has no effect from one that has not yet shown.
    """
    for chance in (0.1, 0.3, 0.5) if count else ():
        found: list[float] = []
        for number in range(count):
            name, ranks = [*PROGRAMS][number % len(PROGRAMS)], 2 + number // 4 % 3
            kind = dice.choice([each for each in KINDS if each != "stuck lane"])
            fault = Fault(kind, chance, random.Random(dice.randrange(2**32)))
            wrong, seed = dice.randrange(ranks), dice.randrange(10**6)
            outcome = run_ranks(name, ranks, ROTATIONS[-1] * ranks, seed, wrong, fault)
            found.append(outcome.replays / ranks if outcome.found else math.inf)
        shares = [f"{sum(each <= most for each in found)} of {count}" for most in ROTATIONS]
        print(
            f"shown in {chance:.0%} of the passes: found within {ROTATIONS} rotations: {', '.join(shares)}", flush=True
        )


def try_clean(count: int, seed: int, every: str, device: str) -> Counter[str]:
    """Train so many steps without a fault, half of them in each of two programs; the counts of steps, replays and alarms."""
    counts = Counter[str]()
    names = [name for name, job in clean_steps.JOBS.items() if device == "cpu" or job.words]
    for place in range(2 * seed, 2 * seed + 2) if count else ():
        counts += clean_steps.run_job(names[place % len(names)], count // 2, every, device)
    return counts


if __name__ == "__main__":
    main()
