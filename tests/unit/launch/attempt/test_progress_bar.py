"""A worker's progress bar: shown on a terminal below everything else, and nowhere else."""

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from worker_output import MakeOutput, logged

from slipway.launch.attempt import worker_output as module
from slipway.launch.attempt.terminal import ERASE_ABOVE, ERASE_LINE

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


def show_on_terminal(
    folder: Path, stream: int = 0, stdout: int | None = None, program: str = PROGRAM, columns: int = 0
) -> bytes:
    """What a terminal gets as stderr (and stdout) of a program; the line of the one above comes through this stream."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", program, str(folder), str(stream)]
    subprocess.run(command, env=environ, check=True, stdout=theirs if stdout is None else stdout, stderr=theirs)
    os.close(theirs)
    shown = b"".join(iter(lambda: read_terminal(ours), b""))
    os.close(ours)
    return shown


def read_terminal(ours: int) -> bytes:
    """The next piece of what a terminal got; nothing at its end. The kernel hands on what was written piece by piece."""
    try:
        return os.read(ours, 65_536)
    except OSError:  # EIO: all is read, and nobody has the other side open
        return b""


@pytest.mark.parametrize("stream", [2, 3])
def test_a_progress_bar_stays_below_everything_else(tmp_path: Path, stream: int) -> None:
    shown = show_on_terminal(tmp_path, stream)
    assert shown.startswith(b"\r 10%" + ERASE_LINE + b"[0:1] line\r\n" + b"\r 10%" + ERASE_LINE + b"\r 20%")


def test_lines_that_go_to_a_file_come_without_the_bar(tmp_path: Path) -> None:
    """`slipway gpt > out.txt` in a terminal."""
    with (tmp_path / "out.txt").open("wb") as file:
        shown = show_on_terminal(tmp_path, 2, stdout=file.fileno())
    assert (tmp_path / "out.txt").read_bytes() == b"[0:1] line\n"
    assert shown.startswith(b"\r 10%" + ERASE_LINE + b"\r 20%")


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


def test_off_a_terminal_the_newest_state_of_each_bar_is_printed_now_and_then(
    make_output: MakeOutput, tmp_path: Path, capfdbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make_output()
    clock = iter([100.0, 129.0, 131.0, 140.0, 171.0, 172.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock, 173.0))
    for percent in (b"1", b"29", b"31", b"40"):
        output.write(b"\rloss " + percent + b"%", stream=3)
    output.output.poll()
    output.output.poll()
    shown = capfdbinary.readouterr().err
    assert shown == b"[0:1] loss 31%\n[0:1] loss 40%\n", "none of 1 and 29; 40 once, 30 s after 31"
    output.write(b"\rloss 99%", stream=3)
    output.end()
    assert capfdbinary.readouterr().err == b"[0:1] loss 99%\n"
    assert logged(tmp_path, 1) == b"--- attempt 2 ---\nloss 31%\nloss 40%\nloss 99%\n"


def test_on_a_terminal_bars_of_other_ranks_are_in_their_logs_alone(
    make_output: MakeOutput, tmp_path: Path, capfdbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BAR_SECONDS", 0.0)
    output = make_output(terminal=True)
    for text in (b"\r 10%", b"\r 20%", b"\r100%\n", b"done\n"):
        output.write(text, stream=3)
    output.end()
    assert capfdbinary.readouterr().err == b"[0:1] done\n"
    assert logged(tmp_path, 1) == b"--- attempt 2 ---\n 10%\n 20%\n100%\ndone\n"


def test_a_bar_that_ended_is_printed_though_its_row_stays_the_last_one(
    make_output: MakeOutput, capfdbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make_output()
    output.write(b"\rinside  0%\x1b[A\router  0%\n\r          \x1b[A\router 100%\n", stream=1)
    assert b"100%" not in capfdbinary.readouterr().err
    monkeypatch.setattr(module, "PROMPT_SECONDS", 0.0)
    output.output.poll()
    assert capfdbinary.readouterr().err == b"[0:0] outer 100%\n"
    output.end()
    assert capfdbinary.readouterr().err == b""


def test_the_end_of_a_bar_leaves_no_empty_line(tmp_path: Path) -> None:
    shown = show_on_terminal(tmp_path, 1).replace(b"\r\n", b"\n")
    ended = b"\r 10%" + ERASE_LINE + b"[0:0]  10%line\n" + b"\r 20%" + ERASE_LINE + b"[0:0]  20%\n"
    assert shown == ended


WIDE = """
import sys
from pathlib import Path
from worker_output import Output
output = Output((0,), 0, True, Path(sys.argv[1]))
output.write(b"\\r" + "█".encode() * 50, stream=1)
output.end()
"""


def test_a_bar_is_cut_where_the_terminal_would_wrap_it_and_printed_whole_at_its_end(tmp_path: Path) -> None:
    shown = show_on_terminal(tmp_path, program=WIDE, columns=40).replace(b"\r\n", b"\n").decode()
    assert shown == "\r" + "█" * 39 + ERASE_LINE.decode() + "█" * 50 + "\n", "some wrap at once when the row is full"


ROWS = """
import sys
from pathlib import Path
from worker_output import Output
output = Output((0, 1), 0, False, Path(sys.argv[1]))
output.write(b"\\ra 0\\x1b[A\\rb 0", stream=1)
output.write(b"line\\n", stream=2)
output.write(b"\\rb 1", stream=1)
output.end()
"""


def test_bars_in_several_rows_are_drawn_anew_as_one(tmp_path: Path) -> None:
    shown = show_on_terminal(tmp_path, program=ROWS).replace(b"\r\n", b"\n")
    above = ERASE_LINE + ERASE_ABOVE
    assert shown.startswith(b"\rb 0\na 0" + above + b"[0:1] line\n\rb 0\na 0" + above + b"\rb 1\na 0" + above)


PROMPT = """
import sys
from pathlib import Path
from slipway.launch.attempt.terminal import end_line, say
from worker_output import Output
output = Output((0,), 0, True, Path(sys.argv[1]))
output.write(b"\\r 10%", stream=1)
output.write(b"name? ")
end_line(1)  # Ada, Enter
output.write(b"hello Ada\\nwell? ")
say("stopping")
output.write(b"no\\n")
output.end()
"""


def test_a_prompt_is_there_at_once_and_the_bar_comes_back_behind_the_answer(tmp_path: Path) -> None:
    shown = show_on_terminal(tmp_path, program=PROMPT).replace(b"\r\n", b"\n")
    assert shown.startswith(
        b"\r 10%" + ERASE_LINE + b"name? hello Ada\n\r 10%" + ERASE_LINE + b"well? \nslipway: stopping\nno\n"
    )


MARKED = """
import sys
from pathlib import Path
from worker_output import Output
output = Output((0,), 0, False, Path(sys.argv[1]), builtin=True)
output.write(b"\\r 10%", stream=1)
output.write(b"\\x1fstep 1  loss 2\\nstep 2  loss 1 and more than fits\\n")
output.write(b"\\r 20%", stream=1)
output.write(b"\\r    \\r", stream=1)
output.end()
"""


def test_a_marked_line_is_in_the_log_alone_and_others_are_folded(tmp_path: Path) -> None:
    shown = show_on_terminal(tmp_path, program=MARKED, columns=24).replace(b"\r\n", b"\n")
    wiped = ERASE_LINE + b"[0:0] step 2  loss 1 and\n      more than fits\n"
    assert shown.startswith(b"\r 10%" + wiped + b"\r 10%" + ERASE_LINE + b"\r 20%")
    assert b"step 1" not in shown
    assert logged(tmp_path) == b"--- attempt 2 ---\nstep 1  loss 2\nstep 2  loss 1 and more than fits\n"


RESIZED = """
import sys, termios
from pathlib import Path
from worker_output import Output
output = Output((0,), 0, True, Path(sys.argv[1]))
output.write(b"\\r" + b"a" * 70, stream=1)
termios.tcsetwinsize(2, (24, 40))
output.write(b"\\r" + b"b" * 70, stream=1)
termios.tcsetwinsize(2, (24, 120))
output.write(b"\\r" + b"c" * 70, stream=1)
output.end()
"""


def test_a_bar_follows_the_terminals_width(tmp_path: Path) -> None:
    shown = show_on_terminal(tmp_path, program=RESIZED, columns=80)
    narrower = ERASE_LINE + ERASE_ABOVE  # the terminal has put what was drawn into two rows
    assert shown.startswith(b"\r" + b"a" * 70 + narrower + b"\r" + b"b" * 39 + ERASE_LINE + b"\r" + b"c" * 70)
