"""The process for the next attempt, from the launcher's side and from its own; a thread stands in for the other."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

from slipway.launch.attempt import warm_standby as module
from slipway.launch.attempt.warm_standby import WarmStandby, lasting_variables
from slipway.process.standby import receive_request, take_numbers
from slipway.process.tree import FILES, Forked, OwnProcesses
from slipway.process.warm import is_forkable

ENVIRON = {"OMP_NUM_THREADS": "2", "SLIPWAY_ATTEMPT": "1"}
WORDS = ("python", "-m", "slipway.process.agent", "1")


@pytest.fixture
def standby(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmStandby]:
    """One that is wanted, is waited for however slow the machine is, and kills nothing."""
    monkeypatch.setattr(module, "ANSWER", PATIENCE)
    own = OwnProcesses()
    monkeypatch.setattr(own, "end", lambda: None)
    with WarmStandby(own, wanted=True) as standby:
        yield standby


def answer(link: socket.socket, told: list[Any], says: bytes) -> None:
    """Take one request, and answer."""
    if not (received := receive_request(link)):  # it was not asked
        return
    request, files = received
    told += [request, [os.readlink(f"/proc/self/fd/{number}") for number in files]]  # noqa: PTH115
    for number in files:
        os.close(number)
    if says:
        link.sendall(says)


def ask(
    standby: WarmStandby, says: bytes, environ: dict[str, str], files: dict[int, int]
) -> tuple[Forked | None, list[Any]]:
    """What comes of a request to a process that began with ENVIRON and says this, and what that was told."""
    link = standby.offer(ENVIRON)
    assert link
    told: list[Any] = []
    link.sendall(f"{os.getpid()}\n".encode())
    thread = threading.Thread(target=answer, args=(link, told, says), daemon=True)
    thread.start()
    forked = standby.fork(WORDS, environ, files)
    if standby.pid is None:
        thread.join()
    link.close()
    return forked, told


def test_a_request_that_it_has_not_yet_read_when_the_next_one_comes_is_another_request(
    standby: WarmStandby, tmp_path: Path
) -> None:
    link = standby.offer(ENVIRON)
    assert link
    link.sendall(f"{os.getpid()}\n".encode())
    standby.load("torch._dynamo")
    with link, (tmp_path / "log").open("w") as log:
        assert standby._send({"words": WORDS}, [log.fileno()])
        assert receive_request(link) == ({"load": "torch._dynamo"}, [])
        received = receive_request(link)
        assert received
        request, files = received
        assert request == {"words": [*WORDS]}
        assert [os.readlink(f"/proc/self/fd/{number}") for number in files] == [str(tmp_path / "log")]  # noqa: PTH115
        os.close(*files)


def test_it_is_sent_words_variables_and_files_under_their_numbers(standby: WarmStandby, tmp_path: Path) -> None:
    large = ENVIRON | {"SLIPWAY_ATTEMPT": "2", "SLIPWAY_PREVIOUS_OUTCOME": "x" * 300_000}
    with (tmp_path / "log").open("w") as log:
        forked, told = ask(standby, b"77\n", large, {1: log.fileno(), 9: log.fileno()})
    assert forked
    assert forked.pid == 77
    assert told == [{"words": [*WORDS], "environ": large, "files": [1, 9]}, [str(tmp_path / "log")] * 2]
    assert standby.pid == os.getpid(), "it stays for the next one"


@pytest.mark.parametrize(
    ("says", "environ", "files"),
    [
        (b"", ENVIRON, 1),  # it never answers
        (b"nonsense\n", ENVIRON, 1),
        (b"77\n", ENVIRON | {"OMP_NUM_THREADS": "4"}, 1),  # which libgomp has read already
        (b"77\n", {}, 1),
        (b"77\n", ENVIRON, FILES + 1),
    ],
)
def test_where_it_is_of_no_use_it_is_given_up(
    standby: WarmStandby, says: bytes, environ: dict[str, str], files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not says:
        monkeypatch.setattr(module, "ANSWER", 0.3)
    assert ask(standby, says, environ, dict.fromkeys(range(files), 0))[0] is None
    assert standby.pid is None


def test_one_that_ended_is_not_asked(standby: WarmStandby) -> None:
    link = standby.offer(ENVIRON)
    assert link
    link.sendall(b"12345678\n")
    standby.poll()
    assert standby.pid == 12345678
    link.close()
    assert standby.fork(WORDS, ENVIRON, {}) is None
    assert standby.pid is None


def test_one_that_is_stopped_is_ended(standby: WarmStandby) -> None:
    link = standby.offer(ENVIRON)
    assert link
    process = subprocess.Popen(["sh", "-c", "kill -STOP $$; sleep 60"])
    os.waitpid(process.pid, os.WUNTRACED)
    link.sendall(f"{process.pid}\n".encode())
    standby.poll()
    assert standby.pid is None
    assert process.wait(10) < 0
    link.close()


def test_none_is_left_behind_where_none_is_wanted() -> None:
    assert WarmStandby(OwnProcesses(), wanted=False).offer(ENVIRON) is None
    assert WarmStandby(OwnProcesses(), wanted=False).fork(WORDS, ENVIRON, {}) is None


def test_what_differs_from_attempt_to_attempt_does_not_count() -> None:
    assert lasting_variables({"SLIPWAY_ATTEMPT": "3", "TORCH_FR_BUFFER_SIZE": "1", "COLUMNS": "80", "A": "b"}) == {
        "A": "b"
    }


@pytest.mark.parametrize(
    ("environ", "forkable"),
    [
        ({}, False),
        ({"OMP_NUM_THREADS": "4"}, True),
        ({"OMP_NUM_THREADS": "4", "OMP_PROC_BIND": ""}, True),
        ({"OMP_NUM_THREADS": "4", "OMP_PROC_BIND": "true"}, False),
        ({"OMP_NUM_THREADS": "4", "OMP_PLACES": "cores"}, False),
        ({"OMP_NUM_THREADS": "4", "GOMP_CPU_AFFINITY": "0-3"}, False),
    ],
)
def test_workers_are_forked_where_openmp_asked_for_nothing_when_it_was_loaded(
    environ: dict[str, str], forkable: bool
) -> None:
    assert is_forkable(environ) == forkable


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a child that does this, 1 where it raised something."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return Forked(pid).wait(10)


def test_files_take_the_numbers_of_others_that_take_theirs(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)

    def swap() -> None:
        numbers = [os.open(tmp_path / name, os.O_RDONLY) for name in "abc"]
        a, b, c = numbers
        take_numbers({a: b, b: a, c: 0})
        assert [os.read(number, 9) for number in (b, a, 0)] == [b"a", b"b", b"c"]
        assert os.get_inheritable(a)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(c)

    assert in_child(swap) == 0


def test_a_forked_process_ends_with_a_code_or_a_signal_and_once() -> None:
    killed = subprocess.Popen(["sh", "-c", "kill -9 $$"])
    process = Forked(killed.pid)
    assert process.wait(10) == process.poll() == -9
    killed.returncode = -9
    asleep = subprocess.Popen(["sleep", "60"])
    process = Forked(asleep.pid)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    asleep.kill()
    asleep.wait()
    assert process.wait(10) == 0, "somebody else waited for it"


def test_ps_shows_what_a_forked_process_is() -> None:
    code = "import slipway.process.tree as f; f.rename_process('slipway.process.warm', '1' * 999); print(open('/proc/self/cmdline').read())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\0")
    assert told[:5] == [sys.executable, "-P", "-u", "-m", "slipway.process.warm"]
