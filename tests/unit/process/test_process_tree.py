"""The processes below this one: in a made-up /proc, and in real trees whose middle was killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import write_files

from slipway.process.tree import catches, has_open, ignores, send_signal, start_ticks, state_of, trees

STAT = {
    "1/stat": "1 (tini) S 0 1 1",
    "10/stat": "10 (slipway) S 1 10 10",
    "20/stat": "20 (python -m a) b)) R 10 20 20",  # a name may hold spaces and parentheses
    "21/stat": "21 (pt_data_worker) Z 20 20 20",
    "22/stat": "22 (x) S 21 22 22",
    "30/stat": "30 (other) S 1 30 30",
    "31/stat": "",
    "32/stat": "32 (half",
    "33/status": "no stat: it has ended meanwhile",
    "self/stat": "20 (me) S 10 1 1",
    "meminfo": "",
}


@pytest.mark.parametrize(
    ("of", "found"), [(1, {10, 20, 21, 22, 30}), (10, {20, 21, 22}), (20, {21, 22}), (22, set()), (99, set())]
)
def test_everything_below_a_process_is_found(tmp_path: Path, of: int, found: set[int]) -> None:
    below = trees([of], write_files(tmp_path, STAT))[of]
    assert set(below) == found
    assert len(below) == len(found)


def test_signalling_those_that_have_ended_is_no_error() -> None:
    with subprocess.Popen(["sleep", "60"]) as alive, subprocess.Popen(["true"]) as ended:
        ended.wait()
        send_signal([ended.pid, alive.pid], signal.SIGTERM)
        assert alive.wait() == -signal.SIGTERM


# A launcher with a child in a session of its own, which has a child in another session that ignores what can be ignored.
FAMILY = """
import json, os, signal, subprocess, sys, time
from slipway.process.tree import OwnProcesses
from slipway.process.tree import adopt_orphans, send_signal, trees
own = OwnProcesses()
if "adopt" in sys.argv:
    adopt_orphans()
inner = "trap '' TERM INT HUP; sleep 60 & echo ready; wait; sleep 60"
middle = f'''setsid sh -c "{inner}" & echo $!; wait'''
child = subprocess.Popen(["sh", "-c", middle], stdout=subprocess.PIPE, text=True, start_new_session=True)
lines = {child.stdout.readline().strip() for _ in range(2)}
before = trees([os.getpid()])[os.getpid()]
child.kill()
child.wait()
time.sleep(0.05)
orphans = trees([os.getpid()])[os.getpid()]
own.end()
time.sleep(0.05)
alive = []
for pid in before:
    try:
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if state != "Z":
        alive.append(pid)
left = trees([os.getpid()])[os.getpid()]
if "adopt" not in sys.argv:
    send_signal(alive, signal.SIGKILL)
print(json.dumps([len(before), len(orphans), len(alive), len(left)]))
"""


def run_family(*words: str) -> tuple[int, int, int, int]:
    command = [sys.executable, "-c", FAMILY, *words]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    before, orphans, alive, left = json.loads(ran.stdout)
    return before, orphans, alive, left


def test_orphans_are_adopted_and_ended_in_whatever_session_they_are() -> None:
    before, orphans, alive, left = run_family("adopt")
    assert before >= 3
    assert orphans == before - 1
    assert (alive, left) == (0, 0)


def test_without_adoption_they_would_have_been_lost() -> None:
    _, orphans, alive, _ = run_family()
    assert orphans == 0
    assert alive >= 1


def test_our_own_children_are_seen_in_the_real_proc() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in trees([os.getpid()])[os.getpid()]
        child.kill()


HANDLES = (
    "import signal, sys; signal.signal(12, print); signal.signal(15, 1); print('up', flush=True); sys.stdin.read()"
)


def test_what_a_process_does_with_signals_is_known() -> None:
    with subprocess.Popen([sys.executable, "-c", HANDLES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert (catches(process.pid, signal.SIGUSR2), catches(process.pid, signal.SIGTERM)) == (True, False)
        assert (ignores(process.pid, signal.SIGUSR2), ignores(process.pid, signal.SIGTERM)) == (False, True)
        begun = start_ticks(process.pid)
        assert isinstance(begun, int)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert state_of(process.pid) == "T"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(process.pid) is None, "what has ended holds nothing, though its parent has not looked yet"
    assert state_of(process.pid) == ""
    assert not catches(process.pid, signal.SIGUSR2)


def test_a_process_has_a_folder_open_or_a_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    child = subprocess.Popen(["sh", "-c", "exec 3< a/b; echo; exec sleep 60"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    try:
        assert has_open(child.pid, tmp_path / "a")
        assert has_open(child.pid, tmp_path / "a/b")
        assert not has_open(child.pid, tmp_path / "c")
    finally:
        child.kill()
        child.communicate()
    assert not has_open(child.pid, tmp_path / "a"), "it is gone"
