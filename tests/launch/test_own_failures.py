"""What is told of a user's own program that fails: the place in its own code, the whole message, and who did not fail."""

from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rules

Run = Callable[..., Launcher]

# Rank 0 waits for rank 1, which the argument says what it does. Only the last collective has a short time.
WAITS = """
import datetime, os, sys, time
import torch, torch.distributed as dist

def has_ended(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

dist.init_process_group("gloo")
dist.barrier()
group = dist.new_group(timeout=datetime.timedelta(seconds=3))
print("epoch 3", flush=True)
rank, then = dist.get_rank(), sys.argv[1]
pid = torch.tensor(rank * os.getpid())
dist.all_reduce(pid)  # that of rank 1
if rank == 1:
    if then == "leave":
        dist.destroy_process_group()
        sys.exit()
    time.sleep(100_000)
while then == "leave" and not has_ended(pid.item()):
    time.sleep(0.1)
dist.all_reduce(torch.ones(1), group=group)
"""

# As Hydra ends a job: a traceback of the user's frames alone, and a hint behind it.
HYDRA = """
import sys, traceback

class ConfigAttributeError(AttributeError):
    pass
ConfigAttributeError.__module__ = "omegaconf.errors"

def train():
    raise ConfigAttributeError("Key 'lr' is not in struct\\n    full_key: model.lr\\n    object_type=dict")

try:
    train()
except ConfigAttributeError as error:
    print("Error executing job with overrides: ['model=big']", file=sys.stderr)
    traceback.print_exception(None, value=error, tb=error.__traceback__)
    print("\\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.", file=sys.stderr)
    sys.exit(1)
"""

RECORD = """
import sys
from torch.distributed.elastic.multiprocessing.errors import record

class Boom(Exception):
    pass

@record
def main():
    import json
    try:
        json.loads("{")
    except ValueError as error:
        raise Boom("shard 7\\nis cut off") from error

try:
    main()
finally:
    sys.stderr.close()
"""


def line(job: Launcher, label: str) -> str:
    """A line of the closing block."""
    return next((words.split(maxsplit=1)[1] for words in job.closing if words.startswith(f"  {label} ")), "")


def cause(job: Launcher) -> str:
    """The first line of the closing block."""
    return next(words for words in job.closing if ": node 0 (" in words)


@pytest.mark.any_torch
@pytest.mark.core
def test_where_a_rank_lost_another_that_left_with_0_this_is_said(slipway: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WAITS)
    job = slipway("own.py", "leave", NPROC_PER_NODE="2")
    assert job.process.returncode == 1, job.text
    assert "rank 0: exit code 1: " in cause(job)
    assert line(job, "where").startswith("own.py:25 in <module>; raised in torch/distributed/")
    assert line(job, "meanwhile").startswith("rank 1 had ended with exit code 0, ")
    assert line(job, "meanwhile").endswith(" s earlier")


@pytest.mark.any_torch
@pytest.mark.core
def test_a_collective_whose_time_is_over_ends_with_76_and_names_who_was_waited_for(
    slipway: Run, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(WAITS)
    job = slipway("own.py", "sleep", NPROC_PER_NODE="2")
    assert job.process.returncode == 76, job.text
    assert "Timed out waiting 3000ms" in cause(job)
    assert line(job, "meanwhile") == "rank 1 had not ended, its last line was: epoch 3"


@pytest.mark.any_torch
def test_so_it_does_where_that_is_on_another_node(node: Callable[..., Launcher], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WAITS)
    jobs = [node(rank, 2, "own.py", "sleep") for rank in (0, 1)]
    assert [job.end() for job in jobs] == [76, 76], jobs[0].text
    for job in jobs:
        assert "rank 0: exit code 1: " in cause(job)
        assert line(job, "meanwhile").startswith("node 1 (")
        assert line(job, "meanwhile").endswith("rank 1 had not ended, its last line was: epoch 3")


@pytest.mark.parametrize(
    ("program", "said", "where"),
    [
        (HYDRA, "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct full_key: model.lr object_type=dict", "own.py:9 in train"),
        (RECORD, "Boom: shard 7 is cut off; first came json.decoder.JSONDecodeError: Expecting", "own.py:14 in main"),
    ],
    ids=["hydra", "record"],
)  # fmt: skip
def test_the_exception_is_told_whole_with_its_place_in_the_script(
    slipway: Run, rules: Rules, tmp_path: Path, program: str, said: str, where: str
) -> None:
    (tmp_path / "own.py").write_text(program)
    job = slipway("own.py", NPROC_PER_NODE="1", **rules.variables())
    assert job.process.returncode == 1, job.text
    assert f"rank 0: exit code 1: {said}" in cause(job)
    assert line(job, "where") == where


@pytest.mark.pull
def test_a_script_that_python_cannot_read_is_told_once_and_not_started(slipway: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import os\nx = = 1\n")
    job = slipway("own.py", NPROC_PER_NODE="2")
    assert job.process.returncode == 78, job.text
    assert job.text.count("SyntaxError") == 1
    assert "own.py line 2: SyntaxError: invalid syntax: `x = = 1`. Correct that line" in job.text
    assert not (tmp_path / "runs").exists()


@pytest.mark.pull
def test_one_that_it_imports_is_nothing_to_try_again(slipway: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("import os\nx = = 1\n")
    job = slipway("own.py", NPROC_PER_NODE="1", SLIPWAY_MAX_RESTARTS="3", **rules.variables())
    assert job.process.returncode == 78, job.text
    assert "rank 0: exit code 1: SyntaxError: invalid syntax" in cause(job)
    assert line(job, "where") == "model.py:2"
    assert "correct that line" in line(job, "what to do")
