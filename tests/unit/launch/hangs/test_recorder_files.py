"""Files of torch's flight recorders: read as data, whatever is in them; and `slipway stacks --recorders`."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipway.cli.cli import slipway as commands
from slipway.launch.hangs.recorder_files import read_recorder_files
from slipway.launch.hangs.stack_dump import NO_DUMP
from slipway.protocol.errors import LaunchError


def record(*numbers: int, done: bool = False, ranks: str = "[0, 1, 2]") -> dict[str, Any]:
    entries = [
        {"process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "retired": done,
         "profiling_name": "nccl:all_reduce", "time_created_ns": 10**9 * number, "input_sizes": [[4]],
         "input_dtypes": ["Float"], "time_discovered_started_ns": None}
        for number in numbers
    ]  # fmt: skip
    return {"version": "2.10", "entries": entries, "pg_config": {"0": {"name": "0", "desc": "", "ranks": ranks}}}


def leave(folder: Path, **records: object) -> None:
    for name, content in records.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))


def show(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(commands, ["stacks", "--recorders", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_the_rank_that_is_waited_for_is_named(tmp_path: Path) -> None:
    leave(tmp_path, _dump_0=record(4, 5), _dump_1=record(3, done=True), _dump_2=record(4, 5))
    code, out, err = show(tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == (
        "hang: rank 1 has not reached all_reduce #4; 2 ranks have been waiting since 00:00:04 UTC; rank 1 last began all_reduce #3"
    )
    assert show(tmp_path, "--rank", 0)[1].splitlines()[1:] == [
        "    waits: all_reduce #4 Float [4]",
        "    waits: all_reduce #5 Float [4]",
    ]


def test_a_job_that_does_not_hang_is_said_to(tmp_path: Path) -> None:
    leave(tmp_path, _dump_0=record(4, done=True, ranks="[0]"))
    assert show(tmp_path)[1] == "no hang: all that the ranks began is done\n"


def test_a_rank_without_a_file_is_said_and_blamed_where_nobody_else_is(tmp_path: Path) -> None:
    leave(tmp_path, _dump_0=record(4), _dump_2=record(4))
    code, out, err = show(tmp_path)
    assert code == 0
    assert out.startswith("hang: rank 1 has not reached all_reduce #4")
    assert out.splitlines()[1] == f"  rank 1 {NO_DUMP}"
    assert err == "slipway: no file of rank 1\n"
    leave(tmp_path, _dump_2=record(3, done=True))
    assert show(tmp_path)[1].startswith("hang: rank 2 has not reached")


class Runs:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.folder),)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    leave(tmp_path, _dump_0=record(4, ranks="[0, 1]"), _dump_1={"entries": [Runs(tmp_path / "ran")]})
    notes = read_recorder_files(tmp_path).notes
    assert notes[0].startswith("_dump_1 is not a recorder's file: UnpicklingError: it names posix.mkdir")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80", b"nonsense", b"{", b"[]", b"{}", b'{"entries": 3}', pickle.dumps([1]), b"\x80\x04\x95\xff"],
)
def test_what_is_no_recorders_file_is_left_out(tmp_path: Path, content: bytes) -> None:
    leave(tmp_path, _dump_0=content)
    with pytest.raises(
        LaunchError, match=r"has no files of torch's flight recorders, whose names end with a rank.*_dump_0 is not"
    ):
        read_recorder_files(tmp_path)
    leave(tmp_path, _dump_1=record(4))
    assert read_recorder_files(tmp_path).notes[0].startswith("_dump_0 is not a recorder's file: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [("ranks", "[0, -1]"), ("ranks", "{"), ("ranks", "[1e9]"), ("ranks", 3), ("ranks", "[100000000]")],
)
def test_a_file_that_makes_no_sense_is_said_and_left_out(tmp_path: Path, field: str, value: object) -> None:
    odd = record(4)
    odd["pg_config"]["0"][field] = value
    leave(tmp_path, _dump_0=record(4, ranks="[0, 1]"), _dump_1=odd)
    assert read_recorder_files(tmp_path).notes[0].startswith("the file of rank 1 makes no sense")


@pytest.mark.parametrize("name", ["is_p2p", "collective_seq_id", "profiling_name"])
def test_another_torchs_format_is_said(tmp_path: Path, name: str) -> None:
    odd = record(4, ranks="[0]")
    del odd["entries"][0][name]
    leave(tmp_path, _dump_0=odd)
    assert read_recorder_files(tmp_path).notes == (
        "the file of rank 0 has another format, as of another torch: it is not used",
    )


def test_of_several_sets_the_newest_is_read(tmp_path: Path) -> None:
    for attempt, number in ((1, 4), (2, 7)):
        leave(tmp_path, **{f"nccl-attempt-{attempt}-rank-0": record(number, ranks="[0]")})
    os.utime(tmp_path / "nccl-attempt-2-rank-0", (2, 2))
    os.utime(tmp_path / "nccl-attempt-1-rank-0", (1, 1))
    read = read_recorder_files(tmp_path)
    assert [str(call) for call in read.dumps[0].calls] == ["all_reduce #7"]
    assert read.notes == (f"{tmp_path} has several sets of files; the newest is read: nccl-attempt-2-rank-*",)


@pytest.mark.parametrize("words", [("a-run",), ("--runs", "folder")])
def test_a_run_and_recorders_exclude_each_other(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, _, err = show(tmp_path, *words)
    assert code == 2
    assert "--recorders reads files of a folder, and no run" in err
