"""The standby and the launcher's side of it together, with an agent that only tells what it was given."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from slipway.process.watcher import ADDRESS, STANDBY

# The agent is forked off here as a launcher starts one, and leaves the process behind.
LAUNCHER = """
import json, os, signal, sys, time
from slipway.launch.attempt import warm_standby
from slipway.launch.attempt.warm_standby import WarmStandby
from slipway.process.tree import OwnProcesses
from slipway.process.tree import adopt_orphans, lives, send_signal, trees
from slipway.process.standby import fork_standby

def begin(words):
    seen = {"words": words, "A": os.environ.get("SLIPWAY_A"), "B": os.environ.get("B"), "parent": os.getppid() == launcher}
    seen |= {"leads": os.getsid(0) == os.getpid(), "files": sorted(map(int, os.listdir("/proc/self/fd")))}
    seen["line"] = open("/proc/self/cmdline").read().split("\\0")[4:6]
    def work():
        print(json.dumps(seen), flush=True)
        return 7
    return work

def say(**what):
    print(json.dumps(what), flush=True)

def count():  # without what has ended and was not waited for yet: the one between the standby and an agent
    return sum(map(lives, trees([launcher])[launcher]))

warm_standby.ANSWER = 60.0
launcher, out = os.getpid(), os.dup(1)
adopt_orphans()
os.environ["B"] = "of the first attempt"
with WarmStandby(OwnProcesses(), wanted=True) as standby:
    with standby.offer({}) as theirs:
        agent = os.fork()
        if not agent:
            work = fork_standby(theirs.fileno(), launcher, [], begin)
            os._exit(work() if work else 0)
    os.waitpid(agent, 0)
    while standby.pid is None:
        standby.poll()
    for attempt in ("2", "3"):
        with open(os.devnull) as nothing:
            files = {0: nothing.fileno(), 1: out, 2: out, 40: out}
            forked = standby.fork(("python", "-m", "slipway.process.agent", attempt), {"SLIPWAY_A": attempt}, files)
        say(code=forked.wait(60), below=count())
    if "kill" in sys.argv:
        send_signal([standby.pid], signal.SIGKILL)
        while standby.pid is not None:
            standby.poll()
        say(forked=standby.fork(("python",), {}, {}) is not None)
say(below=count())
"""


def run(*words: str) -> list[dict[str, Any]]:
    """What launcher and agents tell."""
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *words, "x" * 200], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_agents_are_the_launchers_own_children_with_its_words_variables_and_files() -> None:
    told = run()
    for attempt, agent, after in (("2", told[0], told[1]), ("3", told[2], told[3])):
        assert agent["words"] == [attempt]
        assert (agent["A"], agent["B"]) == (attempt, None), "nothing of the first attempt's variables"
        assert agent["parent"]
        assert agent["leads"], "a session"
        assert set(agent["files"]) - {0, 1, 2, 40} <= {3}, "the listing's own"
        assert agent["line"][:1] == ["slipway.process.agent"]
        assert after == {"code": 7, "below": 1}, "the standby stays"
    assert told[-1] == {"below": 0}


def test_one_that_was_killed_is_noticed() -> None:
    assert run("kill")[-2:] == [{"forked": False}, {"below": 0}]


def test_what_fails_in_a_process_that_waits_for_a_script_ends_it_before_the_script_runs(tmp_path: Path) -> None:
    """slipway.pth passes over exceptions, and Python goes on with the script."""
    script = tmp_path / "script.py"
    script.write_text("print('it runs')")
    told = {**os.environ, ADDRESS: f"{STANDBY}1,2,no number", "LOCAL_RANK": "0"}
    ended = subprocess.run([sys.executable, script], env=told, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "invalid literal for int()" in ended.stderr
    told[ADDRESS] = f"{STANDBY}0,1,0"
    ended = subprocess.run([sys.executable, script], env=told, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "process 1 has not started this one" in ended.stderr, "only a launcher's own child waits"
