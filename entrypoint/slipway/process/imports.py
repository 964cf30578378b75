"""What importing torch and numpy depends on, and what of that a program changed before it imported them.

A script's first attempt imports them itself. Its watcher (watcher.py) looks at that moment at what the script has changed, and
reports it to the launcher. Only if nothing that counts was changed may the next attempt use modules that were imported before its
first line (preloaded.py), which look at the same things again. This runs in every program, so it imports only what is built into
Python.
"""

import _frozen_importlib_external
import _warnings
import builtins
import os
import sys

TYPE_CHECKING = False  # `typing` takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any


def import_aside(name: str) -> "ModuleType":
    """A module of the standard library that the program may have one of the same name of: it is free to import that."""
    known = sys.modules.get(name)
    module = known or __import__(name)
    if known is None:
        sys.modules.pop(name, None)
    return module


_locale = import_aside("_locale")
PathFinder = _frozen_importlib_external.PathFinder
bootstrap: "Any" = sys.modules[
    "_frozen_importlib"
]  # whose _find_and_load every import calls that finds nothing in sys.modules
TORCH, DYNAMO = "torch", "torch._dynamo"
HEAVY = ("numpy", "torch", "functorch", "torchgen", "triton")  # with libraries, which stay loaded
# What torch imports where it is installed, apart from Python's standard library.
LIGHT = frozenset(
    "typing_extensions sympy mpmath filelock jinja2 markupsafe networkx fsspec yaml _yaml tqdm packaging colorama".split()  # noqa: SIM905
)
# Variables that torch, numpy and their libraries read when they are loaded. Preloading adds those that it sees being read.
FAMILIES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "NPY_", "NUMPY_", "NVPL_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "CAFFE2_", "DNNL_", "ONEDNN_", "XNNPACK_", "LRU_CACHE_CAPACITY", "KINETO_"),
    *(
        "CUDA",
        "CUBLAS",
        "CUDNN",
        "NVIDIA_",
        "NVRTC",
        "TRITON_",
        "INDUCTOR_",
        "AOT",
        "FX_",
        "COMPILE_",
        "SYMPY_",
        "MPMATH_",
    ),
    *("LD_", "MALLOC_", "GLIBC_", "PYTHON", "HOME", "TMP", "TEMP", "USER", "LOGNAME", "LOGLEVEL"),
)
# Of these families, what is read later, and differs from attempt to attempt.
LATER = ("TORCH_NCCL_", "TORCH_FR_", "TORCHELASTIC_")
# System libraries that modules of the standard library load.
SYSTEM = (
    *("libssl", "libcrypto", "libffi", "libz", "liblzma", "libbz2", "libsqlite3", "libuuid", "libexpat", "libmpdec"),
    *("libm.", "libm-", "libdl", "librt", "libutil", "libpthread", "libresolv", "libnss", "libgcc_s", "libstdc++"),
    *(
        "libnsl",
        "libtirpc",
        "libgssapi",
        "libk",
        "libcom_err",
        "libb2",
        "libgdbm",
        "libdb",
        "libreadline",
        "libncurses",
    ),
    *("libtinfo", "libatomic", "libcrypt"),
)


def is_read(name: str) -> bool:
    """Whether a variable is of a kind that is read when torch or numpy is imported."""
    return name.startswith(FAMILIES) and not name.startswith(LATER)


def is_standard(name: str) -> bool:
    """Whether a module is one of Python's standard library, by its name."""
    return name.partition(".")[0] in sys.stdlib_module_names


def filters() -> "list[Any]":
    """The filters of warnings; `warnings.catch_warnings` puts another list in place."""
    return getattr(sys.modules.get("warnings"), "filters", _warnings.filters)


def loggers() -> "frozenset[str]":
    """The names of all loggers."""
    logging: Any = sys.modules.get("logging")
    return frozenset(logging.root.manager.loggerDict) if logging else frozenset()


def finders() -> "list[Any]":
    """What decides where a module is found. What was added behind Python's own finder of files (six and transformers do so) is
    asked only for what that does not find.
    """
    known: list[Any] = [*sys.meta_path]
    files = next((place for place, each in enumerate(known) if each is PathFinder), len(known))
    return [*known[: files + 1], *sys.path_hooks]


class ProgramState:
    """What counts, as it is now."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        self.finders = finders()
        self.path = [*sys.path]
        self.filters = [*filters()]
        self.builtins = dict(vars(builtins))
        self.streams = (sys.stdin, sys.stdout, sys.stderr)
        self.locale = _locale.setlocale(_locale.LC_ALL, None)
        self.cores = os.sched_getaffinity(0)
        self.libraries = libraries()
        self.loggers, self.threads = frozenset[str](), threads()

    def light_change(self) -> str:
        """What a program changed that counts for importing anything; empty: nothing."""
        if self.finders != finders():
            return "an import hook was installed"
        if changed := [name for name, value in self.builtins.items() if vars(builtins).get(name) is not value]:
            return f"builtins.{changed[0]} was replaced"
        return ""

    def pure_change(self, is_read: "Callable[[str], bool]" = is_read) -> str:
        """The same for modules without libraries that read variables."""
        environ = dict(os.environ)
        changed = [name for name in sorted(environ.keys() | self.environ.keys()) if is_read(name)]
        if changed := [name for name in changed if environ.get(name) != self.environ.get(name)]:
            return f"{changed[0]} was set or changed"
        if is_traced():
            return "the program is traced (a debugger, a profiler, coverage)"
        return self.light_change()

    def change(self, is_read: "Callable[[str], bool]" = is_read) -> str:
        """The same for torch."""
        logging = sys.modules.get("logging")
        if named := [name for name in sorted(loggers() - self.loggers) if name.partition(".")[0] in HEAVY]:
            return f"the logger {named[0]} was made"
        return self.pure_change(is_read) or next(
            text
            for found, text in (
                (self._filters_changed(), "the filters of warnings were changed"),
                (
                    self.streams != (sys.stdin, sys.stdout, sys.stderr),
                    "sys.stdin, sys.stdout or sys.stderr was replaced",
                ),
                (self.locale != _locale.setlocale(_locale.LC_ALL, None), "the locale was changed"),
                (self.cores != os.sched_getaffinity(0), "the process was bound to other cores"),
                (not threads() <= self.threads, "a thread was started"),
                (
                    getattr(getattr(logging, "_loggerClass", None), "__module__", "logging") != "logging",
                    "loggers have another class",
                ),
                (any(not place.startswith("/") for place in sys.path), "sys.path has a relative entry"),
                (True, ""),
            )
            if found
        )

    def _filters_changed(self) -> bool:
        """Whether there are others, apart from more that ignore something: torch's import gives no warnings."""
        now = filters()
        return [one for one in now if one in self.filters] != self.filters or any(
            one[0] != "ignore" for one in now if one not in self.filters
        )

    def loaded(self, names: "Sequence[str]") -> str:
        """A library that was loaded since, and belongs to none of these packages; empty: none."""
        folders = tuple(f"/{name}{end}" for name in names for end in ("/", ".libs/"))
        for path in sorted(libraries() - self.libraries):
            base = path.rpartition("/")[2]
            known = "/lib-dynload/" in path or base.startswith(SYSTEM) or any(folder in path for folder in folders)
            if not known and not any(f"/{name}." in path for name in names):
                return base
        return ""


def threads() -> "set[int]":
    """The program's threads, without its watcher's, which may not run yet."""
    found = set()
    for ident, frame in sys._current_frames().items():
        outermost = frame
        while outermost.f_back:
            outermost = outermost.f_back
        if not outermost.f_code.co_filename.endswith("slipway/process/watcher.py"):
            found.add(ident)
    return found


def libraries() -> "set[str]":
    """The shared libraries of this process."""
    try:
        with open("/proc/self/maps") as file:  # noqa: PTH123
            return {line.split(None, 5)[5].strip() for line in file if ".so" in line}
    except (OSError, IndexError):
        return set()


def is_traced() -> bool:
    """Whether something looks on as this program runs line by line, or call by call."""
    monitoring: Any = getattr(sys, "monitoring", None)
    watched = bool(monitoring) and any(map(monitoring.get_tool, range(6)))
    return watched or sys.gettrace() is not None or sys.getprofile() is not None


def replaced() -> str:
    """A function or class of the standard library in whose place there is another one; empty: none."""
    for name, module in [*sys.modules.items()]:
        if not is_standard(name) or name.startswith("__") or name == "sys":  # whose hooks no import calls
            continue
        for attribute, value in [*getattr(module, "__dict__", {}).items()]:
            origin = value.__module__ if isinstance(value, (type, type(replaced))) else None
            if isinstance(origin, str) and not is_standard(origin) and not attribute.startswith("__"):
                return f"{name}.{attribute}"
    return ""


def set_by_c() -> str:
    """A variable that the libraries see otherwise than os.environ does (os.putenv, setenv); empty: none, as far as is known."""
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is None:
        return ""
    own = dict(os.environ)
    found, block = {}, ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    at = 0
    while block and block[at]:
        name, _, value = os.fsdecode(block[at]).partition("=")
        found[name] = value
        at += 1
    return next(
        (name for name in sorted(found.keys() | own.keys()) if is_read(name) and found.get(name) != own.get(name)), ""
    )


def origin(module: object) -> str:
    """The file of a module, or what else its spec says."""
    return str(getattr(getattr(module, "__spec__", None), "origin", None) or "")


def disguise(function: "Any") -> "Any":
    """Let a function count as part of the import machinery, so that tracebacks leave it out."""
    function.__code__ = function.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    function.__module__, function.__qualname__ = bootstrap.__name__, function.__name__
    return function


class Observer:
    """Notes what a program is like when it imports torch, and reports it as `{"why": TEXT, "modules": [[NAME, FILE], …],
    "early": COUNT}`. TEXT is empty if the next attempt may find torch imported. COUNT of the modules were there before it. Later
    it reports `{"dynamo": TEXT}` for torch._dynamo.
    """

    def __init__(self, report: "Callable[[dict[str, object]], None]") -> None:
        self._report, self._before, self._owner = report, ProgramState(), os.getpid()
        self._why, self._seen, self._inside, self._forked = "", set[str](), False, False
        self._real = bootstrap._find_and_load

    def start(self) -> None:
        """Begin to look at imports."""
        real, noted = self._real, self._note

        def _find_and_load(name: str, import_: "Any") -> "Any":
            return real(name, import_) if name not in ("numpy", TORCH, DYNAMO) else noted(name, import_)

        os.register_at_fork(before=self._fork)
        bootstrap._find_and_load = self._ours = disguise(_find_and_load)

    def _fork(self) -> None:
        self._forked = self._forked or TORCH not in self._seen

    def _note(self, name: str, import_: "Any") -> "Any":
        if name in self._seen or self._inside or os.getpid() != self._owner:
            return self._real(name, import_)
        self._seen.add(name)
        if name == DYNAMO:
            return self._note_dynamo(import_)
        self._why = self._why or self._look()
        self._inside, early = name == TORCH, len(sys.modules)
        try:
            module = self._real(name, import_)
        except BaseException:
            if name == TORCH:
                self._report({"why": "its import of torch failed", "modules": [], "early": 0})
            raise
        finally:
            self._inside = False
        self._before.filters, self._before.libraries, self._before.loggers = [*filters()], libraries(), loggers()
        if name == TORCH:
            if not self._why and (variable := set_by_c()):
                self._why = f"{variable} was set or changed"
            modules = [[name, origin(module)] for name, module in [*sys.modules.items()]] if not self._why else []
            why = self._why and f"{self._why} before torch was imported"
            self._report({"why": why, "modules": modules, "early": early})
        return module

    def _look(self) -> str:
        why = self._before.change()
        if not why and (name := replaced()):
            why = f"{name} was replaced"
        if not why and (library := self._before.loaded(("numpy", *LIGHT))):
            why = f"the library {library} was loaded"
        if not why and self._forked:
            why = "a process was forked"
        return why

    def _note_dynamo(self, import_: "Any") -> "Any":
        self._report({"dynamo": self._before.pure_change()})
        if bootstrap._find_and_load is self._ours:
            bootstrap._find_and_load = self._real
        return self._real(DYNAMO, import_)


disguise(Observer._note)
disguise(Observer._note_dynamo)
