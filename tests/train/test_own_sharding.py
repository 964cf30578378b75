"""Own loops whose parameters are spread over ranks by `fully_shard`: each rank saves its part, and all parts belong together."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import faulty_worker
import pytest
import torch
import torch.distributed as dist
from own_runs import assert_equal, metrics, results
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from training_jobs import Job
from training_jobs import Run as Ended

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.parts import divide
from slipway.train.snapshots.resume import agree_on_bound, newest_of_parts, require_no_earlier
from slipway.train.snapshots.snapshot import Snapshot, SnapshotError
from slipway.train.user.objects import Objects
from slipway.train.user.values import pack_plain

SHARDED = {"sharded": 2, "hybrid": 4}  # processes


@pytest.fixture
def memory() -> Iterator[list[str]]:
    """What two launchers hold for nodes of up to four processes: the paths of two files for each."""
    held = [[os.memfd_create("test") for _ in range(8)] for _ in range(2)]
    yield [" ".join(f"/proc/{os.getpid()}/fd/{file}" for file in node) for node in held]
    for node in held:
        for file in node:
            os.close(file)


def run_job(
    folders: Sequence[Path], loop: str, *kill: int, resume: str = "auto", memory: Sequence[str] = (), processes: int = 0
) -> Ended:
    """A loop on the processes that it needs, to its end. What it trained is beside the first folder, under its name."""
    job = Job([*folders], tuple(memory))
    words = (loop, folders[0].with_suffix(".found"), *kill)
    job.start("own_loops", words, processes or SHARDED[loop], resume, work=faulty_worker.run_program)
    return job.end()[0]


def assert_same(one: Path, other: Path, processes: int) -> None:
    """Two runs ended with the same bits on each rank."""
    for rank in range(processes):
        found, expected = results(one.with_suffix(".found"), rank), results(other.with_suffix(".found"), rank)
        seen, whole = found.pop("seen"), expected.pop("seen")
        assert seen == whole[-len(seen) :], "the rest, and nothing twice"
        if processes == 4 and rank:  # there are replicas, and running statistics are rank 0's after a resume
            for model in (found["model"], expected["model"]):
                for name in ("1.running_mean", "1.running_var"):
                    del model[name]
        assert_equal(found, expected)
    assert metrics(one) == metrics(other)


@pytest.mark.parametrize("loop", SHARDED)
def test_processes_killed_three_times_reach_the_same_bits_by_their_parts_in_memory(
    server: None, tmp_path: Path, memory: list[str], dice: random.Random, loop: str
) -> None:
    whole, run, processes = tmp_path / "whole", tmp_path / "run", SHARDED[loop]
    assert (ended := run_job([whole], loop, resume="none")).exit_code == 0, ended.output
    output = ""
    for attempt in range(3):
        kill = dice.randrange(processes), dice.randrange(8, 11)
        broken = run_job([run], loop, *kill, resume="auto" if attempt else "none", memory=memory[:1])
        assert broken.exit_code != 0, broken.output
        assert attempt == 0 or "resuming from" in broken.output, broken.output
        output += broken.output
    assert ", in memory\n" in output, output
    assert (ended := run_job([run], loop, memory=memory[:1])).exit_code == 0, ended.output
    assert_same(run, whole, processes)


def test_without_the_memory_of_one_rank_all_resume_from_the_disk(
    server: None, tmp_path: Path, memory: list[str]
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert (ended := run_job([whole], "sharded", resume="none")).exit_code == 0, ended.output
    assert run_job([run], "sharded", 1, 35, resume="none", memory=memory[:1]).exit_code != 0
    mixed = " ".join([*memory[0].split()[:2], *memory[1].split()[:2]])
    ended = run_job([run], "sharded", memory=[mixed])
    assert ended.exit_code == 0, ended.output
    assert "resuming from" in ended.output
    assert "in memory\n" not in ended.output
    assert_same(run, whole, 2)


def test_of_a_lost_node_the_other_replica_has_the_parts(server: None, tmp_path: Path, memory: list[str]) -> None:
    whole, one, other = tmp_path / "whole", tmp_path / "one", tmp_path / "other"
    assert (ended := run_job([whole], "hybrid", resume="none")).exit_code == 0, ended.output
    broken = run_job([one, other], "hybrid", 3, 9, resume="none", memory=memory)
    assert broken.exit_code != 0, broken.output
    assert "If a node is lost" not in broken.output
    shutil.rmtree(other)
    emptied = [memory[0], " ".join(memory[1].split()[4:])]
    ended = run_job([one, other], "hybrid", memory=emptied)
    assert ended.exit_code == 0, ended.output
    assert "in memory\n" in ended.output, ended.output
    assert_same(one, whole, 4)


def test_what_a_lost_node_costs_without_a_shared_disk_is_said_at_the_start_and_nothing_is_begun_anew(
    server: None, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    broken = run_job([one, other], "sharded", 0, 35, resume="none")
    assert "If a node is lost, its part of all snapshots is lost with it" in broken.output
    shutil.rmtree(other)
    ended = run_job([one, other], "sharded")
    assert ended.exit_code == 1
    assert "no node has a part of rank 1 that belongs to those of the others" in ended.output
    assert ended.outcomes[0]["outcome"] == "no-progress", ended.outcomes


@pytest.mark.parametrize(
    ("loop", "processes", "said"),
    [
        ("sharded", 4, "is of 2 processes with parameters that are spread over 2 of them, and this job has 4 with parameters that"),
        ("hybrid", 2, "is of 2 processes with parameters that are spread over 2 of them, and this job has 2 with parameters that each"),
        ("classifier", 2, "this job has 2 with parameters that each of them holds whole"),
    ],
)  # fmt: skip
def test_another_division_of_the_parameters_is_refused(
    server: None, tmp_path: Path, loop: str, processes: int, said: str
) -> None:
    run = tmp_path / "run"
    assert run_job([run], "sharded", 1, 35, resume="none").exit_code != 0
    ended = run_job([run], loop, processes=processes)
    assert said in ended.output, ended.output
    assert [outcome["outcome"] for outcome in ended.outcomes][:1] == ["configuration"]


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make_sharded(width: int = 4) -> nn.Module:
    return fully_shard(nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2)))


def snapshot_of(objects: Objects) -> Snapshot:
    tensors, packed, sharded = objects.collect()
    return Snapshot(5, json.loads(json.dumps({"objects": packed, "sharded": sharded})), tensors)


@pytest.mark.pull
def test_a_sharded_model_of_another_shape_is_refused_and_three_tensors_are_named(group: None) -> None:
    stored = snapshot_of(Objects({"model": make_sharded()}))
    own = Objects({"model": make_sharded(5)})
    own.collect()
    with pytest.raises(ConfigurationError) as error:
        own.load(stored)
    text = str(error.value)
    assert "0.weight: 4 × 3 in the snapshot, 5 × 3 in the model" in text
    assert text.count("in the snapshot,") == 3


@pytest.mark.pull
def test_a_model_that_is_not_sharded_any_more_is_refused(group: None) -> None:
    stored = snapshot_of(Objects({"model": make_sharded()}))
    own = Objects({"model": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))})
    with pytest.raises(ConfigurationError, match=r"spread over ranks as \(0=1\) S\(0\), .* know: none"):
        own.load(stored)


@pytest.mark.pull
def test_a_model_that_is_sharded_too_late_is_refused(group: None) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    objects = Objects({"model": model})
    objects.collect()
    place = SimpleNamespace(rank=0, world_size=1, node_rank=0, shared=True)
    objects.layouts.divide(SimpleNamespace(place=place, gather=lambda own: [own]))  # type: ignore[arg-type]
    fully_shard(model)
    with pytest.raises(ConfigurationError, match=r"Call fully_shard before it"):
        objects.collect()


@pytest.mark.pull
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated", "ignore:FSDP is switching")  # torch's own
def test_what_is_sharded_in_another_way_is_refused(group: None) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match=r"optimizer: .* ZeroRedundancyOptimizer. Use fully_shard"):
        Objects({"optimizer": ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)})
    with pytest.raises(ConfigurationError, match=r"model: .* FullyShardedDataParallel. Use fully_shard"):
        Objects({"model": nn.Sequential(FullyShardedDataParallel(model, device_id=torch.device("cpu")))})
    with pytest.raises(ConfigurationError, match=r"run.state, t: a tensor that is spread over ranks"):
        pack_plain({"t": next(make_sharded().parameters())}, "run.state", {})


@pytest.mark.pull
@pytest.mark.parametrize(
    ("of_ranks", "nodes", "shared", "on_disk", "in_memory", "sharing", "scattered"),
    [
        ((0, 0), (0, 0), True, (0,), (0,), 1, False),
        ((0, 0, 0, 0), (0, 0, 1, 1), False, (0, 2), (0, 2), 1, False),
        ((0, 1), (0, 0), True, (0, 1), (0, 1), 2, False),
        ((0, 1, 2, 3), (0, 0, 1, 1), True, (0, 1, 2, 3), (0, 1, 2, 3), 2, False),
        ((0, 1, 2, 3), (0, 0, 1, 1), False, (0, 1, 2, 3), (0, 1, 2, 3), 2, True),
        ((0, 1, 0, 1), (0, 0, 1, 1), True, (0, 1), (0, 1, 2, 3), 2, False),
        ((0, 1, 0, 1), (0, 0, 1, 1), False, (0, 1, 2, 3), (0, 1, 2, 3), 2, False),
        ((0, 1, 0, 1), (0, 0, 0, 0), True, (0, 1), (0, 1), 2, False),
        ((0, 0, 2, 2), (0, 0, 1, 1), False, (0, 2), (0, 2), 1, True),
    ],
)  # fmt: skip
def test_each_part_is_kept_by_the_first_of_its_ranks(
    of_ranks: tuple[int, ...],
    nodes: tuple[int, ...],
    shared: bool,
    on_disk: tuple[int, ...],
    in_memory: tuple[int, ...],
    sharing: int,
    scattered: bool,
) -> None:
    places = [SimpleNamespace(rank=rank, shared=shared) for rank in range(len(of_ranks))]
    found = [divide(place, of_ranks, nodes) for place in places]  # type: ignore[arg-type]
    assert tuple(each.rank for each in found if each.on_disk) == on_disk
    assert tuple(each.rank for each in found if each.in_memory) == in_memory
    assert {each.sharing for each in found} == {sharing}
    assert {each.scattered for each in found} == {scattered}


@pytest.mark.pull
@pytest.mark.parametrize(
    ("newest", "until"),
    [
        ([(1, 5, 7), (1, 5, 7)], None),
        ([(1, 5, 7), (1, 4, 6)], (1, 4)),
        ([(2, 3, 7), (1, 4, 6)], (1, 4)),
        ([(1, 5, 7), (1, 5, 8)], (1, 4)),
        ([(1, 5, 7), (1, 5, 8), (1, 4, 3)], (1, 4)),
    ],
)
def test_parts_that_do_not_belong_together_are_searched_for_again_among_older_ones(
    newest: list[tuple[int, int, int]], until: tuple[int, int] | None
) -> None:
    assert agree_on_bound(newest) == until


@pytest.mark.pull
def test_a_first_snapshot_that_was_never_complete_is_no_reason_not_to_start() -> None:
    said: list[str] = []
    context = SimpleNamespace(say=said.append)
    found, nothing = (1, 1, 5, 7, 1, 5, 0), (0, -1, -1, 0, 1, -1, 0)
    assert newest_of_parts([found, nothing], (0, 1)) == {0: (1, 5, 7), 1: None}
    require_no_earlier([1], [found, nothing], (0, 1), context)  # type: ignore[arg-type]
    assert "starting from the beginning" in said[0]
    with pytest.raises(SnapshotError, match="no node has a part of rank 1"):
        require_no_earlier([1], [(*found[:-1], 1), nothing], (0, 1), context)  # type: ignore[arg-type]
