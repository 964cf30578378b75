"""The workloads that ship with Slipway, and how a user's own program is told from them.

Workloads are named by module strings: the launcher never imports training code.
"""

import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.starters import refuse_starter
from slipway.options.paths import explain_address
from slipway.protocol.errors import LaunchError, told_if_unreadable
from slipway.protocol.mistake import did_you_mean, nearest
from slipway.protocol.printable import printable


class Workload(NamedTuple):
    """What torchrun starts per process.

    `next` are commands to try after a run, with {run} for its folder and {longer} for its arguments with more steps.
    """

    name: str
    summary: str
    command: tuple[str, ...]
    builtin: bool = False  # one of ours: it looks at the stop flag, so it needs no signal, and says where it stands
    early: bool = False  # a module of ours, whose processes may begin before torchrun starts them (process/warm.py)
    next: tuple[str, ...] = ()
    data: str = ""  # its data sets, in a line
    resumes: bool = True  # leaves snapshots; else another attempt would only do the same once more
    staged: bool = False  # a model spans as many processes, with a GPU each, as --stages says
    keeps: bool = True  # its run directory stays; else nothing is said of it
    spawned: bool = False  # one process starts the others through torch.multiprocessing, without torchrun


# When torchrun is killed its workers would stay behind but for this. It replaces itself by the program.
_LEASHED = ("setpriv", "--pdeathsig=KILL")
# The launcher starts torchrun with the stop signals ignored, and workers inherit that. Ours keep it, since they look at
# the stop flag; a user's own program gets the default handlers back.
_DEFAULT_SIGNALS = ("env", "--default-signal=TERM,INT,USR1,HUP")
# Python for our own modules: files in the working directory must not stand in for what they import (-P).
_PYTHON = (sys.executable, "-P", "-u", "-m")


def _ours(name: str, summary: str, **more: Any) -> Workload:
    command = (*_LEASHED, *_PYTHON, f"slipway.train.workloads.{name}")
    return Workload(name, summary, command, builtin=True, early=True, **more)


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        workload.name: workload
        for workload in (
            _ours(
                "gpt",
                "a GPT-2 style transformer on text, from a tiny one to 1.5 billion parameters",
                data="stdlib (embedded), file:PATH, tokens:DIR, hub:REPO",
                next=(
                    "slipway report {run}",
                    'slipway sample {run} --prompt "def "',
                    "slipway gpt --run-dir {run} --resume auto{longer}",
                ),
            ),
            _ours(
                "finetune",
                "fine-tuning of a pretrained GPT-2 checkpoint, with its perplexity before and after",
                data="stdlib (embedded), file:PATH, tokens:DIR, hub:REPO",
                next=("slipway report {run}", 'slipway sample {run} --prompt "def "', "slipway data fetch --help"),
            ),
            _ours(
                "pipeline",
                "the transformer of gpt, split into pipeline stages, replicated over the remaining processes",
                data="stdlib (embedded), file:PATH, tokens:DIR, hub:REPO",
                staged=True,
                next=(
                    "slipway report {run}",
                    'slipway sample {run} --prompt "def "',
                    "slipway plan pipeline --stages 4 --nproc-per-node 8",
                ),
            ),
            _ours(
                "vision",
                "a convolutional network on labelled pictures, from a small one to ResNet-50",
                data="glyphs (embedded), cifar10, folder:PATH",
                next=(
                    "slipway report {run}",
                    "slipway vision --run-dir {run} --resume auto{longer}",
                    "slipway vision --preset cifar10 --dataset glyphs --epochs 1",
                ),
            ),
            _ours(
                "linear",
                "the smallest data-parallel job: one linear layer on synthetic labels",
                data="made on the fly",
                next=("slipway report {run}", "slipway linear --compare", "slipway gpt"),
            ),
            _ours(
                "allreduce",
                "speed and correctness of the communication between processes, and which one is slow",
                next=("slipway report {run}", "slipway allreduce --help"),
                resumes=False,
            ),
        )
    }
)

# What `slipway check` starts on several nodes; nobody types its name.
CHECK = Workload(
    "check",
    "the nodes exchange what they found, and numbers",
    (*_LEASHED, *_DEFAULT_SIGNALS, *_PYTHON, "slipway.train.workloads.check"),
    early=True,
    resumes=False,
    keeps=False,
)


def spawned(workload: Workload) -> Workload:
    """Return one of our workloads as a single process that starts its workers itself, instead of torchrun."""
    command = (*_LEASHED, *_PYTHON, "slipway.train.worker.spawn", workload.name)
    return workload._replace(command=command, spawned=True)


def rehearsed(workload: Workload, fault: str) -> Workload:
    """Return one of our workloads as `slipway selftest` trains it: with this fault, or `none`, on its last rank."""
    command = (*_LEASHED, *_PYTHON, "slipway.train.workloads.selftest", fault, workload.name)
    return workload._replace(command=command)


def is_program(first: str) -> bool:
    """Whether a first argument means a user's own program: `path/to/script.py`, `-m` or `--no-python`."""
    return first.startswith("-m") or first in ("--module", "--no-python", "--no_python") or first.endswith(".py")


@told_if_unreadable("Give the path of a script that this user can read.")
def find_workload(words: Sequence[str]) -> tuple[Workload, list[str]]:
    """The workload that the words after `slipway run` name, and its arguments. Raises LaunchError (78) with the nearest name."""
    first, rest = words[0], list(words[1:])
    if first in WORKLOADS:
        return WORKLOADS[first], rest
    if why := explain_address(first):
        raise LaunchError(f"{first}: {why}.")
    folder = Path(first).is_dir() and Path(first, "__main__.py").is_file()  # python FOLDER runs it
    if not folder and (refusal := refuse_starter(words)):
        raise LaunchError(refusal)
    start = (*_LEASHED, *_DEFAULT_SIGNALS)
    python = (*start, sys.executable, "-u")
    if first == "-m":
        if not rest:
            raise LaunchError("-m needs the name of a module. Type: slipway run -m package.module [arguments]")
        return Workload(rest[0], "a user's module", (*python, "-m", rest[0])), rest[1:]
    if first == "--no-python":
        if not rest or not shutil.which(rest[0]):
            name = f" There is no program {rest[0]}, or it is not executable (chmod +x)." if rest else ""
            raise LaunchError(f"--no-python needs a program.{name} Type: slipway run --no-python PROGRAM [arguments]")
        return Workload(Path(rest[0]).stem, "a user's program", (*start, rest[0])), rest[1:]
    if Path(first).is_file():
        _require_python(first)
        _require_syntax(first)
        return Workload(Path(first).stem, "a user's script", (*python, first)), rest
    if folder:
        return Workload(Path(first).resolve().name, "a user's script", (*python, first)), rest
    if first.endswith(".py"):
        near = nearest(Path(first).name, sorted(file.name for file in Path(first).parent.glob("*.py")))
        meant = f" Did you mean {Path(first).parent / near}?" if near else ""
        where = "" if Path(first).is_absolute() else f" in {Path.cwd()}"
        text = f"There is no file {first}{where}.{meant} Give the path of your script as it is seen here."
        raise LaunchError(text, missing=first)
    raise unknown_name(first)


def words_of(workload: Workload) -> tuple[str, ...]:
    """The words with which a user's program was typed, such as `-m package.module`, without its arguments."""
    *before, last = workload.command
    if before[-1] == "-m":
        return ("-m", last)
    return (last,) if sys.executable in before else ("--no-python", last)


def require_module(name: str, folders: Iterable[str]) -> None:
    """Raise LaunchError (78) if Python will not find a module that is to be run by `-m`. Nothing of it is imported.

    `folders` are searched before this Python's own. What a namespace has, and a package that sets its own `__path__`, is unknown.
    """
    path, known = [*folders, *sys.path], ""
    for part in (*name.split("."), "__main__"):
        full = f"{known}.{part}".lstrip(".")
        try:
            found = part and (PathFinder.find_spec(full, path) or (None if known else find_spec(full)))
        except (
            KeyError,
            ValueError,
        ):  # a namespace in a package, which Python would have to import; no name of a module
            return
        if not found:
            from pkgutil import iter_modules

            near = nearest(full, [module.name for module in iter_modules(path, f"{known}." if known else "")])
            meant = f" Did you mean {near}?" if near and part != "__main__" else ""
            what = (
                f"{known} is a package without __main__.py"
                if part == "__main__"
                else f"There is no module {full or repr(name)}"
            )
            raise LaunchError(
                f"{what}.{meant} Python searches {Path.cwd()}, PYTHONPATH and {sys.prefix}; nothing was started."
            )
        if not found.submodule_search_locations:
            if full == name:
                return
            path = []
        elif (
            not found.origin
            or not Path(found.origin).is_file()
            or "__path__" in Path(found.origin).read_text(errors="replace")
        ):
            return
        else:
            path = list(found.submodule_search_locations)
        known = full


def _require_python(file: str) -> None:
    """Raise LaunchError for a file that says itself that it is something else."""
    try:
        with Path(file).open("rb") as opened:
            line = opened.readline(256)
    except OSError as error:
        raise LaunchError(f"{file} cannot be read: {error}") from None
    foreign = line.startswith(b"#!") and b"python" not in line and not file.endswith(".py")
    if foreign or line.startswith(b"\x7fELF"):
        raise LaunchError(f"{file} is not a Python script. To start it directly, type: slipway run --no-python {file}")


def _require_syntax(file: str) -> None:
    """Raise LaunchError for a script that Python cannot read: the workers' Python is this one. Nothing of it is run."""
    if not file.endswith(".py"):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the workers give them
            compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        text = f": `{printable(error.text.strip())[:100]}`" if error.text and error.text.strip() else ""
        raise LaunchError(
            f"{file}{line}: {type(error).__name__}: {error.msg}{text}. Correct that line and start it again; nothing was started."
        ) from None


def unknown_name(name: str, commands: Iterable[str] = (), runtime: str = "host", meant: str = "") -> LaunchError:
    """The error for a first argument that is none of the workloads and `commands`; `runtime` is where this launcher runs, `meant`
    the command that others call so.
    """
    if name.startswith("nvidia-"):  # of the driver's programs, which a container finds with the GPUs alone
        return LaunchError(
            f"There is no {name} here: it belongs to the NVIDIA driver, which a container sees together with its GPUs; "
            f"{advise('gpus', runtime)}."
        )
    commands = sorted(commands)
    meant = f" Did you mean {meant}?" if meant else did_you_mean(name, [*WORKLOADS, *commands])
    script = next((file for file in (name, f"{name}.py") if Path(file).is_file()), "")
    program = (
        f" To start {'that file' if script == name else script} as a script type: slipway run {script}."
        if script
        else ""
    )
    if Path(name).is_dir():
        program = " It is a folder without __main__.py: give the script in it that is to be run."
    listed = f" Commands are {', '.join(commands)}." if commands else ""
    return LaunchError(
        f"{name!r} is neither a command, a workload, a .py file, -m MODULE nor a program.{program}{meant} "
        f"Workloads are {', '.join(sorted(WORKLOADS))}.{listed}"
    )
