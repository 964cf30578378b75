"""What others may have put into a folder of runs: pipes, devices, links, and JSON that nobody can count with."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Slipway

from slipway.launch.run_directory.directory import RunDirectory, odd_records
from slipway.launch.run_directory.run import refuse_links
from slipway.launch.verdict.block import outcome_record
from slipway.launch.verdict.cause import said
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.process.folder_lock import is_alive
from slipway.protocol import files
from slipway.protocol.durable import remove_tree
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.protocol.printable import printable

pytestmark = pytest.mark.timeout(30)  # a pipe must not hold whoever reads it


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_another(path: Path) -> None:
    path.with_name("other.json").write_text("{}")
    path.symlink_to("other.json")


@pytest.mark.parametrize("make", [make_pipe, link_to_zeros, link_to_another, Path.mkdir])
def test_only_a_regular_file_is_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "run.json")
    with pytest.raises(OSError, match=r"run\.json"):
        files.open_run_file(tmp_path / "run.json")
    assert files.read_json(tmp_path / "run.json") == {}
    assert re.search("is not a regular file|is a link", files.why_unreadable(tmp_path / "run.json"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[" * 100_000, {}),
        ("[1]", {}),
        ('{"a": NaN, "b": -Infinity, "c": 1e999, "d": 1.5}', {"a": None, "b": None, "c": None, "d": 1.5}),
        (f'{{"a": 1{"0" * 5000}, "b": 9007199254740993}}', {"a": None, "b": 9007199254740993}),
        (f'{{"a": "{"x" * files.LARGEST}"}}', {}),
        ("\x00\xff", {}),
    ],
)
def test_json_that_makes_no_sense_is_passed_over(tmp_path: Path, text: str, value: dict[str, Any]) -> None:
    (tmp_path / "run.json").write_text(text)
    assert files.read_json(tmp_path / "run.json") == value
    assert bool(files.why_unreadable(tmp_path / "run.json")) == (not value)


@pytest.mark.parametrize(
    ("name", "number"),
    [("step-00000012", 12), ("step-²", None), ("step-٣", None), (f"step-{'9' * 5000}", None), ("step-", None)],
)
def test_numbers_in_names_are_of_ten_digits_alone(name: str, number: int | None) -> None:
    assert files.number_in(name, "step-") == number


def test_control_characters_do_nothing_to_a_terminal() -> None:
    assert printable("plain\ttext\n") == "plain\ttext\n"
    assert (
        printable("\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eevil \x9b2J")
        == "red \ufffd]0;title\ufffd \ufffdevil \ufffd2J"
    )
    assert printable(Path("caf\udce9.txt")) == r"caf\xe9.txt"
    assert printable("half a character \ud800") == "half a character \ufffd"


def test_a_pipe_in_place_of_a_launchers_file_is_nobody(tmp_path: Path) -> None:
    make_pipe(tmp_path / "launcher.json")
    assert not is_alive(tmp_path / "launcher.json", lambda _: False, patience=1.0)


def test_commands_name_and_pass_over_odd_files_and_print_nothing_that_a_terminal_obeys(
    slipway: Slipway, tmp_path: Path
) -> None:
    run, odd = tmp_path / "runs/gpt-1", tmp_path / "runs/gpt-2"
    for folder in (run / "node-0/logs", run / "node-²/logs", run / "snapshots/step-²", odd):
        folder.mkdir(parents=True)
    first = Outcome(0, "n\x1b[2J", "failed", 1000.0, cause=said("\x1b]0;gone\x07 ValueError"))
    verdict = judge((first,))
    record = {"workload": "gpt", "started": 1.0, "attempt": 1, "nodes": 2_000_000_000}
    (run / "run.json").write_text(json.dumps(record))
    ended = {
        "code": 1,
        "word": "failed",
        "first": outcome_record(verdict.first, lambda outcome: "\x1b[31mlook"),
        "attempt": 1,
    }
    (run / "outcome.json").write_text(json.dumps(ended))
    (run / "node-0/logs/rank-0.log").write_text("2026-01-01T00:00:00.000Z hello\n")
    os.mkfifo(run / "node-0/logs/rank-1.log")
    os.mkfifo(odd / "run.json")
    (run / "node-0/ranks.json").write_text("[" * 100_000)
    told = slipway("status", "--runs", str(tmp_path / "runs"))
    assert told.code == 0, told.err
    for passed in (
        f"{odd}/run.json is skipped: it is not a regular file",
        f"{run}/node-0/logs/rank-1.log is skipped: it is not a regular file",
        f"{run}/node-0/ranks.json is skipped: it is not a JSON object",
    ):
        assert f"slipway: {passed}" in told.err
    assert "\x1b" not in told.out + told.err
    assert "\ufffd]0;gone\ufffd ValueError" in told.out
    shown = slipway("logs", "--runs", str(tmp_path / "runs"), "gpt-1")
    assert shown.code == 0, shown.err
    assert "hello" in shown.out
    assert "rank-1.log is skipped" in shown.err
    assert f"{odd}" not in shown.err  # the run was named


def test_only_so_many_odd_files_are_named(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"gpt-{number}").mkdir()
        (tmp_path / f"gpt-{number}/run.json").write_text("" if number else "{}")
    assert [line.split()[0] for line in odd_records(tmp_path)] == [
        *(f"{tmp_path}/gpt-{number}/run.json" for number in range(1, 6)),
        "and",
    ]
    assert odd_records(tmp_path)[-1] == "and 2 more are skipped"
    assert RunDirectory(tmp_path / "gpt-0").odd_files() == []


@pytest.mark.parametrize("make", [make_pipe, link_to_zeros, link_to_another])
def test_nothing_is_added_to_what_is_no_regular_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "rank-0.log")
    with pytest.raises(OSError, match=r"rank-0\.log"):
        files.append_to_run_file(tmp_path / "rank-0.log")


@pytest.mark.parametrize(
    "name", ["snapshots", "tensorboard", "node-1", "node-1/logs", "node-1/outcome", "node-1/heartbeat"]
)
def test_a_folder_of_a_run_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    theirs, run = tmp_path / "theirs", tmp_path / "scratch/run"
    theirs.mkdir()
    run.mkdir(parents=True)
    (tmp_path / "runs").symlink_to("scratch")
    refuse_links(tmp_path / "runs/run", 1)  # links on the way there are followed
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(theirs)
    with pytest.raises(LaunchError, match=f"{name} is a link") as refused:
        refuse_links(tmp_path / "runs/run", 1)
    assert refused.value.code == CONFIGURATION


@pytest.mark.parametrize("link", ["node-0", "node-0/logs"])
def test_a_folder_that_became_a_link_while_the_job_runs_is_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "theirs/logs").mkdir(parents=True)
    (tmp_path / "theirs/a.json").write_text('{"a": 1}')
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "theirs")
    for act in (
        files.append_to_run_file,
        files.touch_run_file,
        files.open_run_file,
        lambda path: files.write_json(path, {"b": 2}),
    ):
        with pytest.raises(OSError, match=f"is a link.*{link}"):
            act(tmp_path / link / "a.json")
    assert files.read_json(tmp_path / link / "a.json") == {}
    assert (tmp_path / "theirs/a.json").read_text() == '{"a": 1}'


def test_errors_in_a_held_folder_tell_its_name(tmp_path: Path) -> None:
    (tmp_path / "node-0").mkdir()
    with pytest.raises(FileNotFoundError) as missing:
        files.open_run_file(tmp_path / "node-0/plan.json")
    assert missing.value.filename == str(tmp_path / "node-0/plan.json")


@pytest.mark.parametrize(
    ("folder", "run", "names"),
    [
        ("/r/a", "/r/a", ()),
        ("/r/a/node-3/logs", "/r/a", ("node-3", "logs")),
        ("/r/a/snapshots/step-00000003", "/r/a", ("snapshots", "step-00000003")),
        ("/r/a/traces/step-00000003", "/r/a", ("traces", "step-00000003")),
        ("/r/node-1/snapshots", "/r/node-1", ("snapshots",)),
        ("node-1", ".", ("node-1",)),
        ("/scratch/node-12/me/runs/gpt-1", "/scratch/node-12/me/runs/gpt-1", ()),
        ("/mnt/snapshots/me/runs/x/node-0/outcome", "/mnt/snapshots/me/runs/x", ("node-0", "outcome")),
    ],
)
def test_the_levels_of_a_run(folder: str, run: str, names: tuple[str, ...]) -> None:
    assert files.levels_below_run(Path(folder)) == (Path(run), names)


def test_a_folder_whose_name_only_begins_like_a_nodes_is_skipped(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for name in ("node-0", "node-notes"):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs/rank-0.log").touch()
        (tmp_path / name / "launcher.json").touch()
        (tmp_path / name / "plan.json").write_text('{"topology": {"nodes": 3}}')
    assert [node.path.name for node in run.nodes("logs")] == ["node-0"]
    assert [node.path.name for node in run.launchers()] == ["node-0"]
    assert [log.path.parent.parent.name for log in run.logs()] == ["node-0"]
    assert run.node_counts() == [0, 3]


def test_a_link_with_the_name_of_a_file_that_is_being_written_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / f".run.json.{os.getpid()}.new").symlink_to("theirs")
    (tmp_path / "run.json").symlink_to("theirs")
    files.write_json(tmp_path / "run.json", {"a": 1})
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert files.read_json(tmp_path / "run.json") == {"a": 1}


def test_of_a_link_only_the_link_is_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").touch()
    (tmp_path / "link").symlink_to("theirs")
    remove_tree(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    remove_tree(tmp_path / "theirs")
    assert list(tmp_path.iterdir()) == []
