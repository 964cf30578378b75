"""What works under torchrun works here: failures and saves, lost terminals, names that clash, forms of a program."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import PYTHON, Launcher
from stand_in_rules import Rules

from slipway.cli.launching import FORMS, hyphens, launcher_options

Run = Callable[..., Launcher]

SAVES = """
import os, signal, sys, time
def save(number, frame):
    time.sleep({seconds})
    open("saved-" + os.environ["RANK"], "w").write(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("ready-" + os.environ["RANK"], "w").close()
print("waiting", flush=True)
while {fails} and os.environ["RANK"] == "1":
    if os.path.exists("ready-0"):
        sys.exit(3)
    time.sleep(0.1)
while True:  # A signal that comes right before a sleep is handled by Python after it.
    time.sleep(0.1)
"""


@pytest.mark.any_torch
@pytest.mark.core
def test_the_other_ranks_may_save_after_one_failed(slipway: Run, tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES.format(seconds=12, fails=True))
    job = slipway("run", "--nproc-per-node", "2", "saves.py")
    assert job.process.returncode == 1, job.text
    assert (tmp_path / "saved-0").read_text() == "SIGTERM"
    assert any("rank 1: exit code 3" in line for line in job.closing), job.closing


@pytest.mark.pull
def test_the_ranks_of_another_node_may_save_too(node: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES.format(seconds=3, fails=True))
    jobs = [node(rank, 2, "saves.py", **rules.variables()) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [1, 1], jobs[0].text + jobs[1].text
    assert (tmp_path / "saved-0").read_text() == "SIGTERM"
    assert any("rank 1: exit code 3" in line for line in jobs[0].closing), jobs[0].closing


def read_all(terminal: int, words: str, launcher: int) -> str:
    """What came on a terminal until these words did."""
    seen = ""
    while words not in seen:
        try:
            seen += os.read(terminal, 65_536).decode(errors="replace")
        except OSError:  # everybody there has ended
            break
    assert words in seen, (launcher, seen)
    return seen


@pytest.mark.core
def test_a_terminal_that_is_closed_stops_like_sigterm(tmp_path: Path, rules: Rules) -> None:
    """As where ssh drops: the launcher gets SIGHUP, and nothing that is written to the terminal arrives any more."""
    (tmp_path / "saves.py").write_text(SAVES.format(seconds=1, fails=False))
    command = f"cd {tmp_path} && exec {sys.executable} -m slipway run --nproc-per-node 2 saves.py"
    child, terminal = os.forkpty()
    if not child:
        os.execvpe("sh", ["sh", "-c", command], {**os.environ, **rules.variables()})
    seen = read_all(terminal, "[0:1] waiting", child)
    if "[0:0] waiting" not in seen:
        read_all(terminal, "[0:0] waiting", child)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 75
    assert (tmp_path / "saved-0").read_text() == (tmp_path / "saved-1").read_text() == "SIGTERM"


NAMES = (
    "click",
    "json",
    "logging",
    "types",
    "torch",
    "dotenv",
    "socket",
)  # `python -m slipway` would take a slipway.py
PATHS = "import os, sys\nprint('path', sys.path[0], flush=True)\n"


@pytest.mark.core
def test_files_in_the_working_directory_stand_in_for_nothing(slipway: Run, tmp_path: Path) -> None:
    (tmp_path / "scripts/pkg").mkdir(parents=True)
    (tmp_path / "scripts/own.py").write_text(PATHS)
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file')\n")
    for words, says in (
        (("run", "--nproc-per-node", "2", "scripts/own.py"), f"[0:1] path {tmp_path}/scripts"),
        (("linear", "--nproc-per-node", "1", "--steps", "1"), "finished on 1 node"),
    ):
        job = slipway(*words)
        assert job.process.returncode == 0, job.text
        assert says in job.text
        assert "the wrong file" not in job.text
    console_script = [Path(sys.executable).with_name("slipway"), "--version"]
    assert "version" in subprocess.run(console_script, cwd=tmp_path, check=True, capture_output=True, text=True).stdout


@pytest.mark.pull
def test_a_module_finds_its_neighbours_as_with_python(slipway: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__main__.py").write_text(PATHS + "import beside\n")
    (tmp_path / "beside.py").write_text("print('found', flush=True)\n")
    job = slipway("run", "--nproc-per-node", "1", "-mpkg", **rules.variables())
    assert job.process.returncode == 0, job.text
    assert f"path {tmp_path}\nfound\n" in job.text


@pytest.mark.pull
def test_another_attempt_knows_how_the_one_before_ended(slipway: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(
        "import os, sys\n"
        "told = os.environ.get('SLIPWAY_PREVIOUS_OUTCOME')\n"
        "print('attempt', os.environ['SLIPWAY_ATTEMPT'], told, flush=True)\n"
        "sys.exit(0 if told else 3)\n"
    )
    words = ("run", "--nproc-per-node", "1", "--max-restarts", "1", "again.py")
    job = slipway(*words, SLIPWAY_PREVIOUS_OUTCOME="another job's", **rules.variables(pause=0.1))
    assert job.process.returncode == 0, job.text
    assert "attempt 1 None" in job.text
    assert re.search(r"attempt 2 failed: node 0 \(.+\), rank 0: exit code 3", job.text), job.text


OPTIONS = """
import json
from torch.distributed.run import get_args_parser
print(json.dumps([action.option_strings for action in get_args_parser()._actions if action.option_strings]))
"""


@pytest.mark.any_torch
def test_every_option_of_torchrun_is_accepted_or_refused_with_what_replaces_it() -> None:
    told = subprocess.run([PYTHON, "-c", OPTIONS], capture_output=True, text=True, check=True)
    known = {"-h", "--help", *(name for option in (*launcher_options(), *FORMS.values()) for name in option.opts)}
    unknown = [names for names in json.loads(told.stdout) if not {hyphens(name) for name in names} <= known]
    assert unknown == []
