"""Python runs this at its start where PYTHONPATH leads here: it notes in the file MARKS when the process came how far.

Each line: Unix seconds, CPU seconds of the process and of those it waited for, and what came.
"""

import atexit
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def mark(what: str) -> None:
    """Add a line, in one piece."""
    file = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{time.time():.4f} {sum(os.times()[:4]):.2f} {what}\n".encode())
    os.close(file)


class Torch(MetaPathFinder):
    """Notes when torch has been imported."""

    def __init__(self, what: str) -> None:
        self.what = what

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Leave everything to those who come next, but for the end of torch's own import."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def timed(module: ModuleType) -> None:
            load(module)
            mark(self.what)

        spec.loader.exec_module = timed  # type: ignore[method-assign]
        return spec


def role() -> str:
    """What this process is in a start. Torchrun's command line holds that of its workers."""
    words = " ".join(sys.orig_argv)
    if "--nnodes" in words:
        return "torchrun"
    return "worker" if "slipway.train" in words or "steps.py" in words else "launcher"


mark("first Python")
if (who := role()) != "launcher":
    mark(who)
    sys.meta_path.insert(0, Torch(f"{who} has torch"))
atexit.register(lambda: mark("end"))
