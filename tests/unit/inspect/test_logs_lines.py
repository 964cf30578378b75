"""The logs of all ranks as one stream: in the order of time, whatever the files hold."""

from __future__ import annotations

import heapq
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.inspect import logs as module
from slipway.inspect.logs import (
    PARENTS,
    Failures,
    Line,
    LogFile,
    Wanted,
    find_logs,
    parse_numbers,
    read_log_lines,
    readable,
    tell_elsewhere,
)
from slipway.launch.attempt.worker_output import stamp
from slipway.protocol.files import write_json

ABOVE = "--- attempt {}, 2026-11-21 16:00:0{} UTC ---"
START = 1_795_276_800.0  # 2026-11-21 16:00:00 UTC


def at(seconds: float, text: str) -> str:
    return f"{stamp(START + seconds).decode()} {text}"


def write(run: Path, node: int, name: str, *lines: str) -> Path:
    file = run / f"node-{node}" / "logs" / f"{name}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def read(run: Path, wanted: Wanted = Wanted()) -> list[Line]:  # noqa: B008  # frozen
    return [line for line in read_log_lines(run, wanted.takes_file, wanted.takes, lambda: False) if line]


def texts(run: Path, wanted: Wanted = Wanted()) -> list[str]:  # noqa: B008
    return [line.text for line in read(run, wanted)]


def test_lines_of_all_nodes_come_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank-0", ABOVE.format(1, 0), at(1, "a"), at(3, "c"))
    write(tmp_path, 1, "rank-10", ABOVE.format(1, 0), at(2, "b"), at(4, "d"))
    found = read(tmp_path)
    assert [(line.text, line.node, line.rank, line.attempt) for line in found] == [
        ("a", 0, 0, 1), ("b", 1, 10, 1), ("c", 0, 0, 1), ("d", 1, 10, 1),
    ]  # fmt: skip
    assert found[0].stamp == "2026-11-21T16:00:01.000Z"


def test_an_attempt_comes_before_the_next_whatever_the_clocks_say(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank-0", ABOVE.format(1, 0), at(1, "a1"), ABOVE.format(2, 5), at(5, "a2"))
    write(tmp_path, 1, "rank-1", ABOVE.format(1, 0), at(101, "b1"), ABOVE.format(2, 5), at(105, "b2"))
    assert texts(tmp_path) == ["a1", "b1", "a2", "b2"]


def test_what_torchrun_said_stands_behind_its_attempt(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank-0", ABOVE.format(1, 0), at(1, "a1"), ABOVE.format(2, 5), at(5, "a2"))
    write(tmp_path, 0, "torchrun", ABOVE.format(1, 0), "t1", "t1 too", ABOVE.format(2, 5), "t2")
    write(tmp_path, 0, "spawn", ABOVE.format(2, 5), "s2")
    found = read(tmp_path)
    assert [line.text for line in found] == ["a1", "t1", "t1 too", "a2", "s2", "t2"]
    assert {line.rank for line in found} == {0, *PARENTS.values()}


def test_logs_from_before_there_were_times_are_shown_in_step(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank-0", "a1", "a2", ABOVE.format(2, 5), "a3")
    write(tmp_path, 0, "rank-1", "b1", "b2", ABOVE.format(2, 5), at(6, "b3"))
    found = read(tmp_path)
    assert [line.text for line in found] == ["a1", "b1", "a2", "b2", "a3", "b3"]
    assert [line.attempt for line in found] == [1, 1, 1, 1, 2, 2]
    assert [bool(line.stamp) for line in found] == [False] * 5 + [True]


def test_a_line_that_looks_like_ours_is_the_scripts_own(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank-0", ABOVE.format(1, 0), at(1, ABOVE.format(7, 0)), at(2, at(0, "x")))
    assert [(line.attempt, line.text) for line in read(tmp_path)] == [(1, ABOVE.format(7, 0)), (1, at(0, "x"))]


def test_a_clock_that_is_set_back_loses_nothing_and_keeps_a_ranks_order(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, 0, f"rank-{rank}", at(100, f"{rank} a"), at(1, f"{rank} b"), at(2, f"{rank} c"))
    found = texts(tmp_path)
    assert sorted(found) == ["0 a", "0 b", "0 c", "1 a", "1 b", "1 c"]
    for rank in "01":
        assert [text for text in found if text.startswith(rank)] == [f"{rank} a", f"{rank} b", f"{rank} c"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain \xc3\xbc", "plain ü"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"a\tb", "a\tb"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07\x00", "\ufffd]0;title\ufffd\ufffd"),
        (b" 10%\r 20%\r", " 20%"),
        (b"windows\r", "windows"),
        (b"", ""),
    ],
)
def test_nothing_in_a_line_reaches_into_the_terminal(raw: bytes, text: str) -> None:
    assert readable(raw) == text


@given(st.binary(max_size=2000), st.integers(1, 50))
def test_any_bytes_are_lines_and_each_piece_size_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, piece: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "rank-0.log"
    file.write_bytes(content)
    whole = list(LogFile(file, 0, 0).lines(over=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", piece)
        assert list(LogFile(file, 0, 0).lines(over=True)) == whole
    assert all(
        line.text.isprintable() or "\t" in line.text for line in whole if not re.search(r"[^\x20-\x7e]", line.text)
    )
    headers = sum(bool(module._HEADER.fullmatch(raw)) for raw in content.split(b"\n"))
    assert len(whole) == len(content.removesuffix(b"\n").split(b"\n")) - headers if content else not whole


def test_a_line_without_an_end_is_taken_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 10)
    monkeypatch.setattr(module, "LONGEST", 25)
    assert [len(text) for text in _written(tmp_path, b"x" * 70)] == [30, 30, 10]


def _written(run: Path, content: bytes) -> list[str]:
    write(run, 0, "rank-0").write_bytes(content)
    return texts(run)


def test_what_comes_later_follows_and_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    file = write(tmp_path, 0, "rank-0", at(1, "a"))
    log = LogFile(file, 0, 0)
    assert [line.text for line in log.lines(over=False)] == ["a"]
    with file.open("a") as more:
        more.write(at(2, "b") + "\n" + at(3, "ha"))
        more.flush()
        assert [line.text for line in log.lines(over=False)] == ["b"]
        more.write("lf")
    assert [line.text for line in log.lines(over=True)] == ["half"]


def test_following_takes_in_logs_that_begin_later_and_ends_with_the_run(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank-0", at(1, "a"))
    going = iter([True, False])

    def going_on() -> bool:
        if goes := next(going):
            return goes
        write(tmp_path, 1, "rank-1", at(2, "b"))
        return False

    wanted = Wanted()
    found = list(read_log_lines(tmp_path, wanted.takes_file, wanted.takes, going_on))
    assert [line and line.text for line in found] == ["a", None, "b", None]


def test_only_logs_are_taken_for_logs(tmp_path: Path) -> None:
    for name in ("rank-0", "rank-x", "nccl-attempt-1-rank-0", "torchrun"):
        write(tmp_path, 0, name, "x")
    (tmp_path / "node-x" / "logs").mkdir(parents=True)
    (tmp_path / "node-x" / "logs" / "rank-1.log").touch()
    assert [log.path.name for log in find_logs(tmp_path)] == ["torchrun.log", "rank-0.log"]


def test_files_are_merged_as_sorted_lines_are() -> None:
    lines = [Line(1, float(time), 0, 0, rank, "", "") for time in range(3) for rank in range(3)]
    assert list(heapq.merge(*(lines[rank::3] for rank in range(3)))) == lines


WANTED = {
    "rank": (Wanted(ranks=parse_numbers("1,7-9")), ["b", "no Error"]),
    "node": (Wanted(nodes=parse_numbers("1")), ["c", "second"]),
    "attempt": (Wanted(attempts=parse_numbers("2")), ["second"]),
    "pattern": (Wanted(pattern=re.compile("^[ac]$")), ["a", "c"]),
    "since": (Wanted(since=START + 2), ["b", "c", "no Error", "second"]),
    "until": (Wanted(until=START + 2), ["a", "b"]),
}


@pytest.mark.parametrize("name", WANTED)
def test_what_is_wanted(tmp_path: Path, name: str) -> None:
    write(tmp_path, 0, "rank-0", ABOVE.format(1, 0), at(1, "a"))
    write(tmp_path, 0, "rank-1", ABOVE.format(1, 0), at(2, "b"), at(4, "no Error"))
    write(tmp_path, 0, "torchrun", ABOVE.format(1, 0), "t")
    write(tmp_path, 1, "rank-2", ABOVE.format(1, 0), at(3, "c"), ABOVE.format(2, 5), at(6, "second"))
    wanted, found = WANTED[name]
    assert texts(tmp_path, wanted) == found


@pytest.mark.parametrize("text", ["", "x", "1-", "3-1", "-1", "1,,2", "1.5", "9999999999"])
def test_what_is_no_list_of_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 0,3-5"):
        parse_numbers(text)


SAID = """\
training
  an indented line
[rank1]: Traceback (most recent call last):
[rank1]:   File "x.py", line 1, in <module>
[rank1]:     raise ValueError("boom")

[rank1]: ValueError: boom
step 3 error 0.1
Traceback (most recent call last):
  File "x.py", line 3, in g
KeyboardInterrupt
Current thread 0x00007f (most recent call first):
  File "x.py", line 2 in f
step 4
NCCL WARN Call to bind failed
RuntimeError: CUDA error: device-side assert triggered
tokens/s 5""".splitlines()


def test_tracebacks_and_failures_are_told_from_the_rest() -> None:
    failures = Failures()
    told = [text for text in SAID if failures.take(Line(1, 0.0, 0, 0, 1, "", text))]
    assert told == [
        text
        for text in SAID
        if text not in ("training", "  an indented line", "step 3 error 0.1", "step 4", "tokens/s 5")
    ]


def test_a_traceback_is_each_ranks_own() -> None:
    failures = Failures()
    lines = [Line(1, 0.0, 0, 0, rank, "", text) for text in SAID for rank in (1, 2)]
    kept = [(line.rank, line.text) for line in lines if failures.take(line)]
    assert [text for rank, text in kept if rank == 1] == [text for rank, text in kept if rank == 2] != SAID


def test_the_nodes_whose_logs_are_elsewhere_are_named(tmp_path: Path) -> None:
    assert "no logs" in tell_elsewhere(tmp_path)
    write(tmp_path, 1, "rank-1", "x")
    assert tell_elsewhere(tmp_path) == ""
    write_json(tmp_path / "node-1" / "plan.json", {"topology": {"nodes": 3}})
    assert "nodes 0, 2 are not here" in tell_elsewhere(tmp_path)
    write_json(tmp_path / "run.json", {"nodes": 6})
    assert "nodes 0, 2-5 are not here" in tell_elsewhere(tmp_path)
    write(tmp_path, 0, "rank-0", "x")
    (tmp_path / "node-1" / "plan.json").write_text(json.dumps({"topology": 3}))
    write_json(tmp_path / "run.json", {"nodes": 2})
    assert tell_elsewhere(tmp_path) == ""
