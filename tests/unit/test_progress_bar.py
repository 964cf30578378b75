"""A worker's progress bar: shown on a terminal below everything else, and nowhere else."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from worker_output import MakeOutput, logged

from slipway.launch.attempt.worker_output import ERASE_LINE

Capture = pytest.CaptureFixture[bytes]
BAR = [b"\r 10%|#  |", b"\r 20%|## |", b"\r100%|###|\n", b"done\n"]


PROGRAM = """
import sys
from pathlib import Path
from worker_output import Output
output = Output((0, 1), 0, False, Path(sys.argv[1]))
output.write(b"\\r 10%", stream=1)
output.write(b"line\\n", stream=int(sys.argv[2]))
output.write(b"\\r 20%", stream=1)
output.end()
"""


def show_on_terminal(folder: Path, stream: int, stdout: int | None = None) -> bytes:
    """What a terminal gets as stderr (and stdout) of the program above, whose line comes through this stream."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", PROGRAM, str(folder), str(stream)]
    subprocess.run(command, env=environ, check=True, stdout=theirs if stdout is None else stdout, stderr=theirs)
    os.close(theirs)
    shown = os.read(ours, 65_536)
    os.close(ours)
    return shown


@pytest.mark.parametrize("stream", [2, 3])
def test_a_progress_bar_stays_below_everything_else(tmp_path: Path, stream: int) -> None:
    shown = show_on_terminal(tmp_path, stream)
    assert shown.startswith(b"\r 10%" + ERASE_LINE + b"[0:1] line\r\n" + b"\r 10%" + b"\r 20%")


def test_lines_that_go_to_a_file_come_without_the_bar(tmp_path: Path) -> None:
    """`slipway gpt > out.txt` in a terminal."""
    with (tmp_path / "out.txt").open("wb") as file:
        shown = show_on_terminal(tmp_path, 2, stdout=file.fileno())
    assert (tmp_path / "out.txt").read_bytes() == b"[0:1] line\n"
    assert shown.startswith(b"\r 10%\r 20%")


def test_without_a_terminal_no_bar_is_shown(make_output: MakeOutput, capfdbinary: Capture) -> None:
    output = make_output(ranks=(0,), alone=True)
    for text in (*BAR[:2], BAR[3]):
        output.write(text, stream=1)
    output.end()
    err = capfdbinary.readouterr().err
    assert b"\r" not in err
    assert b"10%" not in err
    assert err.endswith(b"done\n")


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("texts", [BAR, [b"".join(BAR)], [BAR[0] + BAR[1], BAR[2] + BAR[3]]])
def test_the_log_holds_no_state_of_a_bar_but_its_last(
    make_output: MakeOutput, tmp_path: Path, terminal: bool, texts: list[bytes]
) -> None:
    output = make_output(terminal=terminal)
    for text in texts:
        output.write(text, stream=1)
    output.end()
    assert logged(tmp_path) == b"--- attempt 2 ---\n100%|###|\ndone\n"
