"""A Python that lacks what a job needs is told what to type, before anything starts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from slipway.cli.cli import told_what_is_missing
from slipway.launch.resolve.packages import TRAIN, locate_module, require_packages
from slipway.options import parse
from slipway.options.vision import VisionOptions
from slipway.protocol.errors import LaunchError

ROOT = Path(__file__).parents[4]
ALL = ("torch", *TRAIN)


def installed(folder: Path, torch: str, names: Iterable[str] = ALL) -> dict[str, Path]:
    """Modules in a folder of their own, with this version of PyTorch."""
    (folder / "version.py").write_text(f"from typing import Optional\n\n__version__ = {torch!r}\ndebug = False\n")
    return dict.fromkeys(names, folder)


@pytest.mark.parametrize("version", ["2.9.0", "2.10.0+cu128", "2.9.0a0+git1234", "3.0.0", "of our own"])
def test_a_pytorch_that_is_new_enough_or_does_not_say_will_do(version: str, tmp_path: Path) -> None:
    require_packages("gpt", True, installed(tmp_path, version).get)
    require_packages("train", False, installed(tmp_path, version, ["torch"]).get)


@pytest.mark.parametrize(
    ("version", "modules", "builtin", "says"),
    [
        ("2.8.0+cu126", ALL, True, ["PyTorch 2.8.0+cu126", "2.9 or newer", "-m pip install --upgrade 'torch>=2.9'"]),
        ("1.13.1", ["torch"], False, ["PyTorch 1.13.1", "2.9 or newer"]),
        ("2.10.0", TRAIN, False, ["has no PyTorch", "-m pip install 'torch>=2.9'"]),
        ("2.10.0", ["torch"], True, ["slipway gpt needs numpy, ", "extra `train`", "-m pip install 'slipway[train]'"]),
        ("2.10.0", [name for name in ALL if name != "tqdm"], True, ["slipway gpt needs tqdm, which"]),
    ],
)
def test_what_is_missing_is_told_with_what_to_type(
    version: str, modules: list[str], builtin: bool, says: list[str], tmp_path: Path
) -> None:
    with pytest.raises(LaunchError) as told:
        require_packages("gpt", builtin, installed(tmp_path, version, modules).get)
    assert told.value.code == 78
    assert [words for words in [*says, sys.executable] if words not in str(told.value)] == []


def test_all_that_is_looked_for_comes_with_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [name for name in TRAIN if not any(line.startswith(f"{name}>=") for line in extras["train"])] == []


def test_a_module_is_found_without_importing_it() -> None:
    code = "import sys; from slipway.launch.resolve.packages import locate_module as f; print(f('xmlrpc'), 'xmlrpc' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed[0].endswith("/xmlrpc")
    assert printed[1] == "False"
    assert locate_module("no_such_module") is None


@pytest.mark.parametrize(("module", "told"), [("pygal", True), ("slipway.nothing", False), ("json.nothing", False)])
def test_a_command_that_imports_what_the_extra_brings_says_so(module: str, told: bool) -> None:
    with pytest.raises(LaunchError if told else ModuleNotFoundError) as ended, told_what_is_missing("report"):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert ("slipway report needs pygal" in str(ended.value)) == told


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (["--dataset", "folder:."], "--dataset folder:."),
        (["--dataset", "folder:.", "--model", "resnet50"], "--dataset folder:."),
        (["--preset", "cifar10"], "--dataset cifar10"),
        (["--model", "resnet18"], "--model resnet18"),
        (["--model", "resnet50"], "--model resnet50"),
        (["--model", "resnet9"], ""),
        ([], ""),
    ],
)
def test_vision_without_torchvision_names_the_option_that_needs_it(
    tmp_path: Path, typed: list[str], names: str
) -> None:
    wanted, locate = parse(VisionOptions, typed).packages(), installed(tmp_path, "2.13.0+cpu").get
    if not names:
        require_packages("vision", True, locate, wanted)
        return
    with pytest.raises(LaunchError, match=re.escape(f"{names} needs torchvision, which {sys.executable}")) as told:
        require_packages("vision", True, locate, wanted)
    assert told.value.code == 78
    require_packages("vision", True, installed(tmp_path, "2.13.0", [*ALL, "torchvision"]).get, wanted)
