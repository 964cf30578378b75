"""Who holds a run directory: one launcher at a time, a dead one's place is taken, a living one's never."""

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from slipway.launch.attempt.stops import Stops, ask_to_stop
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.launch.run_directory.run_lock import RunLock, refuse_held
from slipway.process.folder_lock import POLL, TOUCH, Holder, is_alive, read_holder, sleep, this_process
from slipway.protocol.errors import CANCELLED, CONFIGURATION, LaunchError

PATIENCE = 1.5  # s; a living holder gives a sign of life every second


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "node-0" / "launcher.json"


@pytest.fixture
def stops() -> Iterator[Stops]:
    with Stops() as stops:
        yield stops


def write(file: Path, holder: Holder | None, **change: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(holder._replace(**change)._asdict()) if holder else "")


def hold(file: Path, stops: Stops, said: list[str] | None = None) -> RunLock:
    return RunLock(file, (said if said is not None else []).append, stops, PATIENCE)


def test_a_holder_is_named_while_it_holds_and_gone_afterwards(file: Path, stops: Stops) -> None:
    with hold(file, stops):
        holder = read_holder(file)
        assert holder is not None
        assert (holder.pid, holder.host) == (os.getpid(), os.uname().nodename)
        assert RunDirectory(file.parent.parent).launchers() == [NodeDirectory(file.parent)]
        before = file.stat().st_mtime_ns
        wait_until(lambda: file.stat().st_mtime_ns > before, "a sign of life")
    assert list(file.parent.iterdir()) == []


def test_a_living_holder_is_refused_with_its_name(file: Path, stops: Stops) -> None:
    with hold(file, stops), pytest.raises(LaunchError) as caught, hold(file, stops):
        pass
    assert caught.value.code == CONFIGURATION
    for words in (f"process id {os.getpid()}", os.uname().nodename, "UTC", "slipway stop"):
        assert words in str(caught.value)


def test_a_process_that_ended_without_a_word_is_replaced_at_once(file: Path, stops: Stops) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        write(file, this_process(1.0), pid=process.pid)
    said = list[str]()
    # An hour is more than any test waits: such a one is not watched for signs of life.
    with RunLock(file, said.append, stops, patience=3600):
        assert read_holder(file) == this_process(0)._replace(**vars_of(file))
    assert "ended without a report" in said[0]


def vars_of(file: Path) -> dict[str, object]:
    found = read_holder(file)
    assert found is not None
    assert found.pid == os.getpid()
    return {"since": found.since, "token": found.token}


def test_a_process_id_that_was_given_again_is_not_its_old_owner(file: Path, stops: Stops) -> None:
    """A restarted container gives the same numbers to its processes."""
    write(file, this_process(1.0), started=1)
    assert not is_alive(file, sleep, 0.0)


@pytest.mark.parametrize("holder", [this_process(1.0)._replace(space="another boot"), None])
def test_one_that_cannot_be_seen_is_watched_for_signs_of_life(file: Path, holder: Holder | None) -> None:
    write(file, holder)
    assert not is_alive(file, lambda seconds: False, PATIENCE)
    polls = itertools.count(1)

    def live(seconds: float) -> bool:
        if next(polls) == TOUCH / POLL:
            os.utime(file, (1.0, 1.0))  # another host's clock, far away from ours
        return False

    assert is_alive(file, live, PATIENCE)


def test_whom_the_job_has_replaced_is_not_waited_for_though_it_may_live(file: Path, stops: Stops) -> None:
    write(file, this_process(1.0, "0123"), space="another boot")
    said = list[str]()
    with RunLock(file, said.append, stops, 3600, job="0123"):
        assert "was lost; this launcher takes its place" in said[0]
        found = read_holder(file)
        assert found is not None
        assert found.job == "0123"
    write(file, this_process(1.0, "0123"))
    for job in ("", "4567"):
        with pytest.raises(LaunchError), RunLock(file, said.append, stops, PATIENCE, job=job):
            pass


def test_a_stop_while_watching_ends_it(file: Path, stops: Stops) -> None:
    write(file, this_process(1.0), space="another boot")
    stops.watch(file.parent)
    ask_to_stop(file.parent)
    with pytest.raises(LaunchError, match="before anything was started") as caught:
        refuse_held(file, stops, 60)
    assert caught.value.code == CANCELLED


def test_one_that_was_taken_for_dead_learns_that_it_was_replaced(file: Path, stops: Stops) -> None:
    with hold(file, stops) as first:
        file.unlink()
        assert first._mine(), "a folder that somebody cleared away is nobody else's"
        write(file, this_process(2.0), host="elsewhere", space="another boot")
        wait_until(lambda: first.lost, "its next look")
        assert "elsewhere" in first.lost
    assert file.exists(), "and leaves its successor's file alone"


@pytest.mark.parametrize(
    ("parent", "says"), [("file/run", "--run-dir or --runs"), ("/proc/run", "--run-dir or --runs")]
)
def test_a_folder_that_cannot_be_made_says_what_to_choose(
    tmp_path: Path, stops: Stops, parent: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(LaunchError, match=says), hold(Path(parent, "node-0", "launcher.json"), stops):
        pass
