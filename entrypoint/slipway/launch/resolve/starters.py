"""Commands of other launchers that are left in front of a script: what is typed instead. Pure."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

TORCHRUN = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")
# Launchers that start processes of their own, whose options are not ours.
OTHERS = frozenset({"accelerate", "colossalai", "composer", "deepspeed", "fabric", "horovodrun", "lightning", "torchx"})
# What starts a command on several nodes: it stands before slipway.
AROUND = frozenset({"aprun", "blaunch", "flux", "jsrun", "mpiexec", "mpirun", "orterun", "prun", "srun"})
NEEDLESS = ("--use_env", "--use-env")  # of torch.distributed.launch


def refuse_starter(words: Sequence[str]) -> str:
    """Why the words after `slipway run` are another launcher's command, and what to type; empty where they are not.

    `--no-python python …` is one that torchrun takes as well, and starts that Python in each process.
    """
    as_it_is = words[0] in ("--no-python", "--no_python")
    bare = list(words[1:] if as_it_is else words)
    if not bare or not (name := starter(bare)) or (as_it_is and name == "python"):
        return ""
    if name in AROUND:
        return (
            f"{name} starts commands, also on several nodes, and belongs before slipway. Type: {name} [options] slipway run "
            "SCRIPT [arguments]"
        )
    told = f"{name} is not needed, because `slipway run` starts the script itself."
    if line := instead(bare):
        return f"{told} Type: {line}"
    if name == "python" and bare[1:]:
        return (
            f"{told} To start it in each process as it is type: {shlex.join(['slipway', 'run', '--no-python', *bare])}"
        )
    return f"{told} Type: slipway run SCRIPT [arguments]"


def starter(words: Sequence[str]) -> str:
    """The launcher in front of a script, as one would call it; empty where there is none."""
    name = Path(words[0]).name
    if words[0] == "-m":
        return words[1] if words[1:2] and words[1] in TORCHRUN else ""
    if re.fullmatch(r"python(3(\.\d+)?)?", name):
        module = _module(words)
        return module[0] if module and module[0] in TORCHRUN else "python"
    own = words[0] == f"./{name}"  # a file of the user's in the current folder
    return name if name == "torchrun" or (name in OTHERS | AROUND and not own) else ""


def instead(words: Sequence[str]) -> str:
    """The line that does the same with `slipway run`; empty where the words name no script."""
    name = starter(words)
    if name in AROUND:
        return ""
    if name == "python":
        own = _module(words)
        rest = ["-m", *own] if own else _script(words)
    elif name in OTHERS:
        rest = _script(words, option=r"(?!.*\.py$).*")
    else:
        begin = 1 if name == "torchrun" else list(words).index(name) + 1
        rest = [word for word in words[begin:] if word not in NEEDLESS]
    return shlex.join(["slipway", "run", *rest]) if rest else ""


def _module(words: Sequence[str]) -> list[str]:
    """The module that python is to run, and its arguments."""
    for place, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[A-Za-z]*m", word):
            return list(words[place + 1 :])
        if not word.startswith("-"):
            break
    return []


def _script(words: Sequence[str], option: str = r"-(?!c$).*") -> list[str]:
    """The script, and its arguments, behind options."""
    rest = list(words[1:])
    while rest and re.fullmatch(option, rest[0]):
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    return [] if rest[:1] == ["-c"] else rest
