"""What pyxis adds to srun: its options, taken out of the command line, and a program around the task's command.

The real srun gets everything else. What it does not know either (`--container-nme`) it refuses, as it does with pyxis.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from kernel import environment_of

REAL = "/usr/bin/srun"
TASK = Path(__file__).with_name("task.py")
IMAGES, HOOKS = "SLIPWAY_TEST_PYXIS_IMAGES", "SLIPWAY_TEST_HOOKS"  # variables of the tests; no task sees them
KNOWN_HOOKS = ("none", "pyxis", "enroot", "stranger")

VALUED = ("container-image", "container-mounts", "container-workdir", "container-env")
SWITCHES = {
    "container-mount-home": ("mount_home", True),
    "no-container-mount-home": ("mount_home", False),
    "container-entrypoint": ("entrypoint", True),
    "no-container-entrypoint": ("entrypoint", False),
    "container-readonly": ("writable", False),
    "no-container-remap-root": ("remap_root", False),
}
# pyxis has them, this stand-in has not: a test must not believe that they work.
REFUSED = ("container-name", "container-save", "container-writable", "container-remap-root", "container-entrypoint-log")
HELP = """
Options provided by plugins:
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
      --container-mounts=SRC:DST[:FLAGS][,SRC:DST...]
      --container-workdir=PATH
      --container-env=NAME[,NAME...]
      --[no-]container-mount-home
      --[no-]container-entrypoint
"""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The container that was asked for. `images` is the file that says what a reference stands for."""

    image: str
    mounts: list[list[str]]  # source, target, flags
    workdir: str
    env: list[str]
    mount_home: bool
    entrypoint: bool
    images: str
    hooks: list[str]


def main() -> NoReturn:
    """Become the real srun."""
    given, options, command = split(sys.argv[1:], valued_options())
    if "--help" in options:
        subprocess.run([REAL, "--help"], check=True)
        print(HELP, end="", flush=True)
        sys.exit(0)
    if "container-image" in given and command:
        command = [sys.executable, "-E", str(TASK), json.dumps(dataclasses.asdict(wanted(given))), *command]
    elif given:
        for name in given:
            print(f"srun: error: pyxis: ignoring --{name} because --container-image is not set", file=sys.stderr)
    os.execve(REAL, [REAL, *options, *command], environment_of(os.getpid()))


def valued_options() -> set[str]:
    """The real srun's options that are followed by a value of their own, by its own account: `-N`, `--nodes`."""
    told = subprocess.run([REAL, "--help"], capture_output=True, text=True).stdout
    found = re.findall(r"^ +(?:(-\w),? +)?(--[\w-]+)=", told, re.MULTILINE)
    return {name for names in found for name in names if name}


def split(words: list[str], valued: set[str]) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Split a command line into the options of pyxis with what each was given, the real srun's, and the command."""
    given: dict[str, list[str]] = {}
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.removeprefix("--").partition("=")
        if name in REFUSED:
            fail(f"--{name} is one of pyxis's options that the stand-in in the tests does not have")
        elif name in SWITCHES and not equals:
            given.setdefault(name, [])
        elif name in VALUED:
            value = value if equals else rest.pop(0) if rest else ""
            given.setdefault(name, []).append(value or fail(f"--{name}: argument required"))
        else:
            options.append(word)
            if word in valued and rest:
                options.append(rest.pop(0))
    return given, options, rest


def wanted(given: dict[str, list[str]]) -> Wanted:
    """What these options ask for."""
    switched: dict[str, bool] = {}
    for name, (field, value) in SWITCHES.items():
        if name in given and switched.setdefault(field, value) != value:
            fail(f"both --[no-]{name.removeprefix('no-')} were specified")
    for name in ("container-image", "container-workdir"):
        if len(set(given.get(name, []))) > 1:
            fail(f"--{name} specified multiple times")
    hooks = os.environ.get(HOOKS, "none").split(",")
    if unknown := set(hooks) - set(KNOWN_HOOKS):
        fail(f"{HOOKS} knows no {unknown.pop()}, only {', '.join(KNOWN_HOOKS)}")
    return Wanted(
        image=given["container-image"][0],
        mounts=[mount(entry) for value in given.get("container-mounts", []) for entry in value.split(",")],
        workdir=given.get("container-workdir", [""])[0],
        env=[name for value in given.get("container-env", []) for name in value.split(",")],
        mount_home=switched.get("mount_home", False),
        entrypoint=switched.get("entrypoint", False),
        images=os.environ.get(IMAGES) or fail(f"{IMAGES}, the tests' file of images, is not set"),
        hooks=hooks,
    )


def mount(entry: str) -> list[str]:
    """Source, target and flags of SRC:DST[:FLAGS]; SRC alone is mounted where it is."""
    source, _, rest = entry.partition(":")
    target, colon, flags = rest.partition(":")
    if not source or (":" in entry and not target):
        fail(f"--container-mounts: invalid format: {entry}")
    if not source.startswith("/") or not (target or source).startswith("/"):
        fail(f"--container-mounts: the stand-in in the tests mounts absolute paths alone: {entry}")
    return [source, target or source, flags if colon else ""]


def fail(message: str) -> NoReturn:
    """Say it as pyxis does, and end."""
    print(f"srun: error: pyxis: {message}", file=sys.stderr)
    sys.exit(1)
