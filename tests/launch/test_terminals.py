"""A script of one's own reads what is typed, or comes through a pipe, and its prompts and progress bars are seen at once.

All are the launcher's work: the agent is the one without torch.
"""

import hashlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_in_rules import Rules
from terminals import Terminal
from waiting import PATIENCE, wait_until

SLIPWAY = (sys.executable, "-m", "slipway")
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path, rules: Rules) -> Iterator[Open]:
    """Opens a terminal with a program in the test's folder; what still runs at the end is killed."""
    opened: list[Terminal] = []

    def start(*command: str, **variables: str) -> Terminal:
        opened.append(Terminal(tmp_path, *command, **variables, **rules.variables()))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait()


def write(folder: Path, text: str) -> str:
    (folder / "own.py").write_text(text)
    return "own.py"


@pytest.mark.core
def test_one_process_is_debugged_as_under_python(terminal: Open, tmp_path: Path) -> None:
    script = write(tmp_path, 'loss = 41\nbreakpoint()\nprint("loss is", loss)\nprint(input("go on? "))\n')
    shown = terminal(*SLIPWAY, "run", "--nproc-per-node", "1", script)
    at = shown.wait_for("(Pdb) ")
    shown.type("loss\n")
    at = shown.wait_for("\r\n41\r\n(Pdb) ", at)
    shown.type("loss += 1\nc\n")
    at = shown.wait_for("loss is 42\r\ngo on? ", at)
    shown.type("yes\n")
    shown.wait_for("yes\r\nyes\r\n", at)
    assert shown.end() == 0, shown.text


@pytest.mark.pull
def test_of_several_processes_rank_0_is_asked_with_its_prefix_and_the_others_read_nothing(
    terminal: Open, tmp_path: Path
) -> None:
    script = write(
        tmp_path,
        """
import os, sys
if os.environ["RANK"] == "0":
    print("hello", input("name? "), flush=True)
print("rest", repr(sys.stdin.read()), flush=True)
""",
    )
    shown = terminal(*SLIPWAY, "run", "--nproc-per-node", "2", script)
    shown.wait_for("[0:1] rest ''\r\n")
    at = shown.wait_for("[0:0] name? ")
    shown.type("Ada\n")
    at = shown.wait_for("Ada\r\n[0:0] hello Ada\r\n", at)
    shown.type("more\n\x04")
    shown.wait_for("[0:0] rest 'more\\n'\r\n", at)
    assert shown.end() == 0, shown.text
    assert shown.text.count("name? ") == 1


@pytest.mark.pull
def test_ctrl_c_at_a_prompt_stops_the_job(terminal: Open, tmp_path: Path) -> None:
    shown = terminal(*SLIPWAY, "run", "--nproc-per-node", "1", write(tmp_path, 'input("go on? ")\n'))
    shown.wait_for("go on? ")
    shown.type("\x03")
    shown.wait_for("^C\r\nslipway: SIGINT received")
    assert shown.end() == 79, shown.text


def switches(pid: int) -> int:
    """How often a process has gone to sleep so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.core
def test_in_the_background_a_launcher_leaves_the_terminal_alone_until_it_comes_forward(
    terminal: Open, tmp_path: Path
) -> None:
    script = write(tmp_path, 'print("begun", flush=True)\nprint("got", input())\n')
    shell = terminal("bash", "--norc", "--noediting", "-i", PS1="")
    shell.type(f"$SLIPWAY run --nproc-per-node 1 {script} &\n")
    at = shell.wait_for("begun\r\n")
    shell.type("echo $((6 * 7))\n")
    at = shell.wait_for("\r\n42\r\n", at)
    found = re.search(r"\[1\] (\d+)", shell.text)
    assert found, shell.text
    looks = switches(int(found[1]))
    wait_until(lambda: switches(int(found[1])) >= looks + 6, "looks of the launcher, none of which takes what is typed")
    shell.type("jobs\n")
    at = shell.wait_for("Running", at)
    shell.type("fg\n")
    at = shell.wait_for("run --nproc-per-node 1", at)
    shell.type("text\n")
    shell.wait_for("got text", at)


@pytest.mark.core
def test_what_comes_through_a_pipe_reaches_rank_0_whole(tmp_path: Path, rules: Rules, dice: random.Random) -> None:
    script = write(
        tmp_path,
        """
import hashlib, os, sys, time
time.sleep(0.5)  # the pipe is full meanwhile
data = sys.stdin.buffer.read()
print(os.environ["RANK"], len(data), hashlib.sha256(data).hexdigest(), flush=True)
""",
    )
    data = dice.randbytes(3_000_000) + b"\r\n\x04\x00 no newline"
    words = [*SLIPWAY, "run", "--nproc-per-node", "2", script]
    env = {**os.environ, **rules.variables()}
    ended = subprocess.run(words, cwd=tmp_path, env=env, input=data, capture_output=True, timeout=PATIENCE, check=False)
    said = ended.stdout.decode()
    assert ended.returncode == 0, ended.stderr
    assert f"[0:0] 0 {len(data)} {hashlib.sha256(data).hexdigest()}\n" in said
    assert f"[0:1] 1 0 {hashlib.sha256().hexdigest()}\n" in said


BARS = """
import os, sys, time
from rich.progress import Progress
from tqdm import tqdm
for _ in tqdm(range(4), desc=f"tqdm of {os.environ['RANK']}"):
    time.sleep(0.3)
if os.environ["RANK"] == "0":
    with Progress() as progress:
        tasks = [progress.add_task(f"rich {number}", total=4) for number in range(2)]
        for _ in range(4):
            time.sleep(0.3)
            for task in tasks:
                progress.advance(task)
print("end", flush=True)
"""


@pytest.mark.pull
def test_bars_of_rank_0_move_on_a_terminal_and_those_of_the_others_are_in_their_logs(
    terminal: Open, tmp_path: Path
) -> None:
    shown = terminal(*SLIPWAY, "run", "--nproc-per-node", "2", write(tmp_path, BARS))
    assert shown.end() == 0, shown.text
    assert len(re.findall(r"tqdm of 0: +\d+%", shown.text)) > 3
    assert len(re.findall(r"rich 1", shown.text)) > 3
    assert "tqdm of 1" not in shown.text
    logs = [next(tmp_path.glob(f"runs/*/node-0/logs/rank-{rank}.log")).read_text() for rank in (0, 1)]
    for rank, log in enumerate(logs):
        assert re.findall(r"tqdm of \d: +(\d+)%", log) == ["100"], log
        assert f"tqdm of {rank}" in log
    assert len(re.findall(r"rich 1.*100%", logs[0])) == 1, logs[0]


@pytest.mark.pull
def test_without_a_terminal_a_bar_is_its_last_state(tmp_path: Path, rules: Rules) -> None:
    words = [*SLIPWAY, "run", "--nproc-per-node", "2", write(tmp_path, BARS)]
    env = {**os.environ, **rules.variables()}
    ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert sorted(re.findall(r"\[0:\d\] tqdm of \d: 100%", ended.stderr)) == [
        "[0:0] tqdm of 0: 100%",
        "[0:1] tqdm of 1: 100%",
    ]
    assert ended.stderr.count("tqdm of") == 2
    assert ended.stdout.count("100%") == 2
    assert "\r" not in ended.stdout + ended.stderr
