"""The workers' output on its way to the console and to a log file per rank."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_output import MakeOutput, Output, logged

from slipway.launch.attempt import worker_output as module

Capture = pytest.CaptureFixture[bytes]
ABOVE = b"--- attempt 2 ---\n"


def test_lines_of_several_carry_node_and_rank(make_output: MakeOutput, capfdbinary: Capture) -> None:
    output = make_output(ranks=(6, 7), node_rank=3)
    for stream, text in enumerate((b"out 6\n", b"err 6\n", b"out 7\n", b"err 7\n")):
        output.write(text, stream)
    output.end()
    assert capfdbinary.readouterr() == (b"[3:6] out 6\n[3:7] out 7\n", b"[3:6] err 6\n[3:7] err 7\n")


def test_who_is_alone_is_passed_through_plain(make_output: MakeOutput, capfdbinary: Capture) -> None:
    output = make_output(ranks=(0,), alone=True)
    output.write(b"plain\n")
    output.end()
    assert capfdbinary.readouterr() == (b"plain\n", b"")


def test_each_rank_has_a_log_that_grows_with_a_line_above_each_attempt(make_output: MakeOutput, tmp_path: Path) -> None:
    for texts in ((b"first\n",), (b"second\n", b"error\n", b"other\n")):
        output = make_output()
        for stream, text in enumerate(texts):
            output.write(text, stream)
        output.end()
    assert logged(tmp_path, 0) == ABOVE + b"first\n" + ABOVE + b"second\nerror\n"
    assert logged(tmp_path, 1) == ABOVE + ABOVE + b"other\n"


def test_a_time_has_the_same_width_always_and_sorts_like_text() -> None:
    moments = [0.0, 0.0004, 1.5, 1_795_000_000.999, 1_795_000_001.0]
    stamps = [module.stamp(moment) for moment in moments]
    assert stamps[0] == stamps[1] == b"1970-01-01T00:00:00.000Z"
    assert stamps[3:] == [b"2026-11-18T11:06:40.999Z", b"2026-11-18T11:06:41.000Z"]
    assert stamps == sorted(stamps)


def test_a_line_in_the_log_has_the_time_at_which_it_came(
    make_output: MakeOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.time, "time", lambda: 1_795_000_000.999)
    output = make_output()
    output.write(b"text\n")
    output.end()
    line = (tmp_path / "rank-0.log").read_bytes().splitlines()[-1]
    assert line == b"2026-11-18T11:06:40.999Z text"


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([b"a\nb\n"], b"a\nb\n"),
        ([b"ha", b"lf\n"], b"half\n"),
        ([b"no newline"], b"no newline\n"),
        ([b"one\nno newline"], b"one\nno newline\n"),
        ([b"\n\n"], b"\n\n"),
        ([], b""),
        ([b"\xff\xfe\n"], b"\xff\xfe\n"),
        (["Grüße ".encode()[:3], "Grüße ".encode()[3:], b"\n"], "Grüße \n".encode()),
        ([b"x" * 60_000, b"x" * 60_000, b"\n"], b"x" * 120_000 + b"\n"),
    ],
)
def test_lines_come_out_whole(
    make_output: MakeOutput, capfdbinary: Capture, tmp_path: Path, texts: list[bytes], shown: bytes
) -> None:
    output = make_output(ranks=(0,), alone=True)
    for text in texts:
        output.write(text)
    output.end()
    assert capfdbinary.readouterr().out == shown
    assert logged(tmp_path) == ABOVE + shown


def test_a_line_without_an_end_is_passed_on_in_pieces(
    make_output: MakeOutput, capfdbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    output = make_output(ranks=(0,), alone=True)
    output.write(b"x" * 1500)
    assert capfdbinary.readouterr().out == b"x" * 1500 + b"\n"
    output.end()


def test_the_newest_lines_of_stderr_are_kept_as_evidence(make_output: MakeOutput) -> None:
    output = make_output()
    output.write(b"from stdout\n\n", stream=0)
    output.write(b"".join(b"%d\n" % number for number in range(3_000)) + b"\xff last", stream=1)
    output.end()
    last = output.output.last
    assert list(last) == [0, 1]
    assert list(output.output.printed[0]) == ["from stdout", ""]
    assert len(last[0]) == module.REMEMBERED
    assert list(last[0])[-2:] == ["2999", "\ufffd last"]
    assert not last[1]


def test_of_a_very_long_line_the_beginning_is_kept(make_output: MakeOutput) -> None:
    output = make_output()
    output.write(b"x" * 10_000 + b"\n", stream=1)
    output.end()
    assert list(output.output.last[0]) == ["x" * module.REMEMBERED_BYTES]


def test_last_words_are_not_lost_when_a_leftover_process_holds_the_pipe(
    make_output: MakeOutput, tmp_path: Path
) -> None:
    output = make_output(ranks=(0,), alone=True)
    held = os.dup(output.output.writers[0])
    os.write(held, b"last words")
    output.output.close_writers()
    output.output.close()
    os.close(held)
    assert logged(tmp_path) == ABOVE + b"last words\n"


PROGRAM = """
import sys
from pathlib import Path
from slipway.cli.cli import open_streams
open_streams()
from worker_output import Output
output = Output((0,), 0, True, Path(sys.argv[1]))
for number in range(3):
    output.write(b"line %d\\n" % number)
    output.write(b"x" * 20_000 + b"\\n", stream=1)
output.end()
sys.exit(75)
"""


def run_program(folder: Path, *words: str, console: int | None = None) -> int:
    """Run the program above in a process of its own, with this as its stdout and stderr."""
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [*words, sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.run(command, env=environ, check=False, stdout=console, stderr=console).returncode


def test_a_console_that_went_away_does_not_end_the_training(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    assert run_program(tmp_path, console=write) == 75
    os.close(write)
    assert logged(tmp_path).count(b"line ") == 3


def test_a_full_disk_behind_the_console_does_not_end_the_training(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run_program(tmp_path, console=full.fileno()) == 75
    assert logged(tmp_path).count(b"line ") == 3


def test_a_console_that_was_never_there_does_not_end_the_training(tmp_path: Path) -> None:
    assert run_program(tmp_path, "sh", "-c", 'exec "$@" >&- 2>&-', "sh") == 75
    assert logged(tmp_path).count(b"line ") == 3


def wait(output: Output) -> None:
    """Let the moment pass after which a line without an end is a prompt."""
    now = time.monotonic() + module.PROMPT_SECONDS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.time, "monotonic", lambda: now)
        assert output.output.poll() == math.inf


def test_a_prompt_of_rank_0_is_shown_after_a_moment_and_its_prefix_once(
    make_output: MakeOutput, capfdbinary: Capture, tmp_path: Path
) -> None:
    output = make_output()
    output.write(b"name? ")
    assert 0 < output.output.poll() <= module.PROMPT_SECONDS
    assert capfdbinary.readouterr().out == b""
    wait(output)
    assert capfdbinary.readouterr().out == b"[0:0] name? "
    output.write(b"hello Ada\nmore\n")
    assert capfdbinary.readouterr().out == b"hello Ada\n[0:0] more\n"
    output.end()
    assert logged(tmp_path) == ABOVE + b"name? hello Ada\nmore\n"


def test_a_line_that_another_rank_came_into_is_begun_again(make_output: MakeOutput, capfdbinary: Capture) -> None:
    output = make_output()
    output.write(b"epoch 1 ... ")
    wait(output)
    output.write(b"other\n", stream=2)
    output.write(b"loss 0.1\n")
    output.end()
    assert capfdbinary.readouterr().out == b"[0:0] epoch 1 ... \n[0:1] other\n[0:0] epoch 1 ... loss 0.1\n"


def test_of_ranks_that_nobody_can_answer_lines_are_shown_whole(make_output: MakeOutput, capfdbinary: Capture) -> None:
    output = make_output()
    output.write(b"half ", stream=2)
    wait(output)
    assert capfdbinary.readouterr().out == b""
    output.write(b"a line\n", stream=2)
    output.end()
    assert capfdbinary.readouterr().out == b"[0:1] half a line\n"


def test_what_comes_on_stderr_does_not_break_a_line_in_another_file(
    make_output: MakeOutput, capfdbinary: Capture
) -> None:
    output = make_output(ranks=(0,), alone=True)
    output.write(b"name? ")
    wait(output)
    output.write(b"warning\n", stream=1)
    output.end()
    assert capfdbinary.readouterr() == (b"name? \n", b"warning\n")
