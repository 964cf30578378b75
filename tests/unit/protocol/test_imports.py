"""What a script changed before it imported torch, in programs that import a small `torch` of the test's own."""

import json
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.protocol.imports import Imports, lines, reason

FAKE = {
    "numpy.py": "",
    "torch/__init__.py": "import ctypes, numpy\nfrom torch import nn\n",
    "torch/nn.py": "",
    "torch/_dynamo.py": "",
}


def imports_of(program: str, folder: Path, **more: str) -> list[dict[str, object]]:
    """What the watcher of such a program reports."""
    for name, text in FAKE.items():
        (folder / "libraries" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "libraries" / name).write_text(text)
    (folder / "script.py").write_text(program)
    with socket.socket(socket.AF_UNIX) as listening:
        name = f"slipway-test-{secrets.token_hex(8)}"
        listening.bind(f"\0{name}")
        listening.listen()
        listening.settimeout(20)
        libraries = f"{folder / 'libraries'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
        environ = {
            **os.environ,
            "SLIPWAY_WATCHER": name,
            "LOCAL_RANK": "0",
            "RANK": "0",
            "PYTHONPATH": libraries,
            **more,
        }
        process = subprocess.Popen(
            [sys.executable, "-u", "script.py"], cwd=folder, env=environ, stdin=subprocess.DEVNULL
        )
        link, _ = listening.accept()
        with link, link.makefile() as said:
            told = [json.loads(line) for line in said]
        process.wait(20)
    return [line["imports"] for line in told if "imports" in line]


THREAD = "import threading\nhalt = threading.Event()\nthreading.Thread(target=halt.wait, daemon=True).start()"
FINDER = "import sys\nclass Finder:\n    def find_spec(self, name, path, target=None): pass\nsys.meta_path.insert(0, Finder())"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("", ""),
        ("import sys, json, argparse, logging\nlogging.basicConfig()", ""),
        ("import os; os.environ['TOKENIZERS_PARALLELISM'] = 'false'; os.environ['NCCL_DEBUG'] = 'INFO'", ""),
        ("import os; os.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'", ""),
        ("import warnings; warnings.filterwarnings('ignore')", ""),
        ("import sys; sys.path.insert(0, '/nowhere')", ""),
        ("import signal; signal.signal(signal.SIGTERM, print)", ""),
        ("import os; os.environ['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS was set or changed"),
        ("import os; os.environ['MKL_NUM_THREADS'] = '1'", "MKL_NUM_THREADS was set or changed"),
        ("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '3'", "CUDA_VISIBLE_DEVICES was set or changed"),
        ("import os; os.environ.pop('KMP_BLOCKTIME')", "KMP_BLOCKTIME was set or changed"),
        ("import os; os.environ['TORCH_LOGS'] = 'dynamo'", "TORCH_LOGS was set or changed"),
        ("import os; os.putenv('OMP_NUM_THREADS', '1')", "OMP_NUM_THREADS was set or changed"),
        ("import os\nimport numpy\nos.environ['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS was set or changed"),
        (FINDER, "an import hook was installed"),
        ("import builtins\nreal = builtins.__import__\nbuiltins.__import__ = lambda *a, **k: real(*a, **k)", "builtins.__import__"),
        ("import warnings; warnings.simplefilter('error')", "the filters of warnings were changed"),
        ("import warnings; warnings.resetwarnings()", "the filters of warnings were changed"),
        ("import sys, io; sys.stderr = io.StringIO()", "sys.stdin, sys.stdout or sys.stderr was replaced"),
        ("import locale; locale.setlocale(locale.LC_ALL, 'C')", "the locale was changed"),
        ("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "the process was bound to other cores"),
        (THREAD, "a thread was started"),
        ("import sys; sys.settrace(lambda *_: None)", "the program is traced"),
        ("import sys; sys.setprofile(lambda *_: None)", "the program is traced"),
        ("import time; time.sleep = lambda seconds: None", "time.sleep was replaced"),
        ("import logging\nclass Mine(logging.Logger): pass\nlogging.setLoggerClass(Mine)", "loggers have another class"),
        ("import logging; logging.getLogger('torch.distributed')", "the logger torch"),
        ("import os\nif not os.fork(): os._exit(0)\nos.wait()", "a process was forked"),
        ("import sys; sys.path.append('.')", "sys.path has a relative entry"),
    ],
)  # fmt: skip
def test_a_change_that_counts_is_reported_and_no_other(tmp_path: Path, before: str, why: str) -> None:
    if "sched" in before and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one core")
    more = {"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "2", "KMP_BLOCKTIME": "1"}
    [told] = imports_of(f"{before}\nimport torch\nprint(torch.nn)", tmp_path, **more)
    assert str(told["why"]).startswith(why) if why else told["why"] == "", told["why"]
    assert bool(told["modules"]) == (not why)


def test_the_modules_are_reported_in_order_with_their_files_and_what_comes_later_of_torch(tmp_path: Path) -> None:
    first, later = imports_of(
        "import json\nimport torch\nimport os\nos.environ['TORCHDYNAMO_DISABLE'] = '1'\nimport torch._dynamo", tmp_path
    )
    imports = Imports().take(first)
    names = [name for name, _ in imports.modules]
    assert names.index("json") < imports.early <= names.index("numpy") < names.index("torch.nn") < names.index("torch")
    assert dict(imports.modules)["numpy"] == str(tmp_path / "libraries" / "numpy.py")
    assert imports.take(later).dynamo == "TORCHDYNAMO_DISABLE was set or changed"


@pytest.mark.parametrize(
    ("program", "why"),
    [("print(1)", None), ("import json", None), ("import torch.nonexistent", "")],  # of which torch itself is there
)
def test_whether_the_next_attempt_may_be_warm_is_known_once_torch_was_imported(
    tmp_path: Path, program: str, why: str | None
) -> None:
    assert reason([Imports().take(told) for told in imports_of(program, tmp_path)]) == why


def test_a_torch_that_cannot_be_imported_is_no_reason_to_import_it_early(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('none')")
    [told] = imports_of("try:\n    import torch\nexcept RuntimeError:\n    pass", tmp_path)
    assert told["why"] == "its import of torch failed"


def test_a_traceback_shows_nothing_of_the_one_that_looks_on(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "script.py").write_text("import broken\n")
    texts = []
    for more in ({}, {"SLIPWAY_WATCHER": "nobody", "LOCAL_RANK": "0", "RANK": "0"}):
        words = [sys.executable, "script.py"]
        ended = subprocess.run(
            words, cwd=tmp_path, env={**os.environ, **more}, capture_output=True, text=True, check=False
        )
        texts.append(ended.stderr)
    assert texts[0] == texts[1]
    assert "ZeroDivisionError" in texts[0]


def test_all_ranks_decide_whether_the_next_attempt_may_be_warm() -> None:
    good, bad, none = Imports(why=""), Imports(why="a thread was started"), Imports()
    assert reason([good, good]) == ""
    assert reason([good, bad, none]) == "a thread was started"
    assert reason([good, none]) is None
    assert reason([]) is None


@pytest.mark.parametrize(
    "said", [{}, {"why": ""}, {"why": "", "early": 1, "modules": [1]}, {"why": "", "early": "x", "modules": []}]
)
def test_a_report_that_makes_no_sense_is_refused(said: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Imports().take(said)


def test_the_process_that_imports_them_reads_a_line_for_each_module() -> None:
    imports = Imports("", (("a", "/a.py"), ("b", ""), ("bad\nname", "")), 1)
    assert lines(imports) == "1\na\t/a.py\nb\t\n"
