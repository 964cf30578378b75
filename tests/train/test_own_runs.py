"""How runs of users' own loops end, what they refuse, and how another number of processes divides what is left of an epoch."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, DistributedSampler, SequentialSampler, Subset
from training_jobs import raise_stop_flag, worker_environment
from waiting import PATIENCE

import slipway
from slipway.train import ConfigurationError, load_newest, trace
from slipway.train.snapshots import writer
from slipway.train.user import run as own_run
from slipway.train.user.position import Position
from slipway.train.user.run import ResumableRun
from slipway.train.user.sources import places_of, seeds_of, set_epoch
from slipway.train.worker.launcher import StopFlag

pytestmark = [pytest.mark.pull, pytest.mark.usefixtures("own_run")]
Step = Callable[[], None]
require_first, leave_process = own_run.require_first, ResumableRun._leave  # before a fixture replaces them


def begin(width: int = 1, **more: Any) -> tuple[ResumableRun, Step]:
    """A run, and what takes a step."""
    model = nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()

    return slipway.resume(model=model, optimizer=optimizer, **more), step


def handle_as_usual(number: signal.Signals, request: pytest.FixtureRequest) -> None:
    """Give a signal the handler that a program has of it, which a shell's `&` takes away from SIGINT, until the test has ended."""
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, before))


ASKED = {
    "python": ({}, 75, 79),
    "torchrun": ({"TORCHELASTIC_RUN_ID": "1"}, 0, 0),
}


@pytest.mark.parametrize("starter", ASKED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_and_ends_the_loop_by_an_exit_that_its_starter_understands(
    starter: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    variables, stopped, cancelled = ASKED[starter]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    handle_as_usual(number, request)
    run, step = begin()
    done: list[int] = []
    tidied: list[bool] = []

    def loop() -> None:
        try:
            for iteration in run.steps(100):
                step()
                done.append(iteration)
                if iteration == 4:
                    os.kill(os.getpid(), number)
        finally:
            tidied.append(True)

    with pytest.raises(SystemExit) as end:
        loop()
    assert end.value.code == (cancelled if number == signal.SIGINT else stopped)
    assert tidied
    assert len(done) < 10
    assert f"at step {len(done)}, snapshot saved" in capsys.readouterr().out
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler), "a second one ends it at once"
    again, step = begin()
    assert next(iter(again.steps(100))) == len(done)


def test_a_stop_by_the_launcher_is_an_outcome_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in worker_environment(tmp_path / "job", "none").items():
        monkeypatch.setenv(name, value)
    run, step = begin()
    assert (tmp_path / "job" / "node-0" / "honours-stop").exists()

    def loop() -> None:
        for iteration in run.steps(100):
            step()
            if iteration == 3:
                raise_stop_flag(tmp_path / "job")

    with pytest.raises(SystemExit) as end:
        loop()
    assert end.value.code == 0
    outcome = json.loads((tmp_path / "job" / "node-0" / "outcome" / "rank-0.json").read_text())
    assert (outcome["outcome"], outcome["step"]) == ("stopped", run.step)
    assert outcome["snapshot"] == f"step-{run.step:08}"
    assert (tmp_path / "job" / "node-0" / "honours-stop").exists(), (
        "else the launcher signals what is about to end by itself"
    )


@pytest.mark.parametrize("stopped", [False, True])
def test_a_rank_that_torchrun_ends_because_another_failed_ends_at_once(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    handle_as_usual(signal.SIGTERM, request)
    for name, value in worker_environment(tmp_path / "job", "none").items():
        monkeypatch.setenv(name, value)
    run, step = begin()
    step()
    if stopped:  # then the launcher has raised the flag, and the signal has no effect
        raise_stop_flag(tmp_path / "job")
    os.kill(os.getpid(), signal.SIGTERM)
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    leave_process(run)
    assert sent == ([] if stopped else [signal.SIGTERM])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "one that comes while Python ends has its effect at once"


@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_without_the_launcher_nothing_is_written_or_deleted_through_links(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    target: str,
) -> None:
    handle_as_usual(signal.SIGTERM, request)
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / "job"))
    (tmp_path / "there").mkdir()
    (tmp_path / "there/stop").write_text("mine")
    (tmp_path / "job").mkdir()
    (tmp_path / "job/node-0").symlink_to(tmp_path / target)
    with pytest.raises(SystemExit, match="78"):
        begin()
    assert "node-0 is a link, which is not followed" in capsys.readouterr().err
    (tmp_path / "job/node-0").unlink()
    run, step = begin()
    (tmp_path / "job/node-0/stop").symlink_to(tmp_path / target / "stop" if target == "there" else tmp_path / target)
    for _ in run.steps(2):
        step()
        signal.raise_signal(signal.SIGTERM)
        break
    assert json.loads((tmp_path / "job/node-0/stop").read_text())["signal"] == "SIGTERM"
    assert not (tmp_path / "job/node-0/stop").is_symlink()
    assert (tmp_path / "there/stop").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_what_follows_a_finished_loop_gets_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in worker_environment(tmp_path / "job", "none").items():
        monkeypatch.setenv(name, value)
    run, step = begin()
    for _ in run.steps(3):
        step()
    assert not (tmp_path / "job" / "node-0" / "honours-stop").exists()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")  # Python's own, from 3.12 on
@pytest.mark.parametrize(
    ("number", "persistent"), [(signal.SIGTERM, True), (signal.SIGINT, False), (signal.SIGUSR1, True)]
)
def test_a_signal_to_the_loaders_workers_too_saves_all_the_same(
    number: signal.Signals, persistent: bool, request: pytest.FixtureRequest
) -> None:
    handle_as_usual(number, request)
    earlier = set(multiprocessing.active_children())
    run, step = begin()
    began: list[int] = []
    workers: list[Any] = []
    loader = DataLoader(
        range(200),  # type: ignore[arg-type]
        2,
        num_workers=2,
        persistent_workers=persistent,
        worker_init_fn=began.append,
    )

    def loop() -> None:
        for _ in run.epochs(3):
            for _ in run.batches(loader):
                step()
                if run.step == 3:
                    workers.extend(set(multiprocessing.active_children()) - earlier)
                    everybody = [str(pid) for pid in (*(worker.pid for worker in workers), os.getpid())]
                    subprocess.run(["kill", f"-{number.value}", *everybody], check=True)

    with pytest.raises(SystemExit) as end:
        loop()
    assert end.value.code == (79 if number == signal.SIGINT else 75)
    assert began == [], "in other processes"
    again, step = begin()
    assert again.step == run.step >= 3
    assert len(workers) == 2
    for worker in workers:  # which the process that trains can end
        worker.terminate()
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_loaders_workers_block_the_signals_before_anything_runs_there() -> None:
    """What is collected in a worker can start threads, as an older loader's iterator does, and they inherit what is blocked."""
    run, step = begin()
    reading, writing = os.pipe()
    told = torch.ones(1)  # anything that can be referred to weakly
    multiprocessing.util.register_after_fork(
        told,
        lambda _: os.write(writing, bytes([0, *signal.pthread_sigmask(signal.SIG_BLOCK, [])])),
    )
    for _ in run.epochs(1):
        for _ in run.batches(DataLoader(range(4), 2, num_workers=1)):  # type: ignore[arg-type]
            step()
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1} <= {*os.read(reading, 64)}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    for number in (reading, writing):
        os.close(number)


def test_processes_without_a_distributed_sampler_seed_their_samples_differently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for rank in range(3):
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: 3)
        seeds = seeds_of(5, 0, 0, *places_of(BatchSampler(SequentialSampler(range(9)), 3, drop_last=False)))
        found += [next(seeds) for _ in range(9)]
    assert len(set(found)) == 27


def test_a_stop_waits_until_no_gradient_is_pending() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = slipway.resume(model=model, optimizer=optimizer)
    done: list[int] = []

    def loop() -> None:
        for micro in run.steps(100):
            model(torch.ones(1, 1)).sum().backward()
            if micro == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            if micro % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            done.append(micro)

    with pytest.raises(SystemExit):
        loop()
    assert done[-1] % 4 == 3
    assert run.step == len(done) // 4


def refused(capsys: pytest.CaptureFixture[str], act: Callable[[], object]) -> str:
    """What is said by an end with 78."""
    with pytest.raises(SystemExit) as end:
        act()
    assert end.value.code == 78
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


def test_a_run_directory_at_an_address_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SLIPWAY_RUN_DIR", "SLIPWAY_RESUME"):
        monkeypatch.setenv(name, "s3://bucket/run")
        assert f"{name}=s3://bucket/run: s3:// is not supported" in refused(capsys, begin)
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match="s3:// is not supported"):
        load_newest(Path("s3://bucket/run"), print)
    with pytest.raises(ConfigurationError, match="s3:// is not supported"), trace("s3://bucket/traces"):
        raise AssertionError("the block must not run")
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_is_begun_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = begin()
    run.epochs(3)
    assert "run.steps was called after run.epochs" in refused(capsys, lambda: run.steps(3))


@pytest.mark.parametrize("name", ["step", "time"])
def test_a_name_that_each_line_of_the_metrics_has_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    run, _ = begin()
    assert f"run.log({name}=…): each line of metrics.jsonl has" in refused(capsys, lambda: run.log(**{name: 1}))


def test_batches_within_batches_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = begin()
    next(iter(run.batches([1, 2])))
    outer = run.batches([1, 2])
    next(outer)
    assert "iterate over a validation loader without run.batches" in refused(capsys, lambda: next(run.batches([3])))


def test_values_that_cannot_be_saved_are_refused_at_the_next_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    run, step = begin(save_every=1)
    run.state["f"] = print

    def loop() -> None:
        for _ in run.steps(3):
            step()

    assert 'run.state["f"]: a builtin_function_or_method' in refused(capsys, loop)


@pytest.mark.parametrize(
    ("size", "batch_size", "difference"),
    [(20, 2, "has 10 batches, and it had 6"), (18, 3, "has a batch size of 3, and it had one of 2")],
)
def test_a_loader_of_other_batches_is_refused_in_the_midst_of_an_epoch(
    capsys: pytest.CaptureFixture[str], size: int, batch_size: int, difference: str
) -> None:
    run, step = begin(save_every=1)

    def loop() -> None:
        for _ in run.epochs(1):
            for _ in run.batches(DataLoader(range(12), 2)):  # type: ignore[arg-type]
                step()
                if run.step == 3:
                    run._snapshots.writer.wait()
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    other, _ = begin(save_every=1)
    assert next(iter(other.epochs(1))) == 0
    said = refused(capsys, lambda: next(other.batches(DataLoader(range(size), batch_size))))  # type: ignore[arg-type]
    assert difference in said
    assert "after batch 2 of epoch 0" in said
    assert said.endswith("or start another run: SLIPWAY_RUN_DIR=PATH.\n")


def test_a_model_of_another_shape_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run, step = begin()
    for _ in run.steps(2):
        step()
    assert "weight: 1 × 1 in the snapshot, 1 × 2 in the model" in refused(capsys, lambda: begin(2))


@pytest.mark.parametrize(
    ("dtype", "optimizer", "difference"),
    [
        (torch.float64, torch.optim.SGD, "weight: 1 × 1 in the snapshot, 1 × 1 of float64 in the model"),
        (torch.float32, torch.optim.Adam, "optimizer is of the class Adam, and was of SGD in the snapshot at step 2"),
    ],
)
def test_other_types_are_refused(
    capsys: pytest.CaptureFixture[str], dtype: torch.dtype, optimizer: type[torch.optim.Optimizer], difference: str
) -> None:
    run, step = begin()
    for _ in run.steps(2):
        step()
    model = nn.Linear(1, 1).to(dtype)
    again = optimizer(model.parameters())
    assert difference in refused(capsys, lambda: slipway.resume(model=model, optimizer=again))


def test_a_model_that_moves_to_another_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(1, 1)
    run = slipway.resume(model=model)
    model.to("meta")
    assert "was on cpu in slipway.resume, and is on meta now" in refused(capsys, run.boundary)


def test_a_model_that_gets_another_type_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(1, 1)
    run = slipway.resume(model=model)
    model.bfloat16()
    assert "was torch.float32 in slipway.resume, and is torch.bfloat16 now" in refused(capsys, run.boundary)


def test_an_optimizer_that_is_made_anew_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(1, 1)
    run = slipway.resume(model=model, optimizer=torch.optim.SGD(model.parameters()))
    again = torch.optim.AdamW(model.parameters())

    def loop() -> None:
        for _ in run.steps(11):
            again.step()

    assert "AdamW trains, not the SGD that was passed to slipway.resume" in refused(capsys, loop)


def test_the_optimizer_within_another_one_is_named_where_it_alone_steps(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(1, 1)
    outer = torch.optim.SGD(model.parameters())
    outer.base_optimizer = torch.optim.Adam(model.parameters())  # type: ignore[attr-defined]
    run = slipway.resume(model=model, optimizer=outer)

    def loop() -> None:
        for _ in run.steps(11):
            outer.base_optimizer.step()  # type: ignore[attr-defined]

    said = refused(capsys, loop)
    assert "only the Adam in it steps" in said
    assert "Pass that one: optimizer=outer.base_optimizer." in said


@pytest.mark.parametrize(
    "act",
    [
        lambda: begin(save_every="auto"),
        lambda: begin(save_every=-1),
        lambda: begin(memory_every=2.5),
        lambda: begin(keep=0),
        lambda: begin()[0].epochs("3"),  # type: ignore[arg-type]
        lambda: begin()[0].steps(range(3)),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_whole_number_is_refused(capsys: pytest.CaptureFixture[str], act: Callable[[], object]) -> None:
    assert "a whole number is needed" in refused(capsys, act)


@pytest.mark.parametrize("wrap", [enumerate, iter])
def test_what_began_before_run_batches_is_refused(
    capsys: pytest.CaptureFixture[str], wrap: Callable[[Any], Any]
) -> None:
    run, _ = begin()
    loader = wrap(DataLoader(range(4), 2))  # type: ignore[arg-type]
    assert "Pass the loader itself" in refused(capsys, lambda: next(run.batches(loader)))


def test_no_batches_and_no_step_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = begin()
    assert [list(run.batches([])) for _ in run.epochs(3)] == [[], [], []]
    assert "0 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("places", "said"),
    [((12, 14), "one had begun 6 epochs, iterations and batches, and another 7"), ((12, 13), "had ended its loop")],
)
@pytest.mark.parametrize("how", ["boundary", "finish"])
def test_ranks_that_are_at_different_places_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, places: tuple[int, int], said: str, how: str
) -> None:
    run, step = begin()
    step()
    monkeypatch.setattr(StopFlag, "places", places)
    assert said in refused(capsys, getattr(run, how))


def test_breaking_out_of_the_batches_ends_their_epoch() -> None:
    run, step = begin(save_every=1)
    seen = []
    for epoch in run.epochs(3):
        for batch in run.batches([0, 1, 2, 3]):
            step()
            seen.append((epoch, batch))
            if batch == 1:
                break
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def leave(run: ResumableRun, step: Step, how: str) -> None:
    for _ in run.epochs(9):
        step()
        if how == "break":
            break
        if how == "return":
            return
        raise ZeroDivisionError


@pytest.mark.parametrize("how", ["break", "return", "exception"])
def test_leaving_the_loop_finishes_the_run_and_an_exception_does_not(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, step = begin(save_every=0)
    if how == "exception":
        with pytest.raises(ZeroDivisionError):
            leave(run, step, how)
    else:
        leave(run, step, how)
    finished = how != "exception"
    assert ("slipway: 1 step" in capsys.readouterr().out) is finished
    assert not list(Path(os.environ["SLIPWAY_RUN_DIR"], "snapshots").glob(".*")), "nothing is left behind"
    assert (Path(os.environ["SLIPWAY_RUN_DIR"]) / "snapshots" / "step-00000001").exists() is finished
    leave_process(run)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, (
        "the signal that follows another rank's failure ends it at once"
    )


def test_a_script_that_ends_within_its_loop_ends_after_its_snapshot_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited, save_now, wait_now = threading.Event(), writer.save_snapshot, writer.Writer.wait

    def save_late(*given: Any) -> None:
        assert waited.wait(PATIENCE)
        save_now(*given)

    def wait(self: writer.Writer, seconds: float | None = None) -> bool:
        waited.set()
        return wait_now(self, seconds)

    monkeypatch.setattr(writer, "save_snapshot", save_late)
    run, step = begin(save_every=1)
    step()
    run.boundary()
    monkeypatch.setattr(writer.Writer, "wait", wait)
    leave_process(run)
    assert (Path(os.environ["SLIPWAY_RUN_DIR"]) / "snapshots" / "step-00000001").exists()
    assert "the process of rank 0 ends before its loop, at step 1" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")  # Python's own, from 3.12 on
def test_a_child_that_the_script_forks_takes_no_snapshots() -> None:
    run, step = begin(save_every=1)
    for _ in run.steps(2):
        step()
        run._snapshots.writer.wait()
        if not (child := os.fork()):
            try:
                run.boundary()
                run.finish()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert run.step == 2


UNDER_WAY: list[Iterator[Any]] = []  # an iterator that is gone has left its loop


def position(world_size: int, said: list[str]) -> Position:
    place = SimpleNamespace(world_size=world_size)
    return Position(SimpleNamespace(device=torch.device("cpu"), place=place, say=said.append))  # type: ignore[arg-type]


def loader_of(size: int, world_size: int, rank: int, batch_size: int) -> DataLoader[Any]:
    data = list(range(size))
    sampler = DistributedSampler(data, world_size, rank, seed=4)  # type: ignore[arg-type]
    return DataLoader(data, batch_size, sampler=sampler)  # type: ignore[arg-type]


def take(position: Position, loader: DataLoader[Any], batches: int) -> list[int]:
    """The samples of so many batches; the loop is not left."""
    found: list[int] = []
    position.begin_epoch()
    iterator = position.batches(loader, None, lambda: None)
    UNDER_WAY.append(iterator)
    for _ in range(batches):
        batch = next(iterator, None)
        found += [] if batch is None else batch.tolist()
    return found


@pytest.mark.parametrize(
    ("before", "after", "twice"),
    [((2, 6), (4, 3), 0), ((4, 3), (2, 6), 0), ((2, 6), (3, 4), 0), ((4, 3), (3, 3), 0), ((4, 3), (1, 5), 0), ((4, 2), (3, 8), 1)],
)  # fmt: skip
def test_another_number_of_processes_repeats_and_loses_no_sample(
    before: tuple[int, int], after: tuple[int, int], twice: int, dice: random.Random
) -> None:
    size, said = 144, list[str]()
    batches = 5 if twice else dice.randrange(1, 144 // (before[0] * before[1]))
    trained: list[int] = []
    for rank in range(before[0]):
        here = position(before[0], said)
        here.epoch = 3
        trained += take(here, loader_of(size, before[0], rank, before[1]), batches)
    for rank in range(after[0]):
        there = position(after[0], said)
        there.load(here.describe(), here.of_rank(), before[0])
        trained += take(there, loader_of(size, after[0], rank, after[1]), 999)
    assert set(trained) == set(range(size))
    assert len(trained) == size + twice
    assert any("used twice in this epoch, since" in text for text in said) is bool(twice)


def test_a_batch_sampler_of_the_users_own_resumes_by_its_batches() -> None:
    def make() -> DataLoader[Any]:
        class Own(BatchSampler):
            pass

        data = list(range(20))
        return DataLoader(data, batch_sampler=Own(SequentialSampler(data), 3, drop_last=False))  # type: ignore[arg-type]

    here, there = position(1, []), position(1, [])
    assert take(here, make(), 2) == [0, 1, 2, 3, 4, 5]
    there.load(here.describe(), here.of_rank(), 1)
    assert take(there, make(), 9) == list(range(6, 20))


class Ordered:
    """Anything that receives the number of the epoch; `inside`: attributes."""

    def __init__(self, size: int = 4, **inside: Any) -> None:
        self.size, self.epochs = size, list[int]()
        self.__dict__.update(inside)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))

    def __getitem__(self, index: int) -> int:
        return index


def nested(part: Ordered) -> dict[str, DataLoader[Any]]:
    """Loaders with that somewhere inside, by where."""
    data = list(range(4))
    return {
        "sampler": DataLoader(data, 2, sampler=part),  # type: ignore[arg-type]
        "batch sampler": DataLoader(data, batch_sampler=BatchSampler(part, 2, False)),  # type: ignore[arg-type]
        "deeper": DataLoader(data, 2, sampler=Plain(sampler=Plain(batch_sampler=part))),  # type: ignore[arg-type]
        "data set": DataLoader(part, 2),  # type: ignore[arg-type]
        "subset": DataLoader(Subset(part, [0, 1]), 2),  # type: ignore[arg-type]
        "several": DataLoader(ConcatDataset([Subset(part, [0]), part]), 2),  # type: ignore[arg-type]
    }


class Plain(Ordered):
    set_epoch = None  # type: ignore[assignment]


@pytest.mark.parametrize("place", nested(Ordered()))
def test_whatever_orders_itself_by_the_epoch_is_told_it_once(place: str) -> None:
    part, here = Ordered(), position(1, [])
    loader = nested(part)[place]
    for epoch in range(3):
        here.begin_epoch()
        assert list(here.batches(loader, None, lambda: None))
        here.end_epoch()
        assert part.epochs == list(range(epoch + 1))


@pytest.mark.parametrize("shared", [False, True])
def test_persistent_workers_begin_again_unless_they_see_the_epoch(shared: bool) -> None:
    data = Ordered(epoch=torch.zeros(1).share_memory_()) if shared else Ordered()
    loader = DataLoader(data, 2, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    loader._iterator = Ordered()  # type: ignore[assignment]
    set_epoch(loader, 1)
    assert (loader._iterator is None) is not shared


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, AttributeError])
def test_a_loader_that_does_not_know_its_length_has_none(error: type[Exception]) -> None:
    class Unknown(Ordered):
        def __len__(self) -> int:
            raise error

    here = position(1, [])
    here.begin_epoch()
    assert list(here.batches(Unknown(), None, lambda: None)) == [0, 1, 2, 3]


def drawing_loader(lazy: bool) -> DataLoader[Any]:
    """A shuffled loader whose samples are drawn at random; `lazy`: its `__iter__` is a generator, as in many frameworks."""

    class Lazy(DataLoader[Any]):
        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            yield from super().__iter__()

    class Noisy:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.tensor(index) + torch.rand(())

    kind: type[DataLoader[Any]] = Lazy if lazy else DataLoader
    return kind(Noisy(), 3, shuffle=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_loader_resumes_wherever_it_begins_to_draw(lazy: bool) -> None:
    torch.manual_seed(3)
    whole = take(position(1, []), drawing_loader(lazy), 9)
    torch.manual_seed(3)
    here, there = position(1, []), position(1, [])
    before = take(here, drawing_loader(lazy), 2)
    described, own, now = here.describe(), here.of_rank(), torch.get_rng_state()
    torch.manual_seed(8)
    torch.set_rng_state(now)  # as the snapshot is restored
    there.load(described, own, 1)
    assert before + take(there, drawing_loader(lazy), 9) == whole


def test_without_snapshots_a_stop_waits_until_the_caller_has_saved(tmp_path: Path) -> None:
    run = slipway.resume(snapshots=False)
    assert not run.boundary(step=7, saved=False)
    signal.raise_signal(signal.SIGTERM)
    assert [run.boundary(step=step, saved=False) for step in (8, 9, 10)][-2:] == [True, True]
    with pytest.raises(SystemExit) as end:
        run.boundary(step=10)
    assert end.value.code == 75
    assert json.loads((tmp_path / "run/node-0/outcome/rank-0.json").read_text())["step"] == 10
    assert not (tmp_path / "run/snapshots").exists()


def test_without_snapshots_nothing_may_rely_on_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "saves nothing, and was called with model" in refused(capsys, lambda: begin(snapshots=False))
    run = slipway.resume(snapshots=False)
    run.state["best"] = 1
    assert "run.state is saved by snapshots" in refused(capsys, run.boundary)


def test_a_second_run_in_one_process_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_run, "RUNS", [])
    monkeypatch.setattr(own_run, "require_first", require_first)
    begin()
    assert "slipway.resume was called a second time" in refused(capsys, begin)


def test_a_framework_may_train_again_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_run, "RUNS", [])
    monkeypatch.setattr(own_run, "require_first", require_first)
    slipway.resume(snapshots=False).finish()
    slipway.resume(snapshots=False).finish()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(3), "a tensor of 3 values"),
        ("high", "a str"),
        (None, "a NoneType"),
        ([1.0], "a list"),
        (1j, "a complex"),
    ],
)
def test_what_is_no_number_cannot_be_logged(capsys: pytest.CaptureFixture[str], value: Any, said: str) -> None:
    run, _ = begin()
    assert f"run.log(loss=…): {said}. A number is needed" in refused(capsys, lambda: run.log(loss=value))


@pytest.mark.parametrize("value", [1, 0.5, True, torch.tensor(2.0), torch.ones(1), float("nan"), float("inf")])
def test_what_is_a_number_is_logged(value: Any) -> None:
    run, _ = begin()
    run.log(loss=value)
