"""The wheel: a product of its own, the launcher for people who have a PyTorch environment; it holds all modules, and starts."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from slipway.launch.resolve.host import name_user

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
IMPORT_ALL = """
import importlib, sys
from pathlib import Path
package = Path(sys.argv[1]) / "slipway"
for file in sorted(package.rglob("*.py")):
    name = ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):
        module = importlib.import_module(name)
        assert Path(module.__file__).is_relative_to(package), module.__file__
        print(name)
"""
SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
numbers = torch.ones(4)
dist.all_reduce(numbers)
print(f"torch {torch.__version__}, rank {dist.get_rank()}: {int(numbers.sum())}")
dist.destroy_process_group()
"""
FAILS = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no such thing')\ntime.sleep(60)\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` makes."""
    environ = {**os.environ, "DIST": str(tmp_path_factory.mktemp("dist"))}
    command = [ROOT / "entrypoint/wheel.sh"]
    return Path(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip())


def distributions(name: str) -> Iterator[importlib.metadata.Distribution]:
    """A package of this environment and, one after the other, all that it needs; some of them more than once."""
    found = importlib.metadata.distribution(name)
    yield found
    for line in found.requires or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            yield from distributions(needed.name)


def lend(site: Path, name: str) -> None:
    """Links to a package of this environment, and to what it needs, into another one; what is there already stays."""
    for found in distributions(name):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            there, here = Path(str(found.locate_file(top))), site / top
            if there.exists() and not here.exists():
                here.symlink_to(there)


class Environment:
    """A virtual environment with the wheel, without its extras, and this one's own PyTorch."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        [self.site] = folder.glob("venv/lib/python3.*/site-packages")
        self.install(wheel)
        for name in ("click", "nvidia-ml-py", "python-dotenv"):
            lend(self.site, name)
        lend(self.site, "torch")

    def install(self, wheel: Path) -> None:
        """Install without what it needs."""
        python = str(self.folder / "venv/bin/python")
        command = [*PIP, "--python", python, "install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
        subprocess.run(command, check=True, capture_output=True)

    def slipway(self, *words: str) -> tuple[int, str]:
        """What `slipway` ends with, and prints."""
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        environ |= name_user(os.environ)
        command = [self.folder / "venv/bin/slipway", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200
        )  # fmt: skip
        return done.returncode, done.stdout


def launches(environment: Environment, torch: str) -> None:
    """Two processes of a script meet; one that fails is named; a workload of ours says which extra it lacks."""
    (environment.folder / "train.py").write_text(SCRIPT)
    (environment.folder / "fails.py").write_text(FAILS)
    code, shown = environment.slipway("train.py")
    assert code == 0, shown
    ranks = re.findall(r"^\[0:([01])\] torch ([\d.]+\d)\S*, rank \1: 8$", shown, re.MULTILINE)
    assert sorted(ranks) == [("0", torch), ("1", torch)], shown
    code, shown = environment.slipway("fails.py")
    assert (code, "rank 1: exit code 1: ValueError: no such thing" in shown) == (1, True), shown
    code, shown = environment.slipway("gpt")
    assert (code, shown.count("\n")) == (78, 1), shown
    assert "slipway gpt needs numpy, " in shown
    assert f"{environment.folder}/venv/bin/python" in shown
    assert shown.endswith("-m pip install 'slipway[train]'\n")


@pytest.mark.core
def test_every_module_is_in_the_wheel_and_can_be_imported_from_it(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", installed, wheel], check=True)
    words = (sys.executable, "-c", IMPORT_ALL, installed)
    done = subprocess.run(
        words,
        env={**os.environ, **name_user(os.environ), "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = {
        ".".join(file.relative_to(ROOT / "entrypoint").with_suffix("").parts).removesuffix(".__init__")
        for file in (ROOT / "entrypoint/slipway").rglob("*.py")
    }
    assert set(done.stdout.split()) == {name for name in modules if not name.endswith("__main__")}
    assert (installed / "slipway/templates/compose.yaml").is_file()


def test_it_is_small_holds_the_package_alone_and_needs_five_light_ones(wheel: Path) -> None:
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as packed:
        tops = {name.partition("/")[0] for name in packed.namelist()}
        [metadata] = [name for name in packed.namelist() if name.endswith("/METADATA")]
        needs = re.findall(r"^Requires-Dist: (\S+?)[<>=]\S*$", packed.read(metadata).decode(), re.MULTILINE)
    assert {"slipway", "slipway.pth"} < tops
    assert [top for top in tops if not top.startswith("slipway")] == []
    assert needs == ["click", "nvidia-ml-py", "prometheus-client", "py-spy", "python-dotenv"]


@pytest.mark.core
def test_it_launches_where_there_is_pytorch_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    launches(Environment(tmp_path, wheel), importlib.metadata.version("torch").partition("+")[0])
