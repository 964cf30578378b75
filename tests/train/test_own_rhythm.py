"""Where an own loop is in its data, when it is saved, and what is said of a loop that a restart could not repeat."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from test_own_runs import Step, begin, handle_as_usual, position
from torch import nn
from torch.utils.data import DataLoader

import slipway
from slipway.train.user.run import ResumableRun

pytestmark = [pytest.mark.pull, pytest.mark.usefixtures("own_run")]
Body = Callable[[ResumableRun, Step], None]


def loader_of(size: int = 20, batch_size: int = 2) -> DataLoader[Any]:
    return DataLoader(torch.arange(float(size)), batch_size)  # type: ignore[arg-type]


class BrokenOffError(Exception):
    """What stands for a SIGKILL."""


def break_off(run: ResumableRun) -> None:
    run._snapshots.writer.wait()
    raise BrokenOffError


def numbered(run: ResumableRun) -> Iterator[int]:
    yield from (number for number, _ in run.enumerate(loader_of()))


def limited(run: ResumableRun) -> Iterator[int]:
    for _ in run.batches(loader_of()):
        if run.batch >= 7:
            break
        yield run.batch


@pytest.mark.parametrize(("loop", "each"), [(numbered, 10), (limited, 7)])
def test_the_number_of_a_batch_goes_on_after_a_resume(loop: Callable[..., Iterator[int]], each: int) -> None:
    done: list[int] = []
    for stops in (3, 1, None):
        run, step = begin(save_every=1)
        try:
            for _ in run.epochs(2):
                for number in loop(run):
                    if len(done) == (stops or 0) + 4 and stops:
                        break_off(run)
                    done[run.step :] = [number]
                    step()
        except BrokenOffError:
            assert stops
    assert done == [*range(each)] * 2


@pytest.mark.parametrize(
    ("more", "size", "before", "after"),
    [
        ({}, 6, [2, 5, 8], [3, 6, 9]),
        ({"save_every": 3}, 6, [0, 3, 6], [3, 6, 9]),
        ({}, 2, [0, 1, 2], [1, 2, 3]),
    ],
    ids=["where it is cheap", "once in each epoch", "one batch"],
)
def test_the_end_of_an_epoch_is_saved_when_its_own_code_is_done(
    more: dict[str, int], size: int, before: list[int], after: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows the batches may read what the last one left in a variable. Where each epoch saved once, at its last batch, every
    restart ended in a NameError."""
    for name, value in {"LEAST": 0.0, "DISK_SHARE": 1e9, "BUSY": 1e9}.items():
        monkeypatch.setattr(f"slipway.train.worker.rhythm.{name}", value)

    def newest(run: ResumableRun) -> int:
        run._snapshots.writer.wait()
        return max(
            (int(each.name[5:]) for each in (run._context.place.run_dir / "snapshots").glob("step-*")), default=0
        )

    found: tuple[list[int], list[int]] = ([], [])  # which outlives what stands for a process
    for end in range(4):
        run, step = begin(**more)
        with suppress(BrokenOffError):
            for epoch in run.epochs(4):
                if epoch > len(found[1]):
                    found[1].append(newest(run))
                for _ in run.batches(loader_of(size)):
                    step()
                    loss = epoch
                if epoch == end < 3:
                    found[0].append(newest(run))
                    break_off(run)
                assert loss == epoch
    assert found == (before, after)


def test_a_stop_at_the_end_of_an_epoch_waits_until_its_own_code_is_done(request: pytest.FixtureRequest) -> None:
    handle_as_usual(signal.SIGTERM, request)
    done: list[int] = []

    def loop(stops: bool) -> None:
        run, step = begin()
        for epoch in run.epochs(3):
            for _ in run.batches(loader_of(10)):
                if stops and (epoch, run.batch) == (1, 4):
                    os.kill(os.getpid(), signal.SIGTERM)
                step()
                loss = epoch
            done.append(loss)

    with pytest.raises(SystemExit):
        loop(True)
    assert done == [0, 1]
    handle_as_usual(signal.SIGTERM, request)
    loop(False)
    assert done == [0, 1, 2]


def test_what_a_rank_has_of_its_own_takes_the_same_room_at_each_step() -> None:
    """A snapshot of another size is not kept in memory while room is made for it."""
    run, step = begin()
    sizes, texts = set(), set()
    for epoch in run.epochs(3):
        for _ in run.batches(loader_of()):
            step()
            run.log(loss=1.0)
            own = run._contents.of_rank()["data"]
            sizes.add(own.shape)
            texts.add(int(own[:8].clone().view(torch.int64)))
            run.state["before"] = [0.1] * epoch
    assert len(texts) > 1
    assert len(sizes) == 1


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [36, 39, 40])
def test_with_another_number_of_processes_the_last_batch_has_the_last_number(size: int, drop_last: bool) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(size), 4, drop_last=drop_last)  # type: ignore[arg-type]

    here, there = position(3, []), position(1, [])
    here.begin_epoch()
    under_way = here.batches(make(), None, lambda: None)  # one that is gone has left its loop
    next(under_way)
    there.load(here.describe(), here.of_rank(), 3)
    there.begin_epoch()
    numbers = [there.batch for _ in there.batches(make(), None, lambda: None)]
    assert numbers[-1] == len(make()) - 1
    assert numbers == [*range(numbers[0], numbers[-1] + 1)]


def counts(run: ResumableRun, step: Step) -> None:
    for number, batch in enumerate(run.batches(loader_of())):
        step()
        if number > 3:
            print(batch)


def counts_and_recomputes(run: ResumableRun, step: Step) -> None:
    for number, _ in enumerate(run.batches(loader_of())):
        step()
        number = run.step
        print(number)


def counts_for_nothing(run: ResumableRun, step: Step) -> None:
    for _, batch in enumerate(run.batches(loader_of())):
        step()
        print(batch)


def bar(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def counts_around_a_bar(run: ResumableRun, step: Step) -> None:
    for number, (batch, _) in enumerate(bar(zip(run.batches(loader_of()), range(99), strict=False))):
        step()
        print(number, batch)


def counts_a_bar(run: ResumableRun, step: Step) -> None:
    for number, batch in enumerate(bar(run.batches(loader_of()))):
        step()
        print(number, batch)


def reads_beside(run: ResumableRun, step: Step) -> None:
    for _ in zip(cycle([1, 2]), run.batches(loader_of()), strict=False):
        step()


def stops_early(run: ResumableRun, step: Step) -> None:
    for _ in islice(run.batches(loader_of()), 7):
        step()


def counts_right(run: ResumableRun, step: Step) -> None:
    for number, batch in run.enumerate(loader_of()):
        step()
        for other, value in enumerate(zip(batch, batch, strict=True)):
            print(number, other, value)


def draws(run: ResumableRun, step: Step) -> None:
    torch.rand(1)
    step()


def reads_one_by_one(run: ResumableRun, step: Step) -> None:
    next(HELD[0])
    step()


def reads_a_short_one_again_and_again(run: ResumableRun, step: Step) -> None:
    if run.step == 0:
        HELD[:] = [again_and_again(loader_of(4))]
    reads_one_by_one(run, step)


def again_and_again(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def validates_now_and_then(run: ResumableRun, step: Step) -> None:
    step()
    if run.step % 3 == 1:
        list(loader_of())
    if run.step == 2:
        next(HELD[0])


HELD: list[Iterator[Any]] = []  # by a script, of a loader that it reads batch by batch
SAID: dict[Body, str] = {
    counts: "note: enumerate(run.batches(…)) counts from 0 again",
    counts_around_a_bar: "warning: zip(…, run.batches(…)): what else it reads begins again",
    counts_a_bar: "note: enumerate(run.batches(…)) counts from 0 again",
    reads_beside: "warning: zip(…, run.batches(…)): what else it reads begins again",
    stops_early: "warning: islice(run.batches(…)) counts from 0 again",
    counts_and_recomputes: "",
    counts_for_nothing: "",
    counts_right: "",
}
READ: dict[Body, str] = {
    reads_one_by_one: "warning: a DataLoader over Tensor is read without run.batches",
    reads_a_short_one_again_and_again: "warning: a DataLoader over Tensor is read without run.batches",
    draws: "",
    validates_now_and_then: "",
}


def assert_said(text: str, said: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith(("warning", "note"))]
    assert len(lines) == bool(said), lines
    assert said in "".join(lines)


@pytest.mark.parametrize("body", SAID)
def test_what_counts_batches_itself_is_named_once_where_it_matters(
    body: Body, capsys: pytest.CaptureFixture[str]
) -> None:
    run, step = begin()
    for _ in run.epochs(3):
        body(run, step)
    assert_said(capsys.readouterr().err, SAID[body])


@pytest.mark.parametrize("how", ["steps", "boundary", "batches"])
@pytest.mark.parametrize("body", READ)
def test_a_loader_that_is_read_past_run_batches_is_named_once(
    body: Body, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, step = begin()
    HELD[:] = [iter(loader_of())]
    if how == "boundary":
        while run.step < 8:
            body(run, step)
            run.boundary()
        run.finish()
    else:
        for _ in run.steps(8) if how == "steps" else run.batches(range(8)):
            body(run, step)
    assert_said(capsys.readouterr().err, READ[body])


class Moved:
    """A loader around another one, which a thread reads ahead."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        HELD[:] = [iter(self.loader)]
        yield from islice(cycle([1]), 9)


def test_a_loader_that_is_read_ahead_by_what_run_batches_reads_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    run, step = begin()
    for _ in run.batches(Moved(loader_of())):
        with ThreadPoolExecutor() as threads:
            threads.submit(next, HELD[0]).result()
        step()
    assert_said(capsys.readouterr().err, "")


@pytest.mark.parametrize("keeps", [False, True])
def test_an_epoch_that_is_saved_without_its_position_is_named_once(
    keeps: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run, step = begin()
    for _ in run.epochs(2):
        for number in range(run.state.get("number", 0), 5):
            step()
            if keeps:
                run.state["number"] = number + 1
            run.boundary()
        run.state.clear()
    assert_said(capsys.readouterr().err, "" if keeps else "warning: steps are done in an epoch, and nothing is read by")


def endless() -> Iterator[int]:
    while True:
        yield from range(5)


STREAMS: dict[str, tuple[Callable[[], Callable[[], Any]], str]] = {
    "a part of one stream": (lambda: (lambda stream: lambda: islice(stream, 3))(endless()), "It cannot begin again"),
    "mapped": (lambda: (lambda stream: lambda: map(float, islice(stream, 3)))(endless()), "It cannot begin again"),
    "of a list": (lambda: (lambda stream: lambda: islice(stream, 3))(iter(range(99))), "It cannot begin again"),
    "a new one each time": (lambda: lambda: islice(endless(), 3), ""),
    "two loaders": (lambda: lambda: zip(cycle(loader_of(4)), loader_of(6), strict=False), ""),
    "a list": (lambda: lambda: [1, 2, 3], ""),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_an_iterator_that_was_made_before_the_epoch_is_named_once(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, said = STREAMS[kind]
    data = make()
    run, step = begin(save_every=1)

    def loop(run: ResumableRun, step: Step, stops: bool) -> None:
        for epoch in run.epochs(4):
            for _ in run.batches(data()):
                if stops and run.step == 7 and epoch:
                    break_off(run)
                step()

    with pytest.raises(BrokenOffError):
        loop(run, step, True)
    assert_said(capsys.readouterr().err, said)
    again, step = begin()
    loop(again, step, False)
    found = capsys.readouterr()
    assert_said(found.err, said)
    assert ("again in" in found.out) is (not said and again._counts.before % 3 != 0)


@pytest.mark.parametrize("order", ["held first", "held last"])
def test_a_run_is_saved_while_one_of_its_optimizers_does_not_step(order: str) -> None:
    def loop(kills: bool) -> ResumableRun:
        torch.manual_seed(0)
        models = [nn.Linear(1, 1) for _ in range(2)]
        held, other = (torch.optim.SGD(model.parameters(), lr=0.1) for model in models)
        optimizers = [held, other] if order == "held first" else [other, held]
        run = slipway.resume(netG=models, optimizers=optimizers, save_every=1)
        for iteration in run.steps(6):
            for model, optimizer in zip(models, (held, other), strict=True):
                if optimizer is held and iteration < 4:
                    continue
                model(torch.rand(1, 1)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            if kills and iteration == 3:
                break_off(run)
        return run

    with pytest.raises(BrokenOffError):
        loop(True)
    folder = Path(os.environ["SLIPWAY_RUN_DIR"], "snapshots")
    assert max(path.name for path in folder.iterdir()) == "step-00000003"
    run = loop(False)
    assert run.number == 6
    assert run.step == (2 if order == "held first" else 6)
    assert max(path.name for path in folder.iterdir()) == "step-00000006"


@pytest.mark.parametrize("how", ["epochs", "steps"])
def test_a_run_that_break_left_is_finished_until_it_is_given_more(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    def loop(total: int, last: int) -> tuple[int, ...]:
        run, step = begin()
        done: tuple[int, ...] = ()  # a list comes back
        for number in getattr(run, how)(total):
            step()
            if how == "epochs":
                run.boundary()
            done += (number,)
            if number == last:
                break
        return done

    assert loop(10, 2) == (0, 1, 2)
    assert loop(10, 2) == ()
    assert loop(8, 2) == ()
    assert "was already finished at step 3" in capsys.readouterr().out
    assert loop(12, 5)[-1] == 5
    assert loop(6, 5) == ()


Trace = dict[tuple[Any, ...], float]


def validate(run: ResumableRun, trace: Trace, place: tuple[Any, ...], stops: bool) -> None:
    """Draw random numbers, and in the midst of that ask for a stop."""
    for number in range(6):
        trace[(*place, number)] = torch.rand(()).item()
        if stops and number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        run.boundary()


def validated(run: ResumableRun, step: Step, where: str, trace: Trace, stops: bool) -> None:
    """A loop that validates `where`; the second validation is where it is stopped."""
    if where == "before the loop":
        validate(run, trace, (where,), stops)
    if where.startswith("steps"):
        for iteration in run.steps(4):
            if where == "steps, before":
                validate(run, trace, (iteration,), stops and iteration == 1)
            trace[iteration, "step"] = torch.rand(()).item()
            step()
            if where == "steps, after":
                validate(run, trace, (iteration,), stops and iteration == 1)
        return
    for epoch in run.epochs(3):
        if where == "before the data":
            validate(run, trace, (epoch,), stops and epoch == 1)
        for batch in run.batches(DataLoader(range(6), 2, shuffle=True)):  # type: ignore[arg-type]
            if where == "before a step":
                validate(run, trace, (epoch, run.batch), stops and (epoch, run.batch) == (1, 1))
            trace[epoch, run.batch, "batch"] = float(batch[0]) + torch.rand(()).item()
            step()
        if where == "after the data":
            validate(run, trace, (epoch,), stops and epoch == 1)


@pytest.mark.parametrize(
    "where", ["before the loop", "before the data", "before a step", "after the data", "steps, before", "steps, after"]
)
def test_a_stop_within_a_validation_is_served_and_the_validation_repeated(
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handle_as_usual(signal.SIGTERM, request)
    whole: Trace = {}
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / "whole"))
    torch.manual_seed(5)
    validated(*begin(), where, whole, False)
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / "run"))
    found: Trace = {}
    torch.manual_seed(5)
    with pytest.raises(SystemExit) as end:
        validated(*begin(save_every=100), where, found, True)
    assert end.value.code == 75
    said = capsys.readouterr().out
    assert "snapshot saved" in said
    handle_as_usual(signal.SIGTERM, request)
    torch.manual_seed(5)
    validated(*begin(), where, found, False)
    assert ("what follows in this iteration is not done after the resume" in said) is (where == "steps, after")
    if where == "steps, after":
        found = {place: value for place, value in found.items() if place[1] == "step" and place[0] <= 1}
    assert found == {place: whole[place] for place in found}
    assert len(found) == (len(whole) if where != "steps, after" else 2)


CHANGES = [
    *(("after the data", False, what) for what in ("draws", "schedule", "counter", "weights")),
    *(("after the data", True, what) for what in ("schedule", "weights")),  # left by break
    *(("before the data", False, what) for what in ("schedule", "weights")),
]


@pytest.mark.parametrize("looks", [True, False], ids=["", "without time to look"])
@pytest.mark.parametrize(("where", "left", "what"), CHANGES)
def test_what_an_epochs_own_code_changes_before_a_stop_within_it_is_changed_once(
    where: str,
    left: bool,
    what: str,
    looks: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not looks:
        monkeypatch.setattr("slipway.train.user.repeated.LEAST", float("-inf"))  # seconds that it may take

    def train(folder: str, stops: bool) -> None:
        monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / folder))
        handle_as_usual(signal.SIGTERM, request)
        torch.manual_seed(5)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        dice = torch.Generator().manual_seed(6)
        run = slipway.resume(model=model, optimizer=optimizer, scheduler=scheduler, dice=dice)

        def own_code(epoch: int) -> None:
            if what == "schedule" and run.step:
                scheduler.step()
            if what == "counter":
                run.state["count"] = run.state.get("count", 0) + 1
            if what == "weights":
                with torch.no_grad():
                    model.weight.mul_(0.5)
            for number in range(3):
                if what == "draws":
                    drawn[epoch, number] = torch.rand((), generator=dice).item() + torch.rand(()).item()
                if stops and (epoch, number) == (1, 1):
                    os.kill(os.getpid(), signal.SIGTERM)
                run.boundary()

        for epoch in run.epochs(3):
            if where == "before the data":
                own_code(epoch)
            for (x,) in run.batches(DataLoader(list(torch.arange(8.0).view(8, 1, 1)), None)):
                model(x / 8).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if left and run.batch == 5:
                    break
            if where == "after the data":
                own_code(epoch)
        ends.append((model.weight.item(), optimizer.param_groups[0]["lr"], {**run.state}, {**drawn}))

    drawn: dict[tuple[int, int], float] = {}
    ends: list[Any] = []
    train("whole", False)
    with pytest.raises(SystemExit) as end:
        train("run", True)
    assert end.value.code == 75
    changed = "model" if looks else "a passed object, perhaps"
    waits = f"the stop waits for the end of this epoch: its own code changed {changed}, and" in capsys.readouterr().err
    assert waits is (what == "weights" or not looks)
    train("run", False)
    assert ends[1] == ends[0]


def test_run_state_at_the_beginning_of_an_epoch_is_what_its_own_code_found_there() -> None:
    """It may compute with what it has counted, and does so again where the loop resumes within that epoch."""
    scales: list[tuple[int, int, list[int]]] = []
    for end in (7, 9, None):
        run, step = begin(save_every=1)
        with suppress(BrokenOffError):
            history = run.state.setdefault("history", [])
            for epoch in run.epochs(4):
                run.state["count"] = scale = run.state.get("count", 0) + 1
                history.append(epoch)
                for _ in run.batches(loader_of(8)):
                    if run.step == end:
                        break_off(run)
                    step()
                    scales[run.step - 1 :] = [(epoch, scale, [*history])]
    assert scales == [(epoch, epoch + 1, [*range(epoch + 1)]) for epoch in range(4) for _ in range(4)]


def test_a_stop_by_one_boundary_after_a_step_waits_for_the_end_of_the_iteration(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    handle_as_usual(signal.SIGTERM, request)
    run, step = begin()
    ends: list[int] = []

    def loop() -> None:
        for iteration in run.steps(9):
            step()
            if iteration == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            run.boundary()
            ends.append(iteration)

    with pytest.raises(SystemExit):
        loop()
    assert ends == [0, 1, 2, 3]
    assert "warning" not in capsys.readouterr().out
