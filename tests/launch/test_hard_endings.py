"""Endings that are easy to get wrong: slow saves, early signals, stalled readers, impatient users.

Scripts that need no torch get an agent that needs none either.
"""

import os
import re
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rules
from waiting import wait_until

from slipway.process.tree import lives

Start = Callable[..., Launcher]
Node = Callable[..., Launcher]


def write(tmp_path: Path, body: str) -> str:
    (tmp_path / "script.py").write_text(f"import os, signal, sys, time\n{body}")
    return "script.py"


@pytest.mark.pull
def test_a_rank_that_saves_slowly_is_not_killed_because_another_is_gone(
    start: Start, rules: Rules, tmp_path: Path
) -> None:
    script = write(
        tmp_path,
        "count = []\n"
        "def save(*_):\n"
        "    count.append(1)\n"
        "    while not os.path.exists('gone'): time.sleep(0.01)\n"
        "    open('saved', 'w').write(str(len(count))); sys.exit(0)\n"
        "if os.environ['RANK'] == '0': signal.signal(signal.SIGTERM, save)\n"
        "print('ready', os.getpid(), flush=True)\nwhile True: time.sleep(0.1)\n",
    )
    job = start(script, NPROC_PER_NODE="2", **rules.variables())
    job.wait_for("[0:0] ready")
    job.wait_for("[0:1] ready")
    [other] = re.findall(r"\[0:1\] ready (\d+)", job.text)
    job.signal(signal.SIGTERM)
    wait_until(lambda: not lives(int(other)), "the other rank to end")
    (tmp_path / "gone").touch()
    assert job.end() == 75, job.text
    assert (tmp_path / "saved").read_text() == "1", "and torchrun did not signal it again"


@pytest.mark.pull
def test_a_stop_while_a_script_is_being_started_is_not_lost(start: Start, rules: Rules, tmp_path: Path) -> None:
    script = write(tmp_path, "time.sleep(300)")
    job = start("run", "--grace-seconds", "200", script, NPROC_PER_NODE="1", **rules.variables())
    job.wait_for("run directory")
    job.signal(signal.SIGTERM)
    assert job.end() == 75, job.text
    assert "--grace-seconds" not in job.text, "the script got the signal, and was not killed when the grace was over"


@pytest.mark.pull
def test_a_reader_that_stalls_does_not_keep_the_launcher_from_stopping(
    start: Start, rules: Rules, tmp_path: Path
) -> None:
    script = write(tmp_path, "while True: print('x' * 1000, flush=True)")
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDWR)
    job = start(script, before=("sh", "-c", 'exec "$@" >fifo', "sh"), NPROC_PER_NODE="1", **rules.variables())
    wait_until(lambda: not select.select([], [reader], [], 0)[1], "the pipe to be full")
    job.signal(signal.SIGTERM)
    assert job.end() == 75, job.text
    os.close(reader)


@pytest.mark.any_torch
def test_a_stop_on_one_node_explains_a_script_that_lost_its_peer(node: Node, tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "ones = torch.ones(1)\n"
        "print('ready', flush=True)\n"
        "while True: dist.all_reduce(ones); time.sleep(0.05)\n",
    )
    jobs = [node(rank, 2, script) for rank in (0, 1)]
    for rank, job in enumerate(jobs):
        job.wait_for(f"[{rank}:{rank}] ready")
    jobs[0].signal(signal.SIGTERM)
    assert [job.end() for job in jobs] == [75, 75], jobs[0].text + jobs[1].text
