"""Steps of a running training are traced on all ranks, and change nothing about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from chrome_traces import Event, check_format, read_merged
from training_jobs import Job, Run, raise_stop_flag

import slipway
from slipway.inspect.trace import merge
from slipway.train.observe.traces import clock_offsets
from slipway.train.worker.launcher import StopFlag

Start = Callable[..., Run]
OPTIONS = ("--dataset-size", 200, "--batch-size", 12, "--steps", 20, "--save-every", 0, "--memory-every", 0)


def ask(folder: Path, steps: object = 3, attempt: int = 0) -> None:
    """What `slipway trace` writes; the job finds it when it begins."""
    (folder / "node-0").mkdir(parents=True, exist_ok=True)
    request = {"id": "me", "steps": steps, "attempt": attempt}
    (folder / "node-0" / "trace-wanted").write_text(json.dumps(request))


def answer(folder: Path) -> dict[str, Any]:
    file = folder / "node-0" / "trace.json"
    return json.loads(file.read_text()) if file.exists() else {}


def gradients(events: list[Event], rank: int) -> list[Event]:
    """The all-reduces of a rank that carry gradients, in their order.

    The last one may be missing: gloo's thread wakes the training before it reports the end of the operation to the profiler, which
    may have stopped by then (torch's ProcessGroupGloo::AsyncWork::finishWorkGloo).
    """
    [pid] = {
        event["pid"]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"].startswith(f"rank {rank} (node 0, ")
    }
    found = [event for event in events if event["name"] == "gloo:all_reduce" and event["pid"] == pid]
    return sorted(
        (one for one in found if "float" in one["args"].get("Input type", ["float"])), key=lambda one: one["ts"]
    )


def same_tensors(one: Run, other: Run) -> bool:
    mine, theirs = (run.tensors("model", "optimizer", "ranks") for run in (one, other))
    return mine.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


@pytest.mark.pull
def test_both_ranks_are_in_one_trace_and_training_ends_bit_for_bit_as_ever(
    job: Start, whole: Start, tmp_path: Path
) -> None:
    ask(tmp_path / "job")
    run = job("linear", *OPTIONS)
    assert run.exit_code == 0, run.output
    assert same_tensors(whole("linear", *OPTIONS), run)
    told = answer(run.folder)
    assert (told["state"], told["id"], told["why"]) == ("done", "me", "")
    assert not list((run.folder / "node-0").glob("trace*ed")), "neither a request nor an offer is left"
    merged = merge(run.folder / "traces" / told["folder"])
    assert merged.missing == []
    assert (merged.steps, merged.wanted, merged.first) == (3, 3, told["step"])
    events = read_merged(merged.path)
    check_format(events)
    assert min(len(gradients(events, rank)) for rank in (0, 1)) >= 2
    steps = sorted({event["name"] for event in events if event["name"].startswith("step ")})
    assert steps == sorted(f"step {merged.first + number}" for number in (1, 2, 3))
    for summary in merged.summaries:
        assert summary.steps == 3
        assert 0 < summary.communication <= summary.span
        assert summary.hidden + summary.exposed == pytest.approx(summary.communication)
        assert "aten::addmm" in summary.operators


@pytest.mark.pull
def test_a_process_alone_is_traced_too(train: Start, tmp_path: Path) -> None:
    ask(tmp_path / "run", steps=2)
    run = train("linear", *OPTIONS)
    assert run.exit_code == 0
    merged = merge(run.folder / "traces" / answer(run.folder)["folder"])
    check_format(read_merged(merged.path))
    assert (merged.steps, [one.communication for one in merged.summaries]) == (2, [0])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--save-every", 2), "a snapshot follows"),
        (("--eval-every", 2), "an evaluation follows"),
        (("--steps", 4), "it was the last step"),
    ],
)
def test_what_is_no_step_ends_a_trace_early(options: tuple[object, ...], why: str, job: Start, tmp_path: Path) -> None:
    ask(tmp_path / "job", steps=30)
    run = job("linear", *OPTIONS, *options)
    assert run.exit_code == 0, run.output
    told = answer(run.folder)
    assert (told["state"], told["why"]) == ("done", why)
    merged = merge(run.folder / "traces" / told["folder"])
    assert 0 < merged.steps <= 4
    assert (merged.why, merged.missing) == (why, [])


def test_a_stop_in_the_middle_saves_trace_and_training(start: Callable[..., Job], tmp_path: Path) -> None:
    ask(tmp_path / "job", steps=100)
    started = start("linear", *OPTIONS, "--steps", 90, "--log-every", 1, hold=["part", 6])
    started.wait_for("train", step=5)
    raise_stop_flag(tmp_path / "job")
    run = started.end()[0]
    assert run.exit_code == 0, run.output
    assert {row["outcome"] for row in run.outcomes} == {"stopped"}
    assert len(run.snapshots) == 1
    assert answer(run.folder)["why"] == "training was stopped"
    assert merge(run.folder / "traces" / answer(run.folder)["folder"]).missing == []


def test_going_back_in_the_middle_ends_it(job: Start, tmp_path: Path) -> None:
    ask(tmp_path / "job", steps=100)
    more = ("--save-every", 100, "--verify-every", 1, "--memory-every", 2)
    run = job("linear", *OPTIONS, *more, flip=[1, 8, 11, 1])
    assert "the ranks differ" in run.output
    assert answer(run.folder)["why"] == "training returned to a snapshot"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_profiler_that_fails_ends_nothing(rank: int, job: Start, whole: Start, tmp_path: Path) -> None:
    ask(tmp_path / "job")
    run = job("linear", *OPTIONS, profiler=rank)
    assert run.exit_code == 0, run.output
    assert same_tensors(whole("linear", *OPTIONS), run)
    assert f"rank {rank}: the profiler failed; training continues: RuntimeError: no profiler today" in run.output
    merged = merge(run.folder / "traces" / answer(run.folder)["folder"])
    assert merged.missing == [f"rank {rank}: RuntimeError: no profiler today"]
    assert [one.rank for one in merged.summaries] == [1 - rank]


def test_a_trace_that_cannot_be_written_ends_nothing(job: Start, tmp_path: Path) -> None:
    ask(tmp_path / "job")
    (tmp_path / "job" / "traces").write_text("in the way")
    run = job("linear", *OPTIONS)
    assert run.exit_code == 0, run.output
    assert "the trace cannot be written; training continues" in run.output
    assert answer(run.folder)["state"] == "failed"
    assert "it cannot be written: " in answer(run.folder)["why"]


@pytest.mark.parametrize("more", [{"attempt": 7}, {"steps": 0}, {"steps": 101}, {"steps": "3"}, {"steps": True}])
def test_a_request_of_another_attempt_or_without_sense_is_taken_away(
    more: dict[str, Any], job: Start, tmp_path: Path
) -> None:
    ask(tmp_path / "job", **more)
    run = job("linear", *OPTIONS)
    assert run.exit_code == 0, run.output
    assert not (run.folder / "traces").exists()
    assert not (run.folder / "node-0" / "trace-wanted").exists()
    assert answer(run.folder) == {}


def test_what_was_killed_in_the_middle_does_not_trace_again(job: Start, tmp_path: Path) -> None:
    ask(tmp_path / "job", steps=100)
    killed = job("linear", *OPTIONS, kill=[1, 10])
    assert killed.exit_code != 0
    run = job("linear", *OPTIONS, resume="auto")
    assert run.exit_code == 0, run.output
    assert not (run.folder / "traces").exists()


def test_what_is_asked_is_agreed_on_once_whether_the_exchange_is_read_or_not() -> None:
    asked = [0, 5, 0, 0, 0]
    flag = StopFlag(None, None)
    flag.wanted = lambda: asked.pop(0)
    flag.begin_stop_exchange()
    flag.begin_stop_exchange()
    flag.begin_stop_exchange()
    assert flag.finish_stop_exchange() == (None, False)
    assert [flag.take_steps_to_trace(), flag.take_steps_to_trace()] == [5, 0]
    assert flag.finish_stop_exchange() == (None, False)
    assert flag.take_steps_to_trace() == 0


def test_a_clock_is_told_by_the_median_of_what_it_differs() -> None:
    first = [1_000_000 * number for number in range(5)]
    ahead = [time + 7_000 + late for time, late in zip(first, [0, 90_000, 10, -10, 5], strict=True)]
    assert clock_offsets([first, ahead]) == [(0, 0), (7_005, 5)]


# What the clocks of two ranks of one machine showed behind sixteen barriers, while eight other processes kept its two cores busy:
# nanoseconds since rank 0's first look. The clock is the same, so the ranks differ by how late each of them was.
RECORDED = [
    [
        0, 98_765_350, 118_831_996, 119_626_127, 119_962_066, 125_671_495, 126_178_349, 151_443_334,
        152_088_714, 152_281_871, 152_493_245, 152_676_718, 152_922_864, 153_116_542, 153_289_389, 163_599_208,
    ],
    [
        -83_760_029, 93_347_344, 119_336_266, 119_791_502, 120_105_269, 125_945_523, 126_339_108, 126_529_170,
        151_889_528, 152_376_842, 152_581_386, 152_804_147, 153_019_127, 153_198_614, 163_199_494, 164_174_043,
    ],
]  # fmt: skip


@pytest.mark.parametrize("ahead", [0, 5_000_000_000, -3_000])
def test_ranks_that_wait_for_a_processor_hardly_move_what_their_clocks_differ_by(ahead: int) -> None:
    _, (offset, spread) = clock_offsets([RECORDED[0], [moment + ahead for moment in RECORDED[1]]])
    assert (offset - ahead, spread) == (96263, 69112), "though some looks were 84 ms late"


def test_in_a_loop_of_ones_own_a_block_is_traced(programs: Callable[..., str], tmp_path: Path) -> None:
    printed = programs("traces_worker", tmp_path / "mine")
    assert f"slipway trace {tmp_path / 'mine'} makes one file" in printed
    assert printed.count("left by its error") == 2
    merged = merge(tmp_path / "mine")
    events = read_merged(merged.path)
    check_format(events)
    assert (merged.steps, merged.wanted, merged.missing) == (3, 3, [])
    assert {len(gradients(events, rank)) for rank in (0, 1)} <= {2, 3}
    assert not (tmp_path / "mine-failed").exists()


def test_a_single_process_of_ones_own_needs_no_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not dist.is_initialized()
    with slipway.train.trace(tmp_path / "mine") as traced:
        for _ in range(2):
            torch.ones(3, 3) @ torch.ones(3, 3)
            traced.step()
    merged = merge(tmp_path / "mine")
    assert merged.steps == 2
    assert "aten::mm" in merged.summaries[0].operators
    events = [event for event in read_merged(merged.path) if event["name"].startswith("step ")]
    assert [event["name"] for event in events] == ["step 1", "step 2"]
    assert all(one["ts"] + one["dur"] <= other["ts"] + 1 for one, other in pairwise(events))
    assert "slipway trace" in capsys.readouterr().out
