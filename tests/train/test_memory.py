"""Snapshots in memory: whole or not there, and a job that goes on from one ends as if it had not been killed."""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from dying_keeper import DIED, keep, keep_and_die, make_snapshot, unexpected
from test_exact_resume import COMMON, GPT, LINEAR, checksum, lines
from training_jobs import SERVER, Job, Run

from slipway.protocol.cgroups import Memory
from slipway.protocol.memory import LOADS, PAGE, newest_in, read_header
from slipway.train.loop.arithmetic import are_finite
from slipway.train.snapshots import job, memory_buffers
from slipway.train.snapshots.memory_buffers import MemoryBuffers
from slipway.train.snapshots.parts import RankParts
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.worker.rhythm import MemoryRhythm

ANY = (-1, -1)
Start = Callable[..., Job]


@pytest.fixture
def files() -> Iterator[Callable[[], list[int]]]:
    """Makes the two files that a launcher holds for its node."""
    held: list[int] = []

    def make() -> list[int]:
        held.extend(os.memfd_create(f"test-{number}") for number in (1, 2))
        return held[-2:]

    yield make
    for file in held:
        os.close(file)


def paths(files: list[int]) -> list[str]:
    return [f"/proc/{os.getpid()}/fd/{file}" for file in files]


@pytest.mark.core
def test_what_comes_out_in_another_process_is_what_was_there_when_it_went_in(files: Callable[[], list[int]]) -> None:
    held = files()
    memory, snapshot = MemoryBuffers(paths(held), unexpected), make_snapshot(3)
    assert memory.load(ANY) is None
    keep(memory, make_snapshot(1), make_snapshot(2), make_snapshot(3))
    memory.start(snapshot, are_finite)
    snapshot.tensors["model"]["a"].zero_()  # training goes on
    memory.wait()
    loaded = MemoryBuffers(paths(held), unexpected).load(ANY)
    assert loaded is not None
    wanted = make_snapshot(3)
    assert (loaded.step, loaded.attempt, loaded.state) == (3, 1, wanted.state)
    for stem, tensors in wanted.tensors.items():
        assert list(loaded.tensors[stem]) == list(tensors)
        for name, tensor in tensors.items():
            assert loaded.tensors[stem][name].dtype == tensor.dtype
            assert torch.equal(loaded.tensors[stem][name], tensor)
    newest = newest_in(held)
    assert newest is not None
    assert (newest.step, newest.attempt) == (3, 1)
    loaded.tensors["model"]["a"].zero_()  # it belongs to training, and the buffer does not
    again = MemoryBuffers(paths(held), unexpected).load(ANY)
    assert again is not None
    assert again.tensors["model"]["a"].eq(3).all()


def test_what_lay_between_the_tensors_before_is_no_part_of_the_sum(files: Callable[[], list[int]]) -> None:
    held = files()
    for file in held:
        os.pwrite(file, b"\xff" * (PAGE + 1000), 0)
    odd = {"a": torch.arange(3, dtype=torch.uint8), "b": torch.ones(5), "c": torch.empty(0), "d": torch.ones(8)}
    snapshot = Snapshot(1, {}, {"model": odd, "optimizer": {}}, 1)
    keep(MemoryBuffers(paths(held), lambda _: None), snapshot)
    loaded = MemoryBuffers(paths(held), lambda _: None).load(ANY)
    assert loaded is not None
    assert loaded.tensors.keys() == {"model", "optimizer"}
    for name, tensor in odd.items():
        assert torch.equal(loaded.tensors["model"][name], tensor)


def test_the_newest_goes_by_the_attempt_and_must_be_newer_than_the_disks(files: Callable[[], list[int]]) -> None:
    held = files()
    keep(MemoryBuffers(paths(held), unexpected), make_snapshot(20, attempt=1))
    keep(MemoryBuffers(paths(held), unexpected), make_snapshot(13, attempt=2))
    memory = MemoryBuffers(paths(held), unexpected)
    found = memory.load((1, 30))
    assert found is not None
    assert found.step == 13
    assert memory.load((2, 13)) is None  # the disk's is as good, and lasts


@pytest.mark.pull
@pytest.mark.parametrize("operation", ["copy_all", "checksum", "write_header"])
def test_a_process_that_dies_while_one_is_taken_leaves_the_one_before(
    files: Callable[[], list[int]], server: None, operation: str
) -> None:
    held = files()
    keep(MemoryBuffers(paths(held), unexpected), make_snapshot(1), make_snapshot(2))
    keeper = SERVER.Process(target=keep_and_die, args=(paths(held), operation))
    keeper.start()
    keeper.join()
    assert keeper.exitcode == DIED
    found = MemoryBuffers(paths(held), unexpected).load(ANY)
    assert found is not None
    assert found.step == 2
    assert found.tensors["model"]["a"].eq(2).all()


def flip(file: int, at: int) -> None:
    [byte] = os.pread(file, 1, at)
    os.pwrite(file, bytes([byte ^ 1]), at)


DAMAGES: dict[str, tuple[Callable[[int], object], str]] = {
    "a bit of a tensor": (lambda file: flip(file, PAGE + 5), "of step 3: its checksum"),
    "a page of zeros": (lambda file: os.pwrite(file, bytes(64), PAGE), "of step 3: its checksum"),
    "a bit of the JSON": (lambda file: flip(file, os.fstat(file).st_size - 9), "of step 3: its checksum"),
    "a bit of the header": (lambda file: flip(file, 9), "its header is damaged"),
    "no header of ours": (lambda file: os.pwrite(file, b"x" * PAGE, 0), "its header is damaged"),
    "cut short": (lambda file: os.ftruncate(file, PAGE + 64), "it is truncated"),
    "a stump": (lambda file: os.ftruncate(file, 20), "its header is truncated"),
}


@pytest.mark.core
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_taken(files: Callable[[], list[int]], damage: str) -> None:
    held, warnings = files(), list[str]()
    keep(MemoryBuffers(paths(held), unexpected), make_snapshot(2), make_snapshot(3))
    newest = max(held, key=lambda file: getattr(read_header(file), "step", -1))
    harm, text = DAMAGES[damage]
    harm(newest)
    found = MemoryBuffers(paths(held), warnings.append).load(ANY)
    assert found is not None
    assert found.step == 2
    assert len(warnings) == 1
    assert "damaged snapshot in memory" in warnings[0]
    assert text in warnings[0]


def test_what_is_not_finite_is_not_kept_and_does_not_cost_the_one_before(files: Callable[[], list[int]]) -> None:
    held = files()
    memory = MemoryBuffers(paths(held), unexpected)
    keep(memory, make_snapshot(1), make_snapshot(2))
    for step in (3, 4):
        keep(memory, make_snapshot(step, value=math.nan if step == 3 else math.inf))
        found = memory.load(ANY)
        assert found is not None
        assert found.step == 2


def test_after_two_attempts_from_the_same_one_the_disks_is_taken(files: Callable[[], list[int]]) -> None:
    held, warnings = files(), list[str]()
    keep(MemoryBuffers(paths(held), unexpected), make_snapshot(5), make_snapshot(6))
    for _ in range(LOADS):
        memory = MemoryBuffers(paths(held), unexpected)
        found = memory.load((1, 5))
        assert found is not None
        assert found.step == 6
        memory.count_load(found)
    memory = MemoryBuffers(paths(held), warnings.append)
    assert memory.load((1, 5)) is None
    assert warnings == ["skipping the snapshot in memory of step 6: 2 attempts that resumed from it failed"]
    keep(memory, make_snapshot(6, attempt=4))
    found = memory.load((1, 5))
    assert found is not None
    assert found.attempt == 4, "a new one counts anew"


def test_what_went_back_to_the_disk_forgets_what_came_later(files: Callable[[], list[int]]) -> None:
    memory = MemoryBuffers(paths(files()), unexpected)
    keep(memory, make_snapshot(5), make_snapshot(6))
    memory.forget()
    assert memory.load(ANY) is None


def test_other_tensors_get_other_room(files: Callable[[], list[int]]) -> None:
    held = files()
    memory, more = MemoryBuffers(paths(held), unexpected), make_snapshot(3)
    keep(memory, make_snapshot(1), make_snapshot(2))
    grown = {
        **more.tensors,
        "ranks": {f"{rank}.cpu": torch.full((5000,), rank, dtype=torch.uint8) for rank in range(9)},
    }
    keep(memory, Snapshot(3, {}, grown, 2))
    found = MemoryBuffers(paths(held), unexpected).load(ANY)
    assert found is not None
    assert [int(found.tensors["ranks"][f"{rank}.cpu"][-1]) for rank in range(9)] == list(range(9))


def test_where_memory_is_short_it_says_so_once_and_leaves_it_out(
    files: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    memory = MemoryBuffers(paths(files()), warnings.append)
    monkeypatch.setattr(memory_buffers, "read_memory", lambda: Memory(1 << 30, 3 << 20))
    keep(memory, Snapshot(1, {}, {"model": {"a": torch.ones(1 << 18)}}, 1))  # two of 1 MiB do not fit in half of 3
    assert not memory.usable
    [warning] = warnings
    assert (
        "no snapshots in memory, only those on the disk: they need 2 MiB, which is more than half of the 3 MiB"
        in warning
    )
    assert memory.load(ANY) is None


def test_buffers_that_are_gone_are_told_and_left_out(tmp_path: Path) -> None:
    warnings: list[str] = []
    memory = MemoryBuffers([str(tmp_path / "gone"), str(tmp_path / "too")], warnings.append)
    assert not memory.usable
    assert warnings == [
        "no snapshots in memory, only those on the disk: they cannot be opened (No such file or directory)"
    ]


def test_where_none_was_taken_the_one_before_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    def gather(_: object, __: object, *numbers: float) -> tuple[dict[str, object], list[list[float]]]:
        told.append(numbers[0])
        return {}, [[number] for number in numbers]

    monkeypatch.setattr(job.JobSnapshots, "gather_ranks", gather)
    monkeypatch.setattr(job.JobSnapshots, "_describe", lambda *_: None)
    memory = SimpleNamespace(usable=True, seconds=0.25, wait=lambda: None, start=lambda *_: False)  # it makes room
    rhythm, contents = MemoryRhythm(1, 0), SimpleNamespace(number=1, align=lambda: None)
    rhythm.copying = 0.5
    parts = RankParts((0,), 0, on_disk=True, in_memory=True)
    snapshots = job.JobSnapshots(None, None, memory, rhythm, are_finite, parts)  # type: ignore[arg-type]
    for contents.number in (1, 2):
        snapshots.keep_in_memory(contents)  # type: ignore[arg-type]
    assert told == [0.75, 0.0]


def test_what_a_rank_waited_for_a_slower_one_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = {}, [[0.002, 0.003], [0.001, 0.5], [0.02, 0.02], [1.0, 0.0]]
    monkeypatch.setattr(job.JobSnapshots, "gather_ranks", lambda *_: gathered)
    rhythm, clock = MemoryRhythm("auto", 9), iter([100.0, 100.2])  # it begins, and tells the pace of its steps
    monkeypatch.setattr(job.time, "perf_counter", lambda: next(clock, 100.3))
    contents = SimpleNamespace(number=10, align=lambda: None)
    parts = RankParts((0, 0), 0, on_disk=True, in_memory=True)
    snapshots = job.JobSnapshots(None, None, MemoryBuffers([], print), rhythm, are_finite, parts)  # type: ignore[arg-type]
    snapshots.keep_in_memory(contents)  # type: ignore[arg-type]
    assert rhythm.due == 10 + 2, "4 ms, a tenth of two steps of 20 ms"
    assert rhythm.exchanging == pytest.approx(0.3)


def went_on_from(run: Run) -> int:
    """The step of the snapshot in memory that a job went on from."""
    assert ", in memory\n" in run.output, run.output
    return int(run.output.partition("resuming from step-")[2].partition(",")[0])


@pytest.mark.core
@pytest.mark.parametrize(
    ("workload", "options", "processes"), [("linear", LINEAR, 3), ("gpt", GPT, 2)], ids=["three ranks", "gpt"]
)
def test_a_job_killed_at_any_step_loses_hardly_any_and_ends_like_one_that_was_not(
    start: Start,
    whole: Callable[..., Run],
    files: Callable[[], list[int]],
    dice: random.Random,
    workload: str,
    options: tuple[object, ...],
    processes: int,
) -> None:
    options = (*options, *COMMON, "--save-every", 5, *(("--batch-size", 18) if processes == 3 else ()))
    memory = (" ".join(paths(files())),)
    every = ("--memory-every", 1)
    reference = whole(workload, *options, processes=processes)
    step, rank = dice.choice([7, 8, 9, 13, 14, 18]), dice.randrange(processes)
    start(workload, *options, *every, processes=processes, memory=memory, kill=[rank, step], settled=True).end()
    [resumed] = start(workload, *options, *every, processes=processes, memory=memory, resume="auto").end()
    assert resumed.exit_code == 0, resumed.output
    assert went_on_from(resumed) == step
    assert checksum(resumed) == checksum(reference), f"killed at step {step}"
    assert lines(resumed) == lines(reference)
    assert resumed.snapshots == reference.snapshots


@pytest.mark.pull
@pytest.mark.parametrize("step", [9, 10])
def test_one_that_is_due_on_the_disk_and_never_came_there_is_written_as_the_job_goes_on_and_no_other(
    start: Start, files: Callable[[], list[int]], step: int
) -> None:
    options = (*LINEAR, "--steps", 20, "--save-every", 10, "--memory-every", 1)
    memory = (" ".join(paths(files())),)
    killed = start("linear", *options, memory=memory, kill=[0, step], settled=True)
    killed.end()
    shutil.rmtree(killed.folders[0] / "snapshots", ignore_errors=True)
    [resumed] = start("linear", *options, memory=memory, resume="auto").end()
    assert went_on_from(resumed) == step
    assert resumed.snapshots == ["step-00000020", "step-00000010"]


@pytest.mark.core
@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_is_lost_with_its_memory_and_disk_gets_all_from_the_other(
    start: Start, whole: Callable[..., Run], files: Callable[[], list[int]], lost: int
) -> None:
    options = (*GPT, "--steps", 16, "--save-every", 6, "--log-every", 1, "--memory-every", 1)
    reference = whole("gpt", *options, processes=4)
    memory, nodes = [" ".join(paths(files())) for _ in range(2)], ("one", "two")
    kept, kill = tuple(memory), [2 * lost + 1, 10]
    killed = start("gpt", *options, processes=4, folders=nodes, memory=kept, kill=kill, settled=True)
    killed.end()
    shutil.rmtree(killed.folders[lost])
    memory[lost] = " ".join(paths(files()))
    runs = start("gpt", *options, processes=4, folders=nodes, memory=tuple(memory), resume="auto").end()
    assert [run.exit_code for run in runs] == [0, 0], runs[0].output
    assert went_on_from(runs[0]) == 10
    for run in runs:
        assert checksum(run) == checksum(reference)
    assert len(runs[lost].snapshots) == 2


@pytest.mark.pull
def test_with_both_nodes_lost_the_disk_is_what_is_left(start: Start, files: Callable[[], list[int]]) -> None:
    options = (*LINEAR, "--steps", 14, "--save-every", 4, "--memory-every", 1)
    nodes = ("one", "two")
    memory = tuple(" ".join(paths(files())) for _ in nodes)
    start("linear", *options, folders=nodes, memory=memory, kill=[0, 11], settled=True).end()
    memory = tuple(" ".join(paths(files())) for _ in nodes)
    one, _ = start("linear", *options, folders=nodes, memory=memory, resume="auto").end()
    assert one.exit_code == 0, one.output
    assert "snapshots/step-00000008\n" in one.output


@pytest.mark.pull
def test_damage_in_all_buffers_is_named_and_the_disk_taken(start: Start, files: Callable[[], list[int]]) -> None:
    options = (*LINEAR, "--steps", 14, "--save-every", 4, "--memory-every", 1)
    held = files()
    memory = (" ".join(paths(held)),)
    start("linear", *options, memory=memory, kill=[0, 11], settled=True).end()
    for file in held:
        os.pwrite(file, b"damage", PAGE)
    [run] = start("linear", *options, memory=memory, resume="auto").end()
    assert run.exit_code == 0, run.output
    assert run.output.count("skipping the damaged snapshot in memory of step ") == 2
    assert "snapshots/step-00000008\n" in run.output


def test_too_much_that_is_not_finite_goes_back_to_the_disk(start: Start, files: Callable[[], list[int]]) -> None:
    options = (*LINEAR, "--steps", 14, "--save-every", 4, "--memory-every", 1, "--nonfinite-budget", 2)
    memory = (" ".join(paths(files())),)
    [run] = start("linear", *options, memory=memory, infinite=[1, [6, 7, 8], 1]).end()
    assert run.exit_code == 0, run.output
    assert "snapshots/step-00000008\n" in run.output
    assert "in memory" not in run.output


def test_none_is_taken_where_none_is_wanted(start: Start, files: Callable[[], list[int]]) -> None:
    held = files()
    start("linear", *LINEAR, "--steps", 4, "--memory-every", 0, memory=(" ".join(paths(held)),)).end()
    assert newest_in(held) is None
