"""The watcher inside a process, asked over a socket; no torch is needed."""

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import wait_until

from slipway.launch.hangs.watch import Stillness
from slipway.process import watcher


@contextmanager
def watched(program: str, *options: str, **more: str) -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    with socket.socket(socket.AF_UNIX) as listening:
        name = f"slipway-test-{secrets.token_hex(8)}"
        listening.bind(f"\0{name}")
        listening.listen()
        listening.settimeout(20)
        environ = {**os.environ, "SLIPWAY_WATCHER": name, "LOCAL_RANK": "0", "RANK": "3", **more}
        process = subprocess.Popen(
            [sys.executable, *options, "-c", program],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            link, _ = listening.accept()
            with link:
                link.settimeout(20)
                yield link, process
        finally:
            process.kill()
            process.communicate()


def ask(link: socket.socket, question: str) -> dict[str, object]:
    link.sendall(f"{question}\n".encode())
    return read(link)


def asked(link: socket.socket, threads: object) -> dict[str, object] | None:
    """The answer to `all`, once its threads stand so."""
    answer = ask(link, "all")
    return answer if answer["threads"] == threads else None


def read(link: socket.socket) -> dict[str, object]:
    text = b""
    while not text.endswith(b"\n"):
        chunk = link.recv(1 << 16)
        assert chunk
        text += chunk
    content = json.loads(text)
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("options", [(), ("-P",), ("-s",)], ids=" ".join)
def test_it_says_where_the_program_stands(options: tuple[str, ...]) -> None:
    program = "import time\ndef load():\n    time.sleep(100)\nload()"
    with watched(program, *options) as (link, process):
        assert read(link) == {"pid": process.pid, "rank": 3}
        stands = [["MainThread", True, [["<string>", 3, "load"], ["<string>", 4, "<module>"]]]]
        answer = wait_until(lambda: asked(link, threads=stands), "the program to sleep in load()")
        assert answer["records"] == []
        assert answer["members"] == {}
        assert ask(link, "numbers") == {"records": []}


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_a_python_that_is_to_ignore_variables_ignores_ours(option: str) -> None:
    program = "import os, sys\nprint('SLIPWAY_WATCHER' in os.environ, 'slipway.process.watcher' in sys.modules)"
    told = {**os.environ, "SLIPWAY_WATCHER": "slipway-test-nobody", "LOCAL_RANK": "0", "RANK": "3"}
    said = subprocess.run([sys.executable, option, "-c", program], env=told, capture_output=True, text=True, check=True)
    assert said.stdout == "True False\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_what_another_user_listens_at_gets_no_answer() -> None:
    name, (told, tell) = f"slipway-test-{secrets.token_hex(8)}", os.pipe()
    if not (listener := os.fork()):
        os.setuid(65_534)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"\0{name}")
            listening.listen()
            os.write(tell, b"1")
            link, _ = listening.accept()
            os._exit(len(link.recv(1)))  # nothing, and then the end
    os.read(told, 1)
    environ = {**os.environ, "SLIPWAY_WATCHER": name, "LOCAL_RANK": "0", "RANK": "3"}
    process = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(1)"], env=environ)
    try:  # the connection ends with the process, if not before: what was sent until then counts
        assert os.waitstatus_to_exitcode(os.waitpid(listener, 0)[1]) == 0, "nothing was sent"
    finally:
        process.kill()
        process.wait()
        os.close(told)
        os.close(tell)


def test_the_program_and_what_it_starts_find_nothing_in_their_environment() -> None:
    program = "import os, sys, threading, time\ntime.sleep(2)\nprint([n for n in os.environ if 'WATCH' in n], threading.active_count(), 'torch' in sys.modules)"
    with watched(program) as (_, process):
        out, error = process.communicate(timeout=20)
    assert (out, error, process.returncode) == ("[] 1 False\n", "", 0)


def test_modules_are_found_as_without_it(tmp_path: Path) -> None:
    """Whatever the program has a file of that name of: the watcher imports nothing that the program would find imported."""
    names = ("json", "select", "socket", "typing", "contextlib", "signal", "_socket", "ctypes", "enum")
    names = tuple(name for name in names if name not in sys.builtin_module_names)  # Debian builds in more than others
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        f"print([name for name in {names} if not __import__(name).__file__.startswith({str(tmp_path)!r})])"
    )
    with watched(program, "-P") as (_, process):
        out, error = process.communicate(timeout=20)
    assert (out, error) == ("[]\n", "")


JOINS = """
import os, time
os.environ["MASTER_PORT"] = "12355"
def _create_c10d_store(hostname, port):
    time.sleep(100)
_create_c10d_store({!r}, {})
"""
KEPT = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "node0", "MASTER_PORT": "29501"}


@pytest.mark.parametrize(
    ("host", "port", "more", "store"),
    [
        ("localhost", 12355, KEPT, ["localhost", "12355", "node0", "29501"]),
        ("localhost", 29501, KEPT, ["localhost", "29501", "node0", "29501"]),
        ("node0", 29501, KEPT, []),
        ("localhost", 12355, {**KEPT, "TORCHELASTIC_USE_AGENT_STORE": "False"}, []),  # rank 0 starts it there
    ],
)
def test_it_says_which_store_other_than_torchruns_the_program_waits_for(
    host: str, port: int, more: dict[str, str], store: list[str]
) -> None:
    with watched(JOINS.format(host, port), **more) as (link, _):
        read(link)

        def joins() -> dict[str, object] | None:
            answer = ask(link, "all")
            return answer if "_create_c10d_store" in str(answer["threads"]) else None

        assert wait_until(joins, "the program to join")["store"] == store


def test_odd_names_arrive_whole() -> None:
    program = "import time\nexec(compile('def f():\\n time.sleep(100)\\nf()', 'a \"ü\\n', 'exec'))"
    with watched(program) as (link, _):
        read(link)
        stands = [["MainThread", True, [['a "ü\n', 2, "f"], ['a "ü\n', 3, "<module>"], ["<string>", 2, "<module>"]]]]
        wait_until(lambda: asked(link, threads=stands), "the program to sleep in f()")


def test_a_fork_stays_without_a_warning_and_the_parent_is_watched_on() -> None:
    program = (
        "import os, time, warnings\nwarnings.simplefilter('error')\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        os._exit(len(os.listdir('/proc/self/task')) - 1)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "print('forked', flush=True)\ntime.sleep(100)"
    )
    with watched(program) as (link, process):
        read(link)
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        stands = [["MainThread", True, [["<string>", 9, "<module>"]]]]
        wait_until(lambda: asked(link, threads=stands), "the program to sleep")


def test_files_of_children_are_theirs(tmp_path: Path) -> None:
    """They may have the numbers that the watcher's had in the parent, and fork themselves."""
    program = (
        "import os, sys\n"
        "pid = os.fork()\n"
        "if pid:\n"
        "    sys.exit(os.waitpid(pid, 0)[1])\n"
        "files = [open(f'{sys.argv[1]}/{number}', 'wb', buffering=0) for number in range(6)]\n"
        "pid = os.fork()\n"
        "for file in files:\n"
        "    file.write(b'x')\n"
        "if pid:\n"
        "    os.waitpid(pid, 0)\n"
    )
    script = tmp_path / "forks.py"
    script.write_text(program)
    with watched(f"import runpy, sys; sys.argv = ['', {str(tmp_path)!r}]; runpy.run_path({str(script)!r})") as (
        _,
        process,
    ):
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (0, "", "")
    assert [(tmp_path / str(number)).read_bytes() for number in range(6)] == [b"xx"] * 6


def test_a_signal_that_the_program_blocks_waits() -> None:
    program = (
        "import os, signal, time\n"
        "time.sleep(1)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(0.5)\n"
        "print('saved', flush=True)\n"
    )
    with watched(program) as (_, process):
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "saved\n")


@pytest.mark.parametrize(
    ("scope", "imported", "done", "asked"),
    [
        (None, True, True, []),  # a kernel without Yama
        ("0", True, True, []),
        ("1", True, True, [(0x59616D61, -1)]),
        ("1", False, False, []),  # who imports no ctypes imports no torch
    ],
)
def test_py_spy_is_allowed_where_yama_keeps_it_to_parents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str | None, imported: bool, done: bool, asked: list[object]
) -> None:
    called: list[object] = []
    library = SimpleNamespace(prctl=lambda option, value, *rest: called.append((option, value)) or 0)
    monkeypatch.setitem(sys.modules, "ctypes", SimpleNamespace(CDLL=lambda name: library, c_long=int))
    if not imported:
        monkeypatch.delitem(sys.modules, "ctypes")
    monkeypatch.setattr(watcher, "YAMA", str(tmp_path / "ptrace_scope"))
    if scope is not None:
        (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
    assert watcher.allow_debuggers() is done
    assert called == asked


def test_a_launcher_that_is_gone_is_nothing_to_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "print('well')"],
        env={**os.environ, "SLIPWAY_WATCHER": "slipway-nobody", "LOCAL_RANK": "0", "RANK": "x"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("well\n", "", 0)


def test_only_a_worker_is_watched() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"} | {
        "SLIPWAY_WATCHER": "slipway-nobody"
    }
    program = "import os, sys\nprint('SLIPWAY_WATCHER' in os.environ, 'slipway' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=20)
    assert done.stdout == "True False\n"


def test_stillness_counts_only_what_was_looked_at() -> None:
    still = Stillness(0.0, 1.0)
    still.poll("a", 1.0)
    still.poll("a", 2.0)
    assert still.seconds == 1.0
    still.poll("a", 1000.0)  # we were frozen
    assert still.seconds == 7.0
    still.poll("b", 1001.0)
    assert still.seconds == 0.0


CLOSES = """
import os, sys, time
os.closerange(3, 256)
opened = [open(f"log-{number}.txt", "w+") for number in range(8)]
"""
ONE_THREAD = """
while len(os.listdir("/proc/self/task")) > 1:
    time.sleep(0.01)
"""
READS = """
for file in opened:
    file.write("line")
    file.flush()
    file.seek(0)
print([file.read() for file in opened], flush=True)
"""


def test_a_program_that_closes_what_it_did_not_open_has_its_files_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files get the watcher's numbers: whoever polls these is always told that there is something to read, and spins."""
    monkeypatch.chdir(tmp_path)
    waits = 'import os, time\nwhile not os.path.exists("go"):\n    time.sleep(0.01)\n'
    with watched(waits + CLOSES + ONE_THREAD + READS) as (link, process):
        assert read(link)["rank"] == 3
        (tmp_path / "go").touch()
        out, error = process.communicate(timeout=60)
        assert (out, error) == (f"{['line'] * 8}\n", "")
    assert [file.read_text() for file in sorted(tmp_path.glob("log-*.txt"))] == ["line"] * 8


@pytest.mark.parametrize("before", range(8), ids="after file {}".format)
def test_a_program_closes_what_it_did_not_open_before_the_watcher_listens(before: int, tmp_path: Path) -> None:
    """What the thread opened itself could get the number of one of the watcher's other files: it waited for ever."""
    name = f"slipway-test-{secrets.token_hex(8)}"
    program = (
        f"from slipway.process.watcher import Watcher\nlate = Watcher({name!r})\n{CLOSES}"
        f"opened = opened[:{before}]\nlate.start()\nlate._ended.acquire()\n{READS}"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        ran = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "RANK": "3"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (ran.stdout, ran.stderr) == (f"{['line'] * before}\n", "")
