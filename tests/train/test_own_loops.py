"""Loops of users' own: broken off anywhere and started again, they end as if nothing had been."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faulty_worker
import numpy as np
import own_loops
import pytest
import torch
from own_runs import assert_equal, metrics, results
from torch.utils.data import DataLoader
from training_jobs import Job
from training_jobs import Run as Ended

import slipway
from slipway.train.user.run import ResumableRun


class BrokenOffError(Exception):
    """What stands for a SIGKILL."""


@pytest.fixture(autouse=True)
def _begun(own_run: None) -> None:
    begin_with_seed()


def begin_with_seed() -> None:
    """As a script does in its first lines."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)


def states(found: dict[str, Any]) -> dict[str, Any]:
    return {name: part if name == "state" else part.state_dict() for name, part in found.items()}


@contextmanager
def break_at(boundary: int) -> Iterator[None]:
    """Within the block: let a loop end after that boundary, with its snapshot on the disk."""
    real, done = ResumableRun.boundary, [0]

    def counted(run: ResumableRun) -> None:
        real(run)
        done[0] += 1
        if done[0] == boundary:
            run._snapshots.writer.wait()
            raise BrokenOffError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResumableRun, "boundary", counted)
        with pytest.raises(BrokenOffError):
            yield


@pytest.mark.parametrize("loop", [*own_loops.ALONE, *own_loops.PATTERNS, own_loops.with_workers])
def test_a_loop_that_was_broken_off_ends_like_one_that_was_not(
    loop: own_loops.Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dice: random.Random
) -> None:
    whole_seen = own_loops.Seen()
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / "whole"))
    whole = states(loop(whole_seen, save_every=1))
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / "run"))
    begin_with_seed()
    pieces: list[list[int]] = []
    for _ in range(3):
        pieces.append(own_loops.Seen())
        with break_at(dice.randrange(2, 9)):  # the shortest loops have 28 boundaries
            loop(pieces[-1], save_every=1)
    pieces.append(own_loops.Seen())
    found = states(loop(pieces[-1], save_every=1))
    assert_equal(found, whole)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    if loop not in (
        own_loops.accumulating,
        own_loops.tails,
        own_loops.half_precision,
        own_loops.skipping,
    ):  # which take batches again that led to no step
        done = 0
        for piece in pieces:  # the last batch of an epoch may be taken again
            done = next(begin for begin in range(done, -1, -1) if whole_seen[begin:][: len(piece)] == piece) + len(
                piece
            )
        assert done == len(whole_seen)


@pytest.mark.pull
@pytest.mark.parametrize("kind", ["shared", "own", "made in each epoch"])
def test_generators_of_two_loaders_draw_on_after_a_resume(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(folder: str) -> None:
        monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / folder))
        model, made = torch.nn.Linear(1, 1), torch.Generator()
        generators = [made.manual_seed(3), made if kind == "shared" else torch.Generator().manual_seed(4)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = slipway.resume(model=model, optimizer=optimizer, save_every=1)
        for epoch in run.epochs(3):
            for part, size in enumerate((4, 3)):
                generator = torch.Generator().manual_seed(9 * epoch + part) if "made" in kind else generators[part]
                loader = DataLoader([*range(size)], shuffle=True, generator=generator)  # type: ignore[arg-type]
                for number in run.batches(loader):
                    model(torch.ones(1, 1)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    seen[folder][run.step] = number.item()

    seen: dict[str, dict[int, float]] = {"whole": {}, "run": {}}
    start("whole")
    for boundary in (3, 3, 4, 2, 5):  # within the first loader's data and within the second's
        with break_at(boundary):
            start("run")
    start("run")
    assert seen["run"] == seen["whole"]


@pytest.mark.pull
def test_a_learning_rate_that_is_set_between_resume_and_the_loop_stays_after_a_resume_within_an_epoch() -> None:
    def start(rate: float) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = slipway.resume(model=model, optimizer=optimizer, save_every=1)
        optimizer.param_groups[0]["lr"] = rate
        for epoch in run.epochs(2):
            optimizer.param_groups[0]["lr"] *= 0.5
            for _ in run.batches(range(4)):
                seen.append((epoch, optimizer.param_groups[0]["lr"]))
                model(torch.ones(1, 1)).backward()
                optimizer.step()
                optimizer.zero_grad()

    seen: list[tuple[int, float]] = []
    with break_at(2):
        start(8.0)
    assert seen == [(0, 4.0)] * 2
    start(3.0)
    assert seen[2:] == [(0, 3.0)] * 2 + [(1, 1.5)] * 4


def draw() -> tuple[float, float, float]:
    """A number from each random generator of the process."""
    return torch.rand(1).item(), random.random(), np.random.rand()


def iterate(run: ResumableRun, kind: str, epochs: list[Any]) -> Iterator[object]:
    """Eight iterations of a loop; `epochs` gets what is drawn as each epoch begins."""
    if kind == "epochs":
        for _ in run.epochs(2):
            epochs.append(draw())
            yield from run.batches(range(4))
    elif kind == "steps":
        yield from run.steps(8)
    elif kind == "batches":
        while run.step < 8:
            yield from run.batches(range(4))
    while kind == "boundary" and run.step < 8:
        yield None
        run.boundary()
    run.finish()


@pytest.mark.pull
class Found(list[Any]):
    """No list of the script's, which would come back as it was: it stands for what is outside of the process."""


@pytest.mark.parametrize("kind", ["epochs", "steps", "batches", "boundary"])
def test_what_is_drawn_before_a_loop_and_in_it_is_drawn_again(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(folder: str) -> None:
        monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / folder))
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = slipway.resume(model=model, optimizer=optimizer, save_every=1)
        epochs, within = Found(), Found()
        found.append((draw(), epochs, within))
        for _ in iterate(run, kind, epochs):
            within.append(draw())
            optimizer.zero_grad()
            model(torch.ones(1, 1)).backward()
            optimizer.step()

    found = Found()
    start("whole")
    begin_with_seed()
    with break_at(3):
        start("run")
    for begin in (torch.manual_seed, random.seed, np.random.seed):  # as in a process without a seed
        begin(7)
    start("run")
    (before, epochs, within), (drawn, *_), (again, epochs_again, rest) = found
    assert drawn == before
    assert epochs_again == epochs
    if kind == "boundary":  # nothing says where the loop begins, so its draws go on at `resume`
        assert [again, *rest][:5] == within[3:]
    else:
        assert (again, rest) == (before, within[3:])


@pytest.mark.pull
def test_a_finished_run_has_nothing_left_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    own_loops.by_steps(own_loops.Seen())
    seen = own_loops.Seen()
    own_loops.by_steps(seen)
    assert seen == []
    assert "was already finished at step 30" in capsys.readouterr().out


@pytest.fixture
def memory() -> Iterator[tuple[str, ...]]:
    """The files that a launcher holds for a node: two for each of four processes."""
    held = [os.memfd_create(f"test-{number}") for number in range(8)]
    yield (" ".join(f"/proc/{os.getpid()}/fd/{file}" for file in held),)
    for file in held:
        os.close(file)


def run_job(
    folder: Path, *args: object, resume: str = "none", processes: int = 2, memory: tuple[str, ...] = ()
) -> Ended:
    """A loop on several processes, to its end."""
    job = Job([folder], memory)
    job.start("own_loops", args, processes, resume, work=faulty_worker.run_program)
    return job.end()[0]


@pytest.mark.pull
@pytest.mark.parametrize("loop", ["classifier", "by_steps"])
def test_two_processes_killed_three_times_reach_the_same_bits(
    server: None, tmp_path: Path, memory: tuple[str, ...], dice: random.Random, loop: str
) -> None:
    whole = run_job(tmp_path / "whole", loop, tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    for attempt in range(3):
        kill = dice.randrange(2), dice.randrange(2, 7)
        broken = run_job(
            tmp_path / "run", loop, tmp_path / "run", *kill, resume="auto" if attempt else "none", memory=memory
        )
        assert broken.exit_code != 0, broken.output
        resumed = re.search(r"resuming from \S*step-0*(\d+)(, in memory)?", broken.output)
        assert bool(resumed) == bool(attempt), broken.output
        assert not resumed or resumed[2] or int(resumed[1]) % own_loops.SAVE_EVERY == 0, broken.output
    ended = run_job(tmp_path / "run", loop, tmp_path / "run", resume="auto", memory=memory)
    assert ended.exit_code == 0, ended.output
    assert [outcome["outcome"] for outcome in ended.outcomes] == ["finished", "finished"]
    for rank in range(2):
        one, other = results(tmp_path / "run", rank), results(tmp_path / "whole", rank)
        seen, of_whole = one.pop("seen"), other.pop("seen")
        assert seen == of_whole[-len(seen) :], "the rest, and nothing twice"
        assert_equal(one, other)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_two_nodes_of_which_one_is_killed_reach_the_same_bits(
    server: None, tmp_path: Path, dice: random.Random
) -> None:
    whole = run_job(tmp_path / "whole", "classifier", tmp_path / "whole", processes=4)
    assert whole.exit_code == 0, whole.output
    folders, held = [tmp_path / "one", tmp_path / "other"], [os.memfd_create(f"test-{number}") for number in range(4)]
    paths = [f"/proc/{os.getpid()}/fd/{file}" for file in held]
    memory = (" ".join(paths[:2]), " ".join(paths[2:]))
    kills: list[tuple[int, ...]] = [(dice.randrange(4), dice.randrange(1, 3)) for _ in range(3)]
    for attempt, kill in enumerate([*kills, ()]):
        job = Job(folders, memory)
        words = ("classifier", tmp_path / "run", *kill)
        job.start("own_loops", words, 4, "auto" if attempt else "none", work=faulty_worker.run_program)
        ended = job.end()[0]
        assert (ended.exit_code == 0) is (not kill), ended.output
    for file in held:
        os.close(file)
    for rank in range(4):
        one, other = results(tmp_path / "run", rank), results(tmp_path / "whole", rank)
        one.pop("seen"), other.pop("seen")
        assert_equal(one, other)
