"""What a launcher ends, and what it leaves alone because it was there before: in a made-up /proc, and in real trees."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import write_files

from slipway.process.tree import OwnProcesses, lives, send_signal

LAUNCHER, SHELL, SHIM, SERVER, AGENT, WORKER = 10, 20, 21, 22, 30, 31
MARK = "PATH=/bin\0SLIPWAY_NODE_DIR=/runs/x/node-0\0"


def write_process(
    proc: Path, pid: int, parent: int, start: int, environ: str = "PATH=/bin\0", session: int = LAUNCHER
) -> None:
    """Write what /proc says of a process."""
    fields = f"0 {session} " + " ".join(["0"] * 15)
    write_files(proc, {f"{pid}/stat": f"{pid} (x) S {parent} {fields} {start} 0", f"{pid}/environ": environ})


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A launcher below which a container runtime keeps a shell, a shim and the server of the root file system."""
    for pid, parent in ((LAUNCHER, 1), (SHELL, LAUNCHER), (SHIM, SHELL), (SERVER, SHIM)):
        write_process(tmp_path, pid, parent, start=100)
    return tmp_path


@pytest.fixture
def own(proc: Path) -> OwnProcesses:
    """What is the launcher's own there, as it starts an attempt."""
    own = OwnProcesses(LAUNCHER, proc)
    write_process(proc, AGENT, LAUNCHER, start=200, environ=MARK, session=AGENT)
    write_process(proc, WORKER, AGENT, start=201, session=WORKER)
    return own


def test_what_was_there_before_is_foreign(own: OwnProcesses) -> None:
    assert own.find() == [AGENT, WORKER]


def test_the_spared_are_left_out_alone(own: OwnProcesses) -> None:
    assert own.find({AGENT, None}) == [WORKER]


@pytest.mark.parametrize("parent", [SHELL, SHIM, SERVER])
def test_what_foreign_processes_start_later_is_foreign(own: OwnProcesses, proc: Path, parent: int) -> None:
    write_process(proc, 40, parent, start=300)
    write_process(proc, 41, 40, start=301)
    assert own.find() == [AGENT, WORKER]


def test_orphans_of_foreign_processes_stay_foreign(own: OwnProcesses, proc: Path) -> None:
    write_process(proc, SERVER, LAUNCHER, start=100)  # it was there before
    write_process(proc, 40, LAUNCHER, start=300)  # its parent ended before anybody looked
    write_process(proc, 41, 40, start=301)
    assert own.find() == [AGENT, WORKER]


def test_orphans_of_our_own_processes_are_our_own(own: OwnProcesses, proc: Path) -> None:
    write_process(proc, 40, LAUNCHER, start=300, environ=MARK)
    write_process(proc, 41, 40, start=301)
    assert set(own.find()) == {AGENT, WORKER, 40, 41}


def leave_orphan(proc: Path, session: int) -> int:
    """End agent and worker; what remains is a child of the launcher, with an empty environment."""
    for pid in (AGENT, WORKER):
        for name in ("stat", "environ"):
            (proc / str(pid) / name).unlink(missing_ok=True)
    write_process(proc, 40, LAUNCHER, start=300, environ="", session=session)
    return 40


@pytest.mark.parametrize("session", [AGENT, WORKER])
def test_an_orphan_without_environment_is_our_own_in_a_session_that_ours_began(
    own: OwnProcesses, proc: Path, session: int
) -> None:
    own.find()
    orphan = leave_orphan(proc, session)
    write_process(proc, 41, orphan, start=301, environ="", session=41)
    assert own.find() == [orphan, 41]


@pytest.mark.parametrize("session", [AGENT, WORKER])
def test_the_leader_of_such_a_session_is_our_own_when_it_cleared_its_environment(
    own: OwnProcesses, proc: Path, session: int
) -> None:
    own.find()
    leave_orphan(proc, session)
    write_process(proc, session, LAUNCHER, start={AGENT: 200, WORKER: 201}[session], environ="", session=session)
    assert set(own.find()) == {session, 40}


@pytest.mark.parametrize("session", [0, 1, LAUNCHER, SHELL, SHIM, 40, 99])
def test_an_orphan_without_environment_in_any_other_session_stays_foreign(
    own: OwnProcesses, proc: Path, session: int
) -> None:
    own.find()
    leave_orphan(proc, session)
    assert own.find() == []


@pytest.mark.parametrize("session", [AGENT, WORKER])
def test_a_foreign_session_with_the_number_of_one_of_ours_is_foreign(
    own: OwnProcesses, proc: Path, session: int
) -> None:
    own.find()
    leave_orphan(proc, session)
    write_process(proc, session, SHIM, start=400, session=session)
    assert own.find() == []


def test_sessions_are_forgotten_once_nothing_is_left_of_an_attempt(own: OwnProcesses, proc: Path) -> None:
    own.find()
    orphan = leave_orphan(proc, WORKER)
    (proc / str(orphan) / "stat").unlink()
    own.end()
    leave_orphan(proc, WORKER)
    assert own.find() == []


def test_a_process_of_ours_with_the_number_of_one_that_is_gone_is_our_own(own: OwnProcesses, proc: Path) -> None:
    write_process(proc, SERVER, WORKER, start=400)
    assert own.find() == [AGENT, WORKER, SERVER]


def test_without_foreign_processes_whatever_is_below_is_our_own(tmp_path: Path) -> None:
    write_process(tmp_path, LAUNCHER, 1, start=100)
    own = OwnProcesses(LAUNCHER, tmp_path)
    write_process(tmp_path, 40, LAUNCHER, start=300, environ="")  # a script's own, with an environment of its own
    assert own.find() == [40]


# What a container runtime does before it becomes the launcher: it starts a shell and below it a server, which starts a process
# in a session of its own whenever it is told to. A daemon of it becomes the launcher's child.
RUNTIME = (
    """
import os, subprocess, sys
server = """
    + repr("""
while read word; do
    case $word in
        child) setsid sleep 60 > /dev/null & echo $! ;;
        daemon) (setsid sleep 60 > /dev/null & echo $!) ;;
    esac
done
""")
    + """
(asked, ask), (hear, told) = os.pipe(), os.pipe()
subprocess.Popen(["sh", "-c", 'sh -c "$1"; true', "sh", server], stdin=asked, stdout=told)
for number in (ask, hear):
    os.set_inheritable(number, True)
os.close(told)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], str(ask), str(hear)])
"""
)
LAUNCH = """
import json, os, signal, subprocess, sys
from slipway.process.tree import OwnProcesses
from slipway.process.tree import adopt_orphans, lives, trees
ask, hear = open(int(sys.argv[1]), "w"), open(int(sys.argv[2]))

def start(word):
    print(word, file=ask, flush=True)
    return int(hear.readline())

early = start("child")  # so the server is there
own = OwnProcesses()
adopt_orphans()
before = trees([os.getpid()])[os.getpid()]
assert len(before) == 3 and early in before, before
later = [start("child"), start("daemon")]
environ = {**os.environ, "SLIPWAY_NODE_DIR": "/runs/x/node-0"}
words = ["sh", "-c", "(setsid sleep 60 > /dev/null & echo $!); (env -i sleep 60 > /dev/null & echo $!); sleep 60 > /dev/null & echo $!; exec > /dev/null; wait"]
agent = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True)
ours = [agent.pid, *map(int, agent.stdout.read().split())]
own.find()
agent.kill()
os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
own.end()
agent.wait()
print(json.dumps({"before": [*map(lives, before)], "later": [*map(lives, later)], "ours": [*map(lives, ours)]}))
for pid in (*before, *later):
    os.kill(pid, signal.SIGKILL)
"""


def test_the_end_of_an_attempt_leaves_what_a_container_runtime_started_before_and_after() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RUNTIME, LAUNCH], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == {"before": [True] * 3, "later": [True] * 2, "ours": [False] * 4}


# Two daemons, each in a session of its own. The first has an empty environment. Until a process has become `sleep` it has the
# environment of the shell that started it.
LEAVE = """
import os, subprocess
from pathlib import Path
from slipway.process.tree import stand_between
stand_between(os.getppid())
for words in (["env", "-i"], []):
    command = f"(setsid {' '.join(words)} sleep 60 > /dev/null 2>&1 & echo $!)"
    told = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout.strip()
    while Path(f"/proc/{told}/comm").read_text() != "sleep\\n":
        continue
    print(told, flush=True)
"""


def test_the_reaper_ends_what_nobody_else_could_tell_from_foreign_processes_and_leaves_the_rest_to_the_launcher() -> (
    None
):
    ran = subprocess.run(
        [sys.executable, "-c", LEAVE],
        env={**os.environ, "SLIPWAY_NODE_DIR": "/runs/x/node-0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    cleared, marked = map(int, ran.stdout.split())
    try:
        assert (lives(cleared), lives(marked)) == (False, True)
    finally:
        send_signal([cleared, marked], signal.SIGKILL)
