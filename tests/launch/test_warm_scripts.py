"""Scripts print the same in a warm restart as in a cold start, or their restart is cold. No launcher is needed for that: see
cold_and_warm.py.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from cold_and_warm import Ran, run_cold, run_warm, script_standby
from ports import take_port


class Script(NamedTuple):
    """A script, files beside it, variables beside FREE_PORT; `words` start it. `cold`: why its restart is; empty: it is warm."""

    text: str
    files: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    words: tuple[str, ...] = ("script.py",)
    cold: str = ""  # how the reason begins why its restart is cold; "-": no reason is reported, or it is warm


ENVIRON = """
import os
def show(): print({k: v for k, v in sorted(os.environ.items()) if not k.startswith(FROM_TORCHRUN)})
FROM_TORCHRUN = "TORCHELASTIC", "SLIPWAY", "ROLE", "GROUP", "MASTER", "TORCH_NCCL"
show()
import torch
show()
import torch._dynamo
show()
"""
STATE = """
import gc, sys, signal, os, faulthandler, locale, threading
import torch
print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), sys.gettrace(), sys.getrecursionlimit(), oct(os.umask(0)))
print([signal.getsignal(number) for number in (1, 2, 10, 12, 15, 17)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(faulthandler.is_enabled(), locale.setlocale(locale.LC_ALL), sorted(os.listdir("/proc/self/fd")), os.getpriority(0, 0))
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.encoding, sys.flags, repr(sys.stdin.read()))
print(threading.current_thread() is threading.main_thread(), threading.main_thread().native_id == os.getpid())
print(open("/proc/self/cmdline").read(), os.getcwd() == os.path.dirname(os.path.abspath(__file__)))
"""
MAIN = """
import torch, sys, inspect, pickle, os
class A: pass
print(__name__, os.path.basename(__file__), __spec__, sorted(globals()), sys.argv, sys.path[0] == os.getcwd(), sys.orig_argv[1:])
print(inspect.getsource(A), pickle.dumps(A))
import __main__
print(__main__.A is A)
"""
POOLS = """
import multiprocessing as mp, torch
def double(x): return 2 * x, torch.ones(x).sum().item(), __name__
if __name__ == "__main__":
    for kind in ("spawn", "forkserver"):
        with mp.get_context(kind).Pool(1) as pool: print(pool.map(double, [1, 2]))
"""
FORKED = """
import multiprocessing as mp, torch
def double(x): return 2 * x, __name__, "torch" in __import__("sys").modules
with mp.get_context("fork").Pool(1) as pool: print(pool.map(double, [1, 2]))
"""
LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor([index])
if __name__ == "__main__":
    torch.manual_seed(0)
    print([batch.flatten().tolist() for batch in DataLoader(Numbers(), 2, shuffle=True, num_workers=2)])
    print([batch.flatten().tolist() for batch in DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context="spawn")])
"""
DDP = """
import os, torch, torch.distributed as dist
os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["FREE_PORT"]}
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step(), optimizer.zero_grad()
print([parameter.flatten().tolist() for parameter in model.parameters()])
dist.destroy_process_group()
"""
FINDER = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "torch.nn": print("asked")
sys.meta_path.insert(0, Finder())
import torch
"""
STDERR = """
import sys
class Loud:
    def __init__(self, stream): self._stream = stream
    def write(self, text): return self._stream.write(text.upper())
    def flush(self): self._stream.flush()
sys.stderr = Loud(sys.stderr)
import torch, logging
logging.getLogger("torch").error("said")
"""
REPORTED = "import os, torch\nif not os.fork(): os._exit(0)\nos.wait()"  # the watcher's thread has reported all where a process forks
THREADS = "import torch\nprint(torch.get_num_threads())"

SCRIPTS = {
    "which modules there are": Script("import sys\nprint(list(sys.modules))\nimport torch\nprint(list(sys.modules))"),
    "attributes of packages": Script(
        "import importlib, concurrent, xml\nprint(dir(importlib), dir(concurrent), dir(xml))\nimport torch\n"
        "print(dir(importlib), hasattr(torch, '_dynamo'))\nimport torch._dynamo\nprint(hasattr(torch, '_dynamo'))"
    ),
    "specs are looked for": Script(
        "import importlib.util, importlib.metadata\nspec = importlib.util.find_spec('torch')\nprint(spec)\n"
        "print(importlib.metadata.version('torch'))\nimport torch\nprint(torch.__spec__ == spec)"
    ),
    "what it is as a main module": Script(MAIN),
    "the state of the process": Script(STATE),
    "its variables": Script(ENVIRON),
    "a module is run": Script(
        "import sys, os, torch\nprint(__name__, __package__, __spec__.name, sys.argv[1:], sys.path[0] == os.getcwd(), sys.orig_argv[1:])",
        files={"pkg/__init__.py": "", "pkg/train.py": "from runpy import run_path\nrun_path('script.py', vars())"},
        words=("-m", "pkg.train", "a"),
    ),
    "a folder is run": Script(
        "import sys, torch\nprint(sys.argv, __name__, __package__, __spec__.name)",
        files={"app/__main__.py": "from runpy import run_path\nrun_path('script.py', vars())"},
        words=("app", "a"),
    ),
    "functions come from another file": Script("exec(compile('import torch\\nraise KeyError(1)', 'other.py', 'exec'))"),
    "torch is imported by a coroutine": Script(
        "import asyncio\nasync def main():\n    import torch\n    print(torch.ones(2))\nasyncio.run(main())"
    ),
    "a package imports site": Script(
        "import colorama, torch\nprint(colorama.site.__name__)",
        files={"colorama.py": "import site"},  # as NVIDIA's cuda-pathfinder does, which torch 2.14 imports
        variables={"PYTHONPATH": "."},
    ),
    "an alarm comes during the import": Script(
        "import signal, time\nseen = []\nsignal.signal(signal.SIGALRM, lambda *_: seen.append('alarm'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\nimport torch\nwhile not seen: time.sleep(0.01)\nprint(seen)"
    ),
    "stdout is led elsewhere": Script(
        "import os\nkept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)\nos.dup2(nothing, 1)\nprint('lost')\nimport torch\n"
        "os.dup2(kept, 1)\nprint('back', sorted(os.listdir('/proc/self/fd')))"
    ),
    "it is taken down": Script(
        "import torch, weakref, atexit\nclass A:\n    def __del__(self): print('deleted')\na = A()\n"
        "weakref.finalize(a, print, 'final')\natexit.register(print, 'exit')"
    ),
    "classes were made before": Script(
        "import dataclasses, enum, pickle, re\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\nclass E(enum.Enum): A = 1\n"
        "pattern = re.compile('x', re.I)\nimport torch, dataclasses as again\n"
        "print(again.is_dataclass(A), pickle.loads(pickle.dumps((E.A, pattern, torch.ones(2)))), isinstance(re.I, enum.Flag))"
    ),
    "numpy is set up before": Script(
        "import numpy as np\nnp.seterr(all='raise'); np.random.seed(0); np.set_printoptions(precision=2)\nimport torch\n"
        "print(np.geterr(), np.random.rand(2), torch.from_numpy(np.ones(2)))"
    ),
    "a signal ends it": Script(f"{REPORTED}\nimport signal; os.kill(os.getpid(), signal.SIGTERM)"),
    "an interrupt ends it": Script(f"{REPORTED}\nimport signal; os.kill(os.getpid(), signal.SIGINT)"),
    "an exception has a hook": Script("import sys\nsys.excepthook = lambda *e: print('hook', e[1])\nimport torch\nraise ValueError(3)"),
    "a library is loaded before": Script("import ctypes; ctypes.CDLL('libgomp.so.1')\nimport torch", cold="the library libgomp"),
    "types are checked": Script("import typing; typing.TYPE_CHECKING = True\ntry:\n    import torch\nexcept ImportError: pass", cold="its import of torch failed"),
    "it forks before": Script("import os\nif not os.fork(): os._exit(0)\nos.wait()\nimport torch", cold="a process was forked"),
    "an exception ends it": Script("import torch\ndef fail():\n    raise ValueError('x')\nfail()"),
    "a module of its own raises": Script("import mine", files={"mine.py": "import torch\n1 / 0\n"}),
    "a module is not there": Script("import torch\nimport nonexistent"),
    "torch is imported in try": Script("try:\n    import torch.nonexistent\nexcept ImportError as error:\n    print(error)"),
    "it exits with a number": Script("import torch, sys\nsys.exit(7)"),
    "functions run at its exit": Script(
        "import atexit\natexit.register(print, 'first')\nimport torch, logging\nlogging.basicConfig()\n"
        "atexit.register(print, 'second')\natexit.register(logging.warning, 'bye')"
    ),
    "filters of warnings are shown": Script(
        "import warnings\nprint(warnings.filters)\nimport torch\nprint(warnings.filters)\nwarnings.warn('x')"
    ),
    "warnings are ignored": Script("import warnings; warnings.filterwarnings('ignore')\nimport numpy, torch\nprint(warnings.filters)"),
    "warnings are caught": Script(
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    import torch\nprint(warnings.filters)"
    ),
    "loggers are configured": Script(
        "import logging.config\nlogging.config.dictConfig({'version': 1})\nprint(sorted(logging.root.manager.loggerDict))\n"
        "import torch\nprint(logging.getLogger('torch').disabled, sorted(logging.root.manager.loggerDict))"
    ),
    "logging is verbose": Script(
        "import logging; logging.basicConfig(level=logging.DEBUG, format='%(name)s %(message)s')\nimport torch\n"
        "logging.getLogger('torch.x').debug('there')\nimport torch._dynamo\nprint(sorted(logging.root.manager.loggerDict))"
    ),
    "random numbers are seeded": Script(
        "import torch, numpy, random\ntorch.manual_seed(1); numpy.random.seed(1); random.seed(1)\n"
        "print(torch.rand(3), numpy.random.rand(3), random.random())"
    ),
    "workers are spawned": Script(POOLS),
    "workers are forked": Script(FORKED),
    "data is loaded by workers": Script(LOADER),
    "a model is trained in parallel": Script(DDP),
    "a function is compiled": Script(
        "import torch\n@torch.compile(backend='eager')\ndef f(x): return x.sin() + 1\nprint(f(torch.zeros(3)))"
    ),
    "a module is reloaded": Script("import importlib, torch.nn.functional as F\nimportlib.reload(F)\nprint(F)"),
    "it replaces itself": Script(
        "import os, sys, torch\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, '-u', sys.argv[0], 'again'])\n"
        "print(sys.argv, torch.get_num_threads())",
        cold="-",
    ),
    "its threads are counted": Script("import threading, torch\nprint(threading.active_count(), torch.get_num_threads())"),
    "variables change after torch": Script(f"{THREADS}\nimport os\nos.environ['OMP_NUM_THREADS'] = '1'\nprint(torch.get_num_threads())"),
    "temporary files go elsewhere": Script(
        "import os, tempfile, torch\nos.environ['TMPDIR'] = os.getcwd()\nprint(tempfile.gettempdir() == os.getcwd())"
    ),
    "it has a module named like one of torch's": Script(
        "import torch, tqdm\nprint(tqdm.tqdm)", files={"tqdm.py": "tqdm = 1"}, cold="tqdm"
    ),
    "it sets OMP_NUM_THREADS": Script(f"import os; os.environ['OMP_NUM_THREADS'] = '1'\n{THREADS}", cold="OMP_NUM_THREADS was set"),
    "it sets it behind Python's back": Script(f"import os; os.putenv('OMP_NUM_THREADS', '1')\n{THREADS}", cold="OMP_NUM_THREADS was set"),
    "it has a numpy of its own": Script(
        "import numpy\nprint(numpy.x)\ntry:\n    import torch\nexcept Exception: pass", files={"numpy.py": "x = 1"}, cold="its import of torch failed"
    ),
    "it looks on at imports": Script(FINDER, cold="an import hook was installed"),
    "it finds what nothing else does, as six and transformers": Script(
        FINDER.replace("insert(0, Finder())", "append(Finder())")
    ),
    "warnings are errors": Script("import warnings; warnings.simplefilter('error')\nimport torch", cold="the filters of warnings"),
    "stderr is replaced": Script(STDERR, cold="sys.stdin, sys.stdout or sys.stderr was replaced"),
    "a function is replaced": Script("import time; time.sleep = lambda _: None\nimport torch", cold="time.sleep was replaced"),
    "it is traced": Script("import sys; sys.settrace(lambda *_: None)\nimport torch", cold="the program is traced"),
    "torch loads a back end that prints": Script(
        "import torch",
        files={
            "loud.py": "def load(): print('loud is here')",
            "loud-1.dist-info/METADATA": "Name: loud\n",
            "loud-1.dist-info/entry_points.txt": "[torch.backends]\nloud = loud:load\n",
        },
        variables={"PYTHONPATH": "."},
        cold="importing torch prints 'loud is here'",
    ),
    "torchrun loads a plugin that fails": Script(  # as that of lm-resiliency 0.2.0, whose complaint the agent prints
        "import torch\nprint(torch.ones(1))",
        files={
            "broken.py": "print('broken is here')\ndef handler(params): pass",
            "broken-1.dist-info/METADATA": "Name: broken\n",
            "broken-1.dist-info/entry_points.txt": "[torchrun.handlers]\nbroken = broken:handler\n",
        },
        variables={"PYTHONPATH": "."},
    ),
    "it never imports torch": Script("print(1)", cold="-"),  # nothing is reported; one that ends soon may end before the report
}  # fmt: skip
PULL = ("which modules there are", "what it is as a main module", "it sets OMP_NUM_THREADS", "a package imports site")
# With every torch: what its import brings along, and what depends on it most.
ANY_TORCH = (
    *PULL,
    "its variables",
    "filters of warnings are shown",
    "loggers are configured",
    "data is loaded by workers",
    "a model is trained in parallel",
    "an exception ends it",
    "torchrun loads a plugin that fails",
)
MARKS = ((pytest.mark.pull, PULL), (pytest.mark.any_torch, ANY_TORCH))


def normal(ran: Ran) -> tuple[str, str, int]:
    """What a script printed, without what differs from process to process."""
    out, error = (re.sub(r"(?<=0x)[0-9a-f]+|(?<=started )\d+", "…", text) for text in (ran.out, ran.error))
    return out, error, ran.code


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[mark for mark, names in MARKS if name in names]) for name in SCRIPTS]
)
def test_a_script_prints_the_same_in_a_warm_restart_or_its_restart_is_cold(tmp_path: Path, name: str) -> None:
    script = SCRIPTS[name]
    for file, text in {"script.py": script.text, **script.files}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    variables = {**script.variables, "FREE_PORT": str(take_port())}
    cold = run_cold(script.words, tmp_path, variables)
    if script.cold == "-" and cold.imports.why is None:
        return
    if script.cold and cold.imports.why != "":
        assert str(cold.imports.why).startswith(script.cold)
        return
    assert cold.imports.why == "", cold
    with script_standby(script.words, tmp_path, variables, cold.imports) as standby:
        if script.cold not in ("", "-"):
            assert standby.why.startswith(script.cold)
            return
        assert standby.waits, standby.why
        assert normal(run_warm(standby, script.words, tmp_path, variables)) == normal(cold)


SECOND_TIME = "import os\nif os.environ['SLIPWAY_ATTEMPT'] != '1': os.environ['OMP_NUM_THREADS'] = '1'"


def test_a_script_that_changes_something_only_the_second_time_begins_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"{SECOND_TIME}\nprint('begun')\n{THREADS}")
    words = ("script.py",)
    cold = run_cold(words, tmp_path, {})
    assert (cold.imports.why, cold.out) == ("", "begun\n2\n")
    with script_standby(words, tmp_path, {}, cold.imports) as standby:
        warm = run_warm(standby, words, tmp_path, {})
    assert warm.out == "begun\nbegun\n1\n"
    assert warm.error == (
        "slipway: rank 0: OMP_NUM_THREADS was set or changed before torch was imported: the script begins again with a new import of "
        "torch\n"
    )


def test_unseeded_random_numbers_are_new_each_time(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch, numpy, random, uuid\nprint(torch.rand(1).item(), numpy.random.rand(), random.random(), uuid.uuid4())"
    )
    words = ("script.py",)
    cold = run_cold(words, tmp_path, {})
    with script_standby(words, tmp_path, {}, cold.imports) as standby:
        rows = [
            cold.out.split(),
            *(run_warm(standby, words, tmp_path, {}, str(number)).out.split() for number in (2, 3)),
        ]
    assert all(len(set(column)) == 3 for column in zip(*rows, strict=True)), rows
