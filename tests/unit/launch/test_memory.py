"""What a launcher holds for its workers, and reads of it: headers, and when there is any at all."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import PER_PROCESS
from made_jobs import make_job, tried

from slipway.launch.attempt.snapshot_memory import SnapshotMemory
from slipway.launch.next_attempt import announce
from slipway.launch.node import Node
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import judge
from slipway.protocol.memory import LOADS, PAGE, VARIABLE, Header, newest_in, read_header, write_header


@pytest.fixture
def memory() -> Iterator[SnapshotMemory]:
    held = SnapshotMemory(make_job())
    yield held
    held.close()


def fill(memory: SnapshotMemory, number: int, header: Header) -> str:
    """Write a header as a worker does; the path of the buffer."""
    path = memory.variables[VARIABLE].split()[number]
    file = os.open(path, os.O_RDWR)
    os.ftruncate(file, PAGE + header.data + header.described)
    write_header(file, header)
    os.close(file)
    return path


def test_the_newest_of_both_is_known_by_attempt_and_then_step(memory: SnapshotMemory) -> None:
    assert memory.version == (-1, -1)
    fill(memory, 0, Header(20, 1, 0, 64, 2, 2**64 - 1, 2**32 - 1))
    assert memory.version == (1, 20)
    path = fill(memory, 1, Header(13, 2, 0, 64, 2, 5, 6))
    assert memory.version == (2, 13)
    fill(memory, 1, Header(13, 2, LOADS, 64, 2, 5, 6))
    assert memory.version == (1, 20), "workers pass over one from which two attempts had resumed and failed"
    fill(memory, 1, Header(13, 2, 0, 64, 2, 5, 6))
    os.truncate(path, PAGE)
    assert memory.version == (1, 20), "one that is cut short does not count"


@pytest.mark.parametrize("at", [0, 9, 17, 40, 63])
def test_no_byte_of_a_header_changes_unnoticed(memory: SnapshotMemory, at: int) -> None:
    file = os.open(fill(memory, 0, Header(20, 1, 0, 64, 2, 5, 6)), os.O_RDWR)
    os.pwrite(file, b"\xff", at)
    with pytest.raises(ValueError, match="its header is damaged"):
        read_header(file)
    assert newest_in([file]) is None
    write_header(file, None)
    assert read_header(file) is None
    os.close(file)


@pytest.mark.parametrize(
    ("words", "environ", "there"),
    [
        (["linear"], {}, True),
        (["linear"], {"SLIPWAY_MAX_RESTARTS": "0"}, False),
        (["linear"], PER_PROCESS, False),
        (["allreduce"], {}, False),
        (["train.py"], {}, False),
        (["train.py"], {"SLIPWAY_MAX_RESTARTS": "3"}, True),  # it may use slipway.resume
    ],
)
def test_there_is_some_for_whatever_may_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], environ: dict[str, str], there: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    held = SnapshotMemory(make_job(*words, environ=environ))
    assert bool(held.variables) is there
    held.close()
    assert held.variables == {}


def test_a_sandbox_without_it_has_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert SnapshotMemory(make_job()).variables == {}


@pytest.mark.parametrize(
    ("in_memory", "says"),
    [
        ((-1, -1), "from the snapshot of step 9:"),
        ((3, 9), "from the snapshot of step 9:"),
        ((3, 12), "in memory of step 12:"),
        ((2, 12), "from the snapshot of step 9:"),  # of an earlier attempt than the one on the disk
        ((4, 7), "in memory of step 7:"),  # after a restart from before step 9
    ],
)
def test_the_next_attempt_is_announced_with_the_later_of_memory_and_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], in_memory: tuple[int, int], says: str
) -> None:
    (tmp_path / "snapshots" / "step-00000009").mkdir(parents=True)
    (tmp_path / "snapshots" / "step-00000009" / "manifest.json").write_text('{"attempt": 3}')
    announce(
        make_job(), Node(Run(tmp_path, "auto", 4), (tried(),)), Ending(judge([tried().outcome])), 4.0, 0.0, in_memory
    )
    assert says in capfd.readouterr().err
