"""A rank that computes wrongly is found by replayed micro-batches, named, and left behind with what it has spoilt."""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

import clean_steps
import numpy as np
import pytest
import replay_trials
import torch
import torch.distributed as dist
from own_runs import assert_equal
from replay_trials import KINDS, PROGRAMS, Exchange, Fault, Outcome, Program, ThreadContext, class_loss, run_ranks
from torch import nn
from training_jobs import Job, Run

from slipway.protocol.replicas import FindingKind, ReplicaDifference, read_differences, write_differences
from slipway.train.loop import saving
from slipway.train.loop.saving import go_back
from slipway.train.observe import replay
from slipway.train.observe.comparability import (
    NoCollectives,
    describe_cpu,
    describe_processor,
    kinds_of_ranks,
    require_replayable,
)
from slipway.train.observe.findings import record_finding
from slipway.train.observe.micro_batches import ReplayError, describe, put_together, rebuild, take_apart
from slipway.train.observe.replay import KNOWN_SEEDS, Replays, WrongArithmetic, WrongArithmeticError, known_wrong
from slipway.train.observe.replicas import ReplicaMismatch, ReplicasDifferError
from slipway.train.snapshots.resume import set_aside_earlier
from slipway.train.snapshots.snapshot import Snapshot, Suspicion, load_newest, read_suspicion, save_snapshot, set_aside
from slipway.train.snapshots.tensors import raw_bytes
from slipway.train.worker.launcher import PeerError, UnhealthyError, describe_failure

Start = Callable[..., Run]
OPTIONS = ("--dataset-size", 240, "--batch-size", 12, "--steps", 20, "--save-every", 5, "--verify-every", 0)
CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_kind_of_fault_is_found_and_the_rank_is_named(name: str, kind: str) -> None:
    dice = random.Random(f"{name} {kind}")
    for ranks in (2, 3, 4):
        wrong = dice.randrange(ranks)
        found = run_ranks(name, ranks, 2 * ranks, 7, wrong, Fault(kind, 1.0, dice)).found
        assert found is not None
        assert found.ranks == ((wrong,) if ranks > 2 else ())
        assert ("the gradient of" in found.place) >= (kind == "scaled gradient")


@pytest.mark.parametrize("name", PROGRAMS)
def test_healthy_ranks_are_not_suspected(name: str) -> None:
    outcome = run_ranks(name, 3, 20, 11)
    assert (outcome.replays, outcome.found, outcome.said) == (20, None, ())


KINDS_OF_RANKS = [
    ((0, 0, 0, 1, 1, 1), (0, 1, 2, 3, 4, 5)),
    ((0, 1, 0, 1, 0, 2), (0, 2, 4)),  # of the pair 1 and 3 nobody is named
    ((3, 0, 3, 3), (0, 2, 3)),
]


@pytest.mark.parametrize(("kinds", "named"), KINDS_OF_RANKS)
def test_ranks_with_different_processors_are_compared_with_those_of_their_kind(
    kinds: tuple[int, ...], named: tuple[int, ...]
) -> None:
    assert run_ranks("plain", len(kinds), 6, 5, kinds=kinds) == Outcome(6)
    for wrong, kind in enumerate(kinds):
        found = run_ranks("plain", len(kinds), 3, 7, wrong, Fault("wrong bit", 1.0, random.Random(wrong)), kinds).found
        if kinds.count(kind) == 1:
            assert found is None
        else:
            assert found is not None
            assert found.ranks == ((wrong,) if wrong in named else ())


@pytest.mark.parametrize("kinds", [(0, 1), (0, 1, 0), (1, 0, 2, 3)])
def test_a_rank_without_another_of_its_kind_is_found_where_it_does_not_repeat_itself(kinds: tuple[int, ...]) -> None:
    wrong = next(rank for rank, kind in enumerate(kinds) if kinds.count(kind) == 1)
    found = run_ranks("plain", len(kinds), 20, 5, wrong, Fault("wrong bit", 0.5, random.Random(3)), kinds).found
    assert found is not None
    assert (found.ranks, found.known) == ((wrong,), "")


def test_a_rank_without_another_of_its_kind_is_found_by_problems_with_known_answers() -> None:
    assert run_ranks("plain", 3, 2, 5, kinds=(0, 1, 0), solve=True) == Outcome(2)
    found = run_ranks("plain", 3, 2, 5, 1, Fault("wrong bit", 1.0, random.Random(3)), (0, 1, 0), solve=True).found
    assert found is not None
    assert (found.ranks, found.place) == ((1,), "")
    wrong = r"rank 1 computed wrongly: computations with known results were wrong \((product|convolution) in "
    assert re.match(wrong, str(found))


@pytest.mark.parametrize("kinds", [(0, 1), (0, 1, 0)])
def test_wrong_known_results_count_where_nothing_that_the_rank_computes_repeats_itself(
    kinds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_trials, "FIRST", 0)
    fault = Fault("wrong bit", 1.0, random.Random(3))
    places = itertools.count()
    monkeypatch.setattr(fault, "begin", lambda: setattr(fault, "number", next(places)))
    found = run_ranks("plain", len(kinds), 2, 5, 1, fault, kinds, solve=True).found
    assert found is not None
    assert found.ranks == (1,)


class Lazy(nn.Module):
    """A layer that makes buffers in its first forward pass: of the batch, and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mean is None:
            self.mean = x.detach().mean(0)
        if not hasattr(self, "cache"):
            self.register_buffer("cache", torch.ones(x.shape[1]))
        return (x - self.mean) * self.cache


def test_buffers_that_the_forward_pass_makes_are_no_obstacle_and_are_not_filled_by_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = set[nn.Module]()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        used.add(model)
        return class_loss(model, batch)

    lazy = Program(lambda: nn.Sequential(Lazy(), nn.Linear(12, 5)), PROGRAMS["plain"].batch, loss)
    monkeypatch.setitem(PROGRAMS, "lazy", lazy)
    assert run_ranks("lazy", 2, 3, 5) == Outcome(3)
    assert [model[0].mean for model in used] == [None, None]


def test_an_attempt_of_a_single_process_passes_on_what_the_replays_of_earlier_ones_have_shown() -> None:
    alone = SimpleNamespace(place=SimpleNamespace(rank=0, world_size=1), side=None, device=CPU)
    for every, state in ((5, {"clean": 14, "agreed": True}), (0, {"clean": 14, "agreed": True}), (5, {})):
        replays = Replays(alone, nn.Linear(1, 1), lambda batch: None, every)  # type: ignore[arg-type]
        replays.resume(20, state)
        assert replays.state() == (state if every else {})


INTEL = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Processor\nflags\t\t: fpu sse2 avx2 {}\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\nCPU implementer\t: 0x41\nCPU part\t: 0x{}\n\n"


def test_processors_of_one_name_are_of_different_kinds_if_their_models_or_instruction_sets_differ() -> None:
    same, less = INTEL.format("avx512f amx_bf16"), INTEL.format("avx512f")
    assert describe_cpu(same) == describe_cpu(same.replace("fpu", "fpu pti") + INTEL.format("other"))
    assert describe_cpu(same).startswith("Intel(R) Xeon(R) Processor, cpu family 6, model 143, instruction sets ")
    arm = [ARM.format(*each) for each in (("sve", "d40"), ("sve", "d4f"), ("sve bf16", "d40"))]
    assert len({describe_cpu(each) for each in (same, less, same.replace("143", "106"), *arm)}) == 6


class Unsteady(nn.Module):
    """A layer that never computes the same twice, as with atomics."""

    calls = itertools.count(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1e-3 * next(self.calls)


@pytest.mark.parametrize("kinds", [(0, 0, 0), (0, 0, 1)])
def test_layers_that_do_not_repeat_themselves_are_left_out_and_the_others_still_compared(
    kinds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    unsteady = Program(
        lambda: nn.Sequential(nn.Linear(12, 24), nn.Tanh(), Unsteady(), nn.Linear(24, 5)),
        PROGRAMS["plain"].batch,
        class_loss,
    )
    monkeypatch.setitem(PROGRAMS, "unsteady", unsteady)
    outcome = run_ranks("unsteady", 3, 8, 5, kinds=kinds)
    assert (outcome.replays, outcome.found, outcome.state) == (8, None, {"clean": 9, "agreed": True})
    first = run_ranks("unsteady", 3, 0, 5, kinds=kinds)
    assert first.state == {"clean": 0, "agreed": True}, "two ranks of one node may share a fault"
    assert len(outcome.said) == len(set(kinds))  # once for each kind
    assert outcome.said[0].startswith(
        f"note: replays: rank 0 and {kinds.count(0) - 1} more have computed different bits in a second pass in the "
        "output of 2, the output of 3, the loss and 4 more: no longer compared there. This is not a fault if"
    )
    found = run_ranks("unsteady", 3, 3, 5, 1, Fault("wrong bit", 1.0, random.Random(1)), kinds).found
    assert found is not None
    assert (found.ranks, found.place) == ((1,) if kinds == (0, 0, 0) else (), "the output of 0")


def test_where_nothing_repeats_itself_replays_end_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    unsteady = Program(lambda: nn.Sequential(Unsteady(), nn.Linear(12, 5)), PROGRAMS["plain"].batch, class_loss)
    monkeypatch.setitem(PROGRAMS, "unsteady", unsteady)
    [line] = run_ranks("unsteady", 2, 4, 5).said
    assert line.startswith(
        "note: replays are turned off: rank 0 and 1 more have computed different bits in a second pass, first in the"
    )


class Processors(ThreadContext):
    """Ranks that have these, seen from one of them."""

    def __init__(self, kinds: Sequence[str], rank: int = 0) -> None:
        super().__init__(Exchange(1), rank, len(kinds))
        self.kinds = kinds

    def gather_number(self, number: float) -> list[float]:
        return [crc32(kind.encode()) for kind in self.kinds]

    def share_text(self, text: str, source: int = 0) -> str:
        return self.kinds[source]


def test_kinds_of_processors_are_listed_once() -> None:
    same, mixed = Processors(["A"] * 3), Processors(["A", "B", "A", "C", "A"])
    assert len(set(kinds_of_ranks(same))) == 1  # type: ignore[arg-type]
    assert same.said == []
    kinds = kinds_of_ranks(mixed)  # type: ignore[arg-type]
    assert [kinds.index(kind) for kind in kinds] == [0, 1, 0, 3, 0]
    assert mixed.said == [
        "note: replays: rank 0 and 2 more have A; rank 1 has B; rank 3 has C. Results of different kinds differ in the last bits, "
        "so each rank is compared with those of its own kind. No other rank is of the same kind as rank 1, 3. Such a rank "
        "cannot be compared bit by bit with others. It computes each micro-batch twice, which finds faults that come and go, and a "
        "problem with a known result. To compare it, add a rank of the same kind"
    ]
    pair = Processors(["A", "A", "B", "B"])
    kinds_of_ranks(pair)  # type: ignore[arg-type]
    assert pair.said[0].endswith("so each rank is compared with those of its own kind")


def test_where_two_ranks_never_agreed_nobody_is_suspected_and_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_trials, "FIRST", 0)
    outcome = run_ranks("plain", 2, 4, 3, 1, Fault("wrong bit", 1.0, random.Random(1)))
    assert outcome.found is None
    assert "or between two passes on one rank, first in the output of 0." in outcome.said[0]


def test_after_a_restart_a_difference_is_no_oddity_of_the_arithmetic_where_the_ranks_had_agreed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_trials, "FIRST", 0)
    agreed = run_ranks("plain", 2, 4, 3)
    assert agreed.state == {"clean": 4, "agreed": True}
    again = run_ranks("plain", 2, 4, 3, 1, Fault("wrong bit", 1.0, random.Random(1)), resumed=agreed.state)
    assert (again.found and again.found.ranks, again.said, again.state) == ((), (), agreed.state)


def test_what_is_trained_after_replays_have_ended_by_themselves_does_not_count_as_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_trials, "FIRST", 0)
    fault = Fault("wrong bit", 1.0, random.Random(1))
    assert run_ranks("plain", 2, 4, 3, 1, fault).state == {"clean": 0, "agreed": False}
    assert run_ranks("plain", 2, 0, 3, resumed={"clean": 2, "agreed": False}).state["clean"] == 2
    assert run_ranks("plain", 2, 0, 3, resumed={}).state["clean"] == 5, "nobody looked at what was before"
    off = Replays(ThreadContext(Exchange(1), 0, 1), nn.Linear(2, 2), lambda batch: None, 0)  # type: ignore[arg-type,return-value]
    assert off.state() == {}


class Node(ThreadContext):
    """A rank on node 0 of a job, of whose ranks the last is on node `last`."""

    def __init__(self, folder: Path, last: int) -> None:
        super().__init__(Exchange(1), 0, 2)
        self.place.node_rank, self.place.run_dir, self.last = 0, folder, last
        self.outcome = SimpleNamespace(step=7)

    def share_text(self, text: str, source: int = 0) -> str:
        return f"node {self.last} ({socket.gethostname()})" if source else text


def record_caught(context: Node, error: WrongArithmeticError | ReplicasDifferError) -> None:
    """As `fit` does, which catches it."""
    try:
        raise error
    except (WrongArithmeticError, ReplicasDifferError):
        record_finding(context, error)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        WrongArithmeticError("", WrongArithmetic((1,), 0, "the loss", "sum in fp32"), proven=True),
        ReplicasDifferError("", ReplicaMismatch(("h.1.mlp.weight",), (1,), 1, 65536)),
    ],
    ids=("arithmetic", "replicas"),
)
@pytest.mark.parametrize(("last", "name"), [(0, "UnhealthyError"), (1, "PeerError")])
def test_a_verdict_names_the_wrong_node_and_no_error_that_came_before(
    error: WrongArithmeticError | ReplicasDifferError, last: int, name: str, tmp_path: Path
) -> None:
    context, second = Node(tmp_path, last), not getattr(error, "proven", False)
    if second:
        record_finding(context, error)  # type: ignore[arg-type]
    with pytest.raises((UnhealthyError, PeerError)) as caught:
        record_caught(context, error)
    outcome = describe_failure(caught.value, 7, None)
    often = f", for the second time within a day on node 0 ({socket.gethostname()})" * second
    elsewhere = f"node 1 ({socket.gethostname()}) computed or stored a wrong value: {error.difference}"
    said = elsewhere if last else f"{error.difference}{often}"
    assert (outcome.message, outcome.exception) == (said, f"{name}: {said}")


@pytest.mark.parametrize(("host", "again"), [("elsewhere", False), (socket.gethostname(), True)])
def test_a_node_that_is_named_twice_is_known_by_its_host_whatever_its_number(
    host: str, again: bool, tmp_path: Path
) -> None:
    earlier = ReplicaDifference(time.time(), 5, (f"node 3 ({host})",), "", FindingKind.ARITHMETIC)
    write_differences(tmp_path, [earlier])
    error = WrongArithmeticError("", WrongArithmetic((0,), 0, "the loss"))
    expected = pytest.raises(UnhealthyError, match=r"for the second time within a day on node 0 \(")
    with expected if again else nullcontext():
        record_finding(Node(tmp_path, 0), error)  # type: ignore[arg-type]
    assert [each.nodes for each in read_differences(tmp_path)] == [
        (f"node 3 ({host})",),
        (f"node 0 ({socket.gethostname()})",),
    ]


@pytest.mark.parametrize("there", [True, False])
def test_a_training_says_whether_there_is_a_snapshot_to_return_to(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def do_nothing(*_: object) -> None:
        """Nothing is written, and nothing recorded."""

    context = ThreadContext(Exchange(1), 0, 1)
    replays = Replays(context, nn.Linear(2, 2), lambda batch: None, 4)  # type: ignore[arg-type,return-value]
    replays.resume(5, {"clean": 4, "agreed": True})
    memory = SimpleNamespace(forget=do_nothing)
    snapshots = SimpleNamespace(has=lambda until: there, set_aside=do_nothing, wait=do_nothing, memory=memory)
    training: Any = SimpleNamespace(
        context=context, replays=replays, snapshots=snapshots, step=8, verification=SimpleNamespace(forget=do_nothing)
    )
    monkeypatch.setattr(saving, "record_finding", do_nothing)
    monkeypatch.setattr(saving, "resume", lambda *_: there)
    error = WrongArithmeticError("rank 0 computed wrongly", WrongArithmetic((0,), 0, "the loss"))
    if there:
        go_back(training, error, gone_back=False)
        said = "rank 0 computed wrongly; returning to a snapshot of step 4 or before, when all ranks agreed"
        assert context.said == [said]
        return
    with pytest.raises(WrongArithmeticError) as caught:
        go_back(training, error, gone_back=False)
    assert context.said == []
    assert str(caught.value) == (
        "rank 0 computed wrongly, and there is no snapshot to return to; the next attempt starts where this "
        "run began. If the job does not restart by itself, type the same command with --resume auto"
    )


def test_auto_measures_again_after_a_return_to_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ThreadContext(Exchange(1), 0, 1)
    replays, replayed = Replays(context, nn.Linear(2, 2), lambda batch: None, "auto"), []  # type: ignore[arg-type,return-value]

    def fail_first(step: int) -> None:
        replayed.append(step)
        if len(replayed) == 1:
            raise WrongArithmeticError("", WrongArithmetic((0,), 0, "the loss"))

    monkeypatch.setattr(replays, "_replay", fail_first)
    for step in range(1, 23):
        with suppress(WrongArithmeticError):
            replays.check(step)
    assert replayed == [11, 22]
    assert isinstance(replays._interval.every, int)


def test_a_rank_that_cannot_compute_known_answers_is_not_taken_for_right_and_a_line_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "find_wrong", fail_on("rank 1", lambda *_: ""))
    outcome = run_ranks("plain", 3, 4, 5, kinds=(0, 1, 0), solve=True)
    assert (outcome.replays, outcome.found) == (4, None)
    assert outcome.said == (
        "note: replays: rank 1 has not been tested with known results: OutOfMemoryError: out of memory",
    )
    monkeypatch.setattr(replay, "find_wrong", fail_on("rank 0", lambda *_: "sum in fp32"))
    found = run_ranks("plain", 2, 2, 5, 1, Fault("wrong bit", 1.0, random.Random(3)), solve=True).found
    assert found is not None
    assert (found.ranks, found.known) == ((), ""), "the only rank that was tested is no minority"
    monkeypatch.setattr(replay, "find_wrong", lambda device, seed, times: "sum" if seed == 2 else "")
    assert known_wrong(CPU, KNOWN_SEEDS) == "sum"
    assert known_wrong(CPU, [1]) == ""


@pytest.mark.parametrize(
    ("model", "split", "reason"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), False, "SyncBatchNorm exchanges data"),
        (nn.Linear(2, 2), True, "the stages of a pipeline exchange data"),
    ],
)
def test_a_forward_pass_with_collectives_is_refused(model: nn.Module, split: bool, reason: str) -> None:
    with pytest.raises(ReplayError, match=reason):
        require_replayable(model, split)
    require_replayable(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), split=False)


def test_a_processor_is_told_from_others_by_what_its_bits_depend_on() -> None:
    own = describe_processor(CPU, {})
    assert own == describe_processor(CPU, {"HOME": "/root"})
    assert own != describe_processor(CPU, {"ONEDNN_MAX_CPU_ISA": "AVX2"})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.arange(12.0).reshape(4, 3).t(),
        torch.arange(7)[1:5],
        torch.tensor(2.5),
        torch.tensor([True, False]),
        torch.arange(5.0).bfloat16(),
        torch.empty(0, 3),
    ],
    ids=("matrix", "channels last", "transposed", "slice", "number", "booleans", "bf16", "empty"),
)
def test_a_tensor_arrives_as_it_was_in_memory_of_its_own(tensor: torch.Tensor) -> None:
    copy = rebuild(raw_bytes(tensor), describe("x", tensor), CPU)
    assert torch.equal(copy, tensor)
    assert (copy.dtype, copy.stride()) == (tensor.dtype, tensor.stride())
    assert copy.data_ptr() != tensor.data_ptr() or not tensor.numel()


class Point(NamedTuple):
    """A tuple with names."""

    x: int


@pytest.mark.parametrize(
    "batch",
    [
        (torch.ones(2), torch.arange(3)),
        ({"x": torch.ones(2), 7: [torch.zeros(1), "text", None]}, (1, 2.5, True)),
        ([], {}, (), "", float("inf"), -(2**70)),
        ([[[[torch.arange(4.0).reshape(2, 2).t()]]]],),
        (torch.ones(3, requires_grad=True),),
        (torch.ones(1).expand(4, 4),),
        (torch.ones(2, dtype=torch.complex64).conj(),),
        (UserDict(x=torch.ones(2)),),
    ],
    ids=("tensors", "nested", "empty", "deep", "with a gradient", "expanded", "conjugate", "another mapping"),
)
def test_a_micro_batch_arrives_as_it_was_sent(batch: tuple[Any, ...]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    parts = json.loads(json.dumps(take_apart(batch, "batch", tensors)))
    copy = put_together(
        parts, {name: rebuild(raw_bytes(each), describe(name, each), CPU) for name, each in tensors.items()}
    )
    assert_equal(copy, tuple(dict(part) if isinstance(part, UserDict) else part for part in batch))


@pytest.mark.filterwarnings("ignore:.*(prototype|beta)")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.ones(2).to_sparse(), "batch[0] is a tensor that is sparse_coo"),
        (lambda: {"x": [torch.ones(2, 2).to_sparse_csr()]}, "batch[0]['x'][0] is a tensor that is sparse_csr"),
        (lambda: torch.ones(2, device="meta"), "batch[0] is a tensor that is on the meta device"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "batch[0] is a tensor that is quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "batch[0] is a tensor that is nested"),
        (lambda: torch.ones(2).as_subclass(type("Image", (torch.Tensor,), {})), "batch[0] is a tensor that is of the class Image"),
        (lambda: np.ones(2), "batch[0] is an object of ndarray"),
        (lambda: Point(1), "batch[0] is an object of Point"),
        (lambda: {1, 2}, "batch[0] is an object of set"),
        (lambda: print, "batch[0] is an object of builtin_function_or_method"),
        (lambda: {(1, 2): torch.ones(1)}, "batch[0] has the key (1, 2)"),
    ],
)  # fmt: skip
def test_what_other_ranks_cannot_rebuild_turns_replays_off_with_a_line(
    make: Callable[[], object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = replace(PROGRAMS["plain"], batch=lambda: (make(), torch.ones(1)))
    monkeypatch.setitem(PROGRAMS, "odd", odd)
    outcome = run_ranks("odd", 2, 4, 3)
    assert outcome.found is None
    [line] = outcome.said
    assert line.startswith(f"note: replays are turned off: rank 0: {reason}. A replay sends dense tensors"), line


def fail_on(thread: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what this one does, but not on the rank whose thread has this name: memory runs out there."""

    def fail(*args: Any, **more: Any) -> Any:
        if threading.current_thread().name == thread:
            raise torch.OutOfMemoryError("out of memory")
        return function(*args, **more)

    return fail


@pytest.mark.parametrize(
    ("wrong", "name"),
    [(0, "raw_bytes"), (0, "describe"), (1, "make_room"), (0, "rebuild"), (2, "rebuild")],
)
def test_where_memory_runs_out_on_one_rank_while_a_micro_batch_is_sent_replays_end_on_all_with_a_line(
    wrong: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, name, fail_on(f"rank {wrong}", getattr(replay, name)))
    outcome = run_ranks("plain", 3, 4, 3)
    assert outcome.found is None
    assert outcome.said == (f"note: replays are turned off: rank {wrong}: OutOfMemoryError: out of memory",)


def test_a_sparse_gradient_turns_replays_off_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = Program(
        lambda: nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 5)),
        lambda: (torch.randint(5, (6,)), torch.randint(5, (6,))),
        class_loss,
    )
    monkeypatch.setitem(PROGRAMS, "sparse", sparse)
    [line] = run_ranks("sparse", 2, 4, 3).said
    assert "rank 0: the gradient of 0.weight is a tensor that is sparse_coo" in line


@pytest.fixture
def single_group() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "exchange", [dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.all_gather([x.clone()], x)]
)
def test_what_exchanges_data_is_refused_in_a_replay(
    exchange: Callable[[torch.Tensor], object], single_group: None
) -> None:
    with NoCollectives(), pytest.raises(ReplayError, match=r"exchanges data between the ranks \(c10d\."):
        exchange(torch.ones(2))
    exchange(torch.ones(2))


def test_the_last_clean_snapshot_is_never_deleted_and_later_ones_are_set_aside(tmp_path: Path) -> None:
    for step, clean in ((1, 0), (2, 2), (3, 2), (4, 2), (5, 2), (6, 5)):
        save_snapshot(tmp_path, Snapshot(step, {"clean": clean}, {"model": {"x": torch.tensor([step])}}), keep=2)
        left = {path.name for path in tmp_path.iterdir()}
        assert f"step-{min(step, 2 if step < 6 else 5):08d}" in left
    assert left == {"step-00000005", "step-00000006"}
    assert [path.name for path in set_aside(tmp_path, Suspicion(1, 5))] == ["suspect-step-00000006"]
    found = load_newest(tmp_path, print)
    assert found
    assert found[1].step == 5
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000005", "suspect-step-00000006", "suspected.json"}
    assert set_aside(tmp_path / "none", Suspicion(1, 5)) == []


def test_a_snapshot_that_was_kept_when_later_ones_were_set_aside_is_clean_until_it_is_written_again(
    tmp_path: Path,
) -> None:
    tensors = {"model": {"x": torch.ones(2)}}
    for step, clean in ((5, 4), (10, 8)):
        save_snapshot(tmp_path, Snapshot(step, {"clean": clean}, tensors), keep=2)
    assert [path.name for path in set_aside(tmp_path, Suspicion(1, 8))] == ["suspect-step-00000010"]
    found = load_newest(tmp_path, pytest.fail)
    assert found
    assert found[1].state["clean"] == 5, "the replay of step 8 was right"
    (tmp_path / "suspect-step-00000010" / "withdrawn").touch()
    (tmp_path / "suspect-step-00000010").rename(tmp_path / "step-00000010")
    set_aside(tmp_path, Suspicion(1, 8))
    assert not (tmp_path / "suspect-step-00000010" / "withdrawn").exists(), "the store is to be told again"
    save_snapshot(tmp_path, Snapshot(5, {"clean": 4}, tensors), keep=2)
    found = load_newest(tmp_path, pytest.fail)
    assert found
    assert found[1].state["clean"] == 4


def test_a_node_that_was_away_sets_aside_what_the_others_found_to_be_wrong(tmp_path: Path) -> None:
    """Node 0 found it in attempt 2; node 1 was in the attempts 1 and 3."""
    for node, saved in enumerate((((1, 10), (1, 17), (2, 22)), ((1, 10), (1, 17), (3, 30)))):
        for attempt, step in saved:
            contents = Snapshot(step, {}, {"model": {"x": torch.ones(2)}}, attempt)
            save_snapshot(tmp_path / f"{node}/snapshots", contents, keep=9)
    set_aside(tmp_path / "0/snapshots", Suspicion(2, 10))
    save_snapshot(tmp_path / "0/snapshots", Snapshot(15, {}, {}, 2), keep=9)  # after the return, in the same attempt
    exchange, warned, found, dropped = Exchange(2), list[str](), {}, list[Suspicion]()
    memory = SimpleNamespace(forget_suspects=dropped.append, load=lambda *_: None, usable=True)

    def be(node: int) -> None:
        context = ThreadContext(exchange, node, 2)
        context.place.run_dir = tmp_path / str(node)
        context.warn = warned.append  # type: ignore[attr-defined]
        context.total = lambda *own: [sum(each) for each in zip(*exchange.tell(node, own), strict=True)]  # type: ignore[attr-defined]
        own_disk = SimpleNamespace(on_disk=True, folder=lambda path: path)
        set_aside_earlier(context, memory, own_disk)  # type: ignore[arg-type]
        found[node] = sorted(path.name for path in (tmp_path / f"{node}/snapshots").glob("s*-*"))

    threads = [threading.Thread(target=be, args=(node,)) for node in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == ["step-00000010", "step-00000015", "suspect-step-00000017", "suspect-step-00000022"]
    assert found[1] == ["step-00000010", "step-00000030", "suspect-step-00000017"]
    assert dropped == [Suspicion(2, 10)] * 2
    [warning] = warned
    assert warning.endswith("1/snapshots/suspect-step-00000017")
    assert read_suspicion(tmp_path / "1/snapshots") == Suspicion(2, 10)


@pytest.mark.pull
def test_a_rank_that_computes_wrongly_once_is_named_and_the_job_ends_bit_for_bit_as_ever(
    job: Start, whole: Start
) -> None:
    reference = whole("linear", *OPTIONS, "--replay-every", 0, processes=3)
    run = job("linear", *OPTIONS, "--replay-every", 4, processes=3, wrong=[1, 12, 1])
    assert run.exit_code == 0, run.output
    assert run.output.count("wrong after step 12") == 1
    assert (
        "rank 1 computed wrongly: a micro-batch of rank 2 differs, first in the gradient of layer.weight" in run.output
    )
    assert "suspect-step-00000010" in run.output
    assert "resuming from" in run.output
    assert "step-00000005" in run.output
    for name, tensor in reference.tensors("model", "optimizer", "ranks").items():
        assert torch.equal(tensor, run.tensors("model", "optimizer", "ranks")[name]), name
    [row] = json.loads((run.folder / "replicas.json").read_text())["differences"]
    assert row["kind"] == "arithmetic"
    assert row["nodes"][0].startswith("node 0 (")


def test_of_two_kinds_of_processors_each_is_compared_with_itself(start: Callable[..., Job]) -> None:
    kinds = ["new", "old", "old", "new"]
    words = ("linear", *OPTIONS, "--replay-every", 4)
    [run] = start(*words, processes=4, wrong=[2, 12, 1], kinds=kinds).end()
    assert run.exit_code == 0, run.output
    assert run.output.count("note: replays: rank 0 and 1 more have new; rank 1 and 1 more have old. Results") == 1
    assert run.output.count("rank 2 computed wrongly: a micro-batch of rank 2 differs") == 1
    [run] = start(*words, processes=2, folders=("pair",), kinds=["new", "old"]).end()
    assert run.exit_code == 0, run.output
    assert "No other rank is of the same kind as rank 0, 1." in run.output
    assert "more replays" not in run.output


@pytest.mark.parametrize("name", ["gpt in bf16", "vision, one rank of each kind", "own loop with accumulation"])
def test_a_training_without_a_fault_raises_no_alarm(name: str) -> None:
    found = clean_steps.run_job(name, 60, "15")
    assert (found["alarms"], found["steps"], found["replays"]) == (0, 60, 4)


@pytest.mark.parametrize(("processes", "nodes"), [(2, 1), (3, 1), (2, 2)])
def test_a_node_whose_known_answers_are_wrong_is_unhealthy_at_once(
    processes: int, nodes: int, start: Callable[..., Job]
) -> None:
    folders = tuple(f"node-{node}" for node in range(nodes))
    words = ("linear", *OPTIONS, "--replay-every", 4)
    runs = start(*words, processes=processes, folders=folders, wrong=[1, 12, 99], known=1).end()
    assert "computations with known results were wrong, too (sum in fp32: 1 of 32 numbers)" in runs[-1].output
    assert {outcome["outcome"] for outcome in runs[-1].outcomes} == {"unhealthy"}
    if nodes == 2:
        assert {outcome["outcome"] for outcome in runs[0].outcomes} == {"peer"}
    for run in runs:  # whoever goes on with the run does not resume from what is wrong
        assert run.snapshots == ["step-00000005"]


def test_two_nodes_of_which_nobody_knows_which_is_wrong_go_back_once_and_then_end(start: Callable[..., Job]) -> None:
    words = ("linear", *OPTIONS, "--replay-every", 4)
    runs = start(*words, processes=2, folders=("one", "two"), wrong=[1, 12, 99]).end()
    assert runs[0].output.count("the ranks computed different results: a micro-batch of rank") >= 2
    assert {outcome["outcome"] for run in runs for outcome in run.outcomes} == {"failed"}
    assert "`slipway check --burn 60` on each node may tell which" in runs[0].outcomes[0]["message"]


@pytest.mark.parametrize("step", [12, 8])  # the second attempt resumes from step 5, or has no snapshot to resume from
def test_a_restart_does_not_forget_that_one_of_two_nodes_is_wrong(step: int, start: Callable[..., Job]) -> None:
    words = ("linear", *OPTIONS, "--replay-every", 4)
    for resume, first in (("none", step), ("auto", 0)):
        folders = ("one", "two")
        runs = start(*words, processes=2, folders=folders, resume=resume, wrong=[1, first, 99]).end()
        assert {outcome["outcome"] for run in runs for outcome in run.outcomes} == {"failed"}, runs[0].output
    assert runs[0].snapshots == (["step-00000005"] if step == 12 else []), "it is known to be right, and stays"


def test_a_run_does_not_begin_twice_with_the_wrong_numbers_of_another_run(start: Callable[..., Job]) -> None:
    words = ("linear", *OPTIONS, "--replay-every", 4)
    [other] = start(*words, "--steps", 10, processes=2, folders=("other",)).end()
    for wrong in ([1, 12, 99], [1, 0, 0]):
        [run] = start(*words, processes=2, folders=("run",), resume=str(other.folder), wrong=wrong).end()
        assert {outcome["outcome"] for outcome in run.outcomes} == {"failed" if wrong[1] else "configuration"}, (
            run.output
        )
        assert run.snapshots == []
        if wrong[1]:
            said = f"{other.folder} may contain wrong numbers, too: type --resume with a snapshot of step 8 or before"
        else:
            said = "the snapshot at step 10 may contain wrong numbers, as this run found in attempt 0. Type --resume with one of"
        assert said in run.outcomes[0]["message"]
    before = str(other.folder / "snapshots" / "step-00000005")
    [run] = start(*words, processes=2, folders=("run",), resume=before).end()
    assert run.exit_code == 0, run.output


def test_auto_chooses_an_interval_once_it_knows_what_a_replay_takes(job: Start) -> None:
    run = job("linear", *OPTIONS, "--steps", 40, "--replay-every", "auto", processes=2)
    assert run.exit_code == 0, run.output
    state = json.loads((run.folder / "snapshots" / run.snapshots[0] / "state.json").read_text())
    assert state["clean"] >= 11


GPT = ("gpt", "--preset", "tiny", "--dropout", 0.1)


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        ((*GPT, "--steps", 8, "--accumulate", 2, "--batch-size", 8), 2),
        ((*GPT, "--steps", 8, "--accumulate", 2, "--batch-size", 12), 3),
        ((*GPT, "--steps", 6, "--precision", "bf16", "--batch-size", 8), 2),
        (("vision", "--steps", 6, "--batch-size", 32, "--shift", 2), 2),
        (("linear", "--dataset-size", 240, "--batch-size", 12, "--steps", 20), 3),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_with_and_without_replays_weights_and_random_generators_end_alike(
    words: tuple[object, ...], processes: int, job: Start, whole: Start
) -> None:
    reference = whole(*words, "--replay-every", 0, processes=processes)
    run = job(*words, "--replay-every", 1, processes=processes)
    assert run.exit_code == 0, run.output
    assert "replay" not in run.output
    for name, tensor in reference.tensors("model", "optimizer", "ranks").items():
        assert torch.equal(tensor, run.tensors("model", "optimizer", "ranks")[name]), name
