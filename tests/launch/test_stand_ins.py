"""The stand-ins do as what they stand in for: the launcher cannot tell them from it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launchers import Launcher
from stand_in_rules import SITE, Rule, Rules
from waiting import wait_until

from slipway.process.tree import trees
from slipway.protocol.files import read_json

# Both ranks run it. The other one waits until the launcher, which is this test, ends it.
PROGRAM = """
import ctypes, os, signal, sys, time

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)

ending, rank = sys.argv[1], os.environ["RANK"]
first = rank == "1"
match ending:
    case "finishes":
        if first:
            wait("tell-0")
    case "exits with 3" if first:
        os._exit(3)
    case "is killed" if first:
        os.kill(os.getpid(), signal.SIGKILL)
    case "crashes" if first:
        ctypes.string_at(0)
    case "raises" if first:
        raise ValueError("boom")
    case "imports what is not there" if first:
        import no_such_module
    case "is told to end" if first:
        os.kill(os.getpid(), signal.SIGTERM)
    case "stops by the flag":
        signal.signal(signal.SIGTERM, lambda *_: open("signalled", "w").close())
        open("stop", "w").close()
        if first:
            wait("ready")
            sys.exit(1)
        open("ready", "w").close()
        wait("tell-failed")  # an agent that would not let this rank save has signalled it by now
    case "fails after the other left":
        if first:
            wait("tell-0")
            sys.exit(4)
    case "hangs":
        wait("never")
    case _:
        wait("never")
"""
ENDINGS = [
    "finishes", "exits with 3", "is killed", "crashes", "raises", "imports what is not there", "is told to end",
    "stops by the flag", "fails after the other left", "hangs",
]  # fmt: skip

# Has torch imported, and forks an agent for each line, as the standby does: ten imports would cost a minute.
AGENTS = """
import json, os, sys
stands_in = sys.argv[1] == "stand-in"
if stands_in:
    import stand_in_agent
    stand_in_agent.stand_in()
from slipway.process import agent
from torch.distributed import run
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(order["folder"])
        os._exit(agent.main([str(os.getppid()), *order["words"]]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass
class Agents:
    """Agents of one kind, both ends of the pipe that they tell events through, and where their workers' output goes."""

    process: subprocess.Popen[str]
    told: int
    events: int
    nothing: int

    def end(self, ending: str, folder: Path) -> tuple[int, list[Any]]:
        """The exit code of an agent whose workers end so, and the events without what differs from run to run."""
        (folder / "outcome").mkdir(parents=True)
        (folder / "own.py").write_text(PROGRAM)
        torchrun = ["--nnodes=1", "--node-rank=0", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
        pipes = ",".join([str(self.nothing)] * 4)
        words = [str(self.told), pipes, str(folder / "outcome"), "0,0,2", "", "", *torchrun, "--master-port=0"]
        words += [
            "--max-restarts=0",
            "--signals-to-handle=SIGQUIT",
            "--no-python",
            "--",
            sys.executable,
            "own.py",
            ending,
        ]
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps({"folder": str(folder), "words": words}), file=self.process.stdin, flush=True)
        seen, pids = [], list[int]()
        for event in self._read():
            if event["event"] == "started":
                pids = list(event["pids"].values())
                if ending == "hangs":
                    os.kill(pids[0], signal.SIGKILL)
            (folder / f"tell-{event.get('rank', event['event'])}").touch()
            if event["event"] == "failed" and ending != "stops by the flag":
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            seen.append(without_what_differs(event, pids))
            if event["event"] == "failed" or [each["event"] for each in seen].count("left") == 2:
                break
        return int(self.process.stdout.readline()), seen

    def _read(self) -> Iterator[dict[str, Any]]:
        rest = b""
        while chunk := os.read(self.events, 65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(json.loads, lines)


def without_what_differs(event: dict[str, Any], pids: list[int]) -> dict[str, Any]:
    """An event with places in the list of process ids instead of these, and without times."""
    if "pids" in event:
        return {**event, "pids": [*event["pids"]]}
    if "failures" in event:
        failures = [{**failure, "pid": pids.index(failure["pid"])} for failure in event["failures"]]
        return {**event, "failures": [{**failure, "time": type(failure["time"])} for failure in failures]}
    return {**event, "time": type(event["time"])}


@contextmanager
def agents(kind: str, log: Path) -> Iterator[Agents]:
    """Agents of a kind: `real` or `stand-in`."""
    events, told = os.pipe()
    nothing = os.open(os.devnull, os.O_WRONLY)
    more = {"PYTHONPATH": f"{SITE}:{SITE.parent}", "STAND_INS": "1" if kind == "stand-in" else ""}
    environ = {**os.environ, **more, "PYTHONWARNINGS": "ignore"}
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", AGENTS, kind, "slipway.process.warm"],  # which sitecustomize.py looks for
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, pass_fds=(told, nothing),
        )  # fmt: skip
    with process:
        yield Agents(process, told, events, nothing)
        assert process.stdin
        process.stdin.close()
    for number in (events, told, nothing):
        os.close(number)


def test_both_agents_tell_the_same_of_ten_endings(tmp_path: Path) -> None:
    told: dict[str, dict[str, Any]] = {}
    for kind in ("real", "stand-in"):
        with agents(kind, tmp_path / f"{kind}.log") as some:
            told[kind] = {ending: some.end(ending, tmp_path / kind / ending) for ending in ENDINGS}
    assert told["stand-in"] == told["real"]
    assert not [*tmp_path.glob("*/*/signalled")]


def has_torch(process: int) -> bool:
    """Whether a process has loaded it: seconds of CPU time, which stand-ins are there to spare."""
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()


def test_both_workers_leave_the_same_behind_a_stop(
    start: Callable[..., Launcher], rules: Rules, tmp_path: Path
) -> None:
    left = {}
    for torch in (True, False):
        held = Rule("hold", step=5 + torch)  # a file of another name
        words = ("gpt", "--steps", "100000", "--save-every", "4", "--run-dir", f"run-{torch}")
        job = start(*words, **rules.variables(held, torch=torch), NPROC_PER_NODE="1")
        rules.wait_for(held, job)
        assert any(map(has_torch, trees([job.process.pid])[job.process.pid])) == torch
        job.signal(signal.SIGTERM)
        node = tmp_path / f"run-{torch}/node-0"
        wait_until((node / "stop").exists, "the stop flag")
        rules.let_go(held)
        assert job.end() == 75, job.text
        outcome = read_json(node / "outcome/rank-0.json")
        assert outcome["snapshot"] == f"step-{outcome['step']:08}"
        assert outcome["message"] == f"stopped at step {outcome['step']} of 100000, snapshot saved"
        snapshots = sorted((node.parent / "snapshots").iterdir())
        left[torch] = {
            "outcome": {
                name: value for name, value in outcome.items() if name not in ("step", "snapshot", "message", "time")
            },
            "beat": set(read_json(node / "heartbeat/rank-0.json")) - {"own", "slow", "waited"},
            "snapshots": len(snapshots),
            "attempts": [read_json(path / "manifest.json")["attempt"] for path in snapshots],
            "node": {path.name for path in node.iterdir()},
        }
    assert left[True] == left[False]
