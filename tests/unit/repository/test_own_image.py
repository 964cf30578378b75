"""What puts the launcher into a user's own image: which Python it takes, what it refuses, and where the parts of the wheels go."""

import ast
import importlib.util
import json
import platform
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from slipway.launch.resolve.packages import LEAST_TORCH
from slipway.protocol.errors import CONFIGURATION

ROOT = Path(__file__).parents[3]
FILE = ROOT / "images/slipway/launcher/install.py"


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module, in a world without any Python but those that a test makes."""
    spec = importlib.util.spec_from_file_location("installer", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDERS", (str(tmp_path / "usual"),))
    monkeypatch.setattr(module, "TARGET", tmp_path / "opt/slipway")
    monkeypatch.setattr(module, "PARTS", tmp_path)
    (tmp_path / f"tini-{platform.machine()}").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "mine/python3"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return module


def make_python(
    program: Path, *, version: tuple[int, int, int] = (3, 12, 1), torch: str = "", slipway: str = ""
) -> None:
    """A program that answers as a Python with these packages."""
    said = {"python": str(program), "version": version, "torch": torch, "slipway": slipway, "site": str(program.parent)}
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")  # a shell's own echo: nothing is on PATH
    program.chmod(0o755)


def test_its_limits_are_those_of_the_package(installer: ModuleType) -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    newest = f"{installer.NEWEST[0]}.{installer.NEWEST[1] + 1}"
    assert needs == f">={installer.OLDEST[0]}.{installer.OLDEST[1]},<{newest}"
    assert installer.LEAST_TORCH == LEAST_TORCH
    assert installer.CONFIGURATION == CONFIGURATION


def test_an_old_python_can_read_it() -> None:
    ast.parse(FILE.read_text(), feature_version=(3, 6))


def test_it_takes_the_python_that_has_torch_and_first_the_one_that_runs_it(
    installer: ModuleType, tmp_path: Path
) -> None:
    make_python(tmp_path / "mine/python3")
    make_python(tmp_path / "usual/python3.13", torch="2.12.0")
    assert installer.find_python()["python"] == str(tmp_path / "usual/python3.13")
    make_python(tmp_path / "path/python", torch="2.11.0")
    assert installer.find_python()["python"] == str(tmp_path / "path/python")
    make_python(tmp_path / "mine/python3", torch="2.10.0")
    assert installer.find_python()["python"] == str(tmp_path / "mine/python3")


def test_it_asks_a_real_python(installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text("__version__ = '2.12.0a0+nv26.1'\ncuda = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined]
    found = installer.find_python()
    assert found["torch"] == "2.12.0a0+nv26.1"
    assert tuple(found["version"]) == sys.version_info[:3]
    assert Path(found["site"]).name in ("site-packages", "dist-packages")


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ({"version": (3, 10, 4), "torch": "2.9.1"}, "Python 3.10.4 ({}) has PyTorch, but Slipway needs Python 3.11 to 3.13."),
        ({"version": (3, 14, 0), "torch": "2.9.1"}, "Python 3.14.0 ({}) has PyTorch, but Slipway needs Python 3.11 to 3.13."),
        ({"torch": "2.1.0+cu118"}, "Python 3.12.1 ({}) has PyTorch 2.1.0+cu118, but Slipway needs PyTorch "),
        ({"torch": "2.12.0", "slipway": "/x/slipway"}, "RUN {} -m pip uninstall --yes slipway"),
        ({}, "no Python here has PyTorch, which every job needs; without it are: Python 3.12.1 ({})."),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_by_name(
    installer: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], python: dict, says: str
) -> None:
    program = tmp_path / "path/python3"
    make_python(program, **python)
    assert installer.main() == 78
    assert says.format(program) in capsys.readouterr().err
    assert not (tmp_path / "opt").exists()


def test_an_image_of_our_own_is_left_alone(
    installer: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_python(tmp_path / "path/python3", torch="2.12.0")
    (tmp_path / "opt/slipway/bin").mkdir(parents=True)
    assert installer.main() == 78
    assert "needs no second launcher" in capsys.readouterr().err


@pytest.mark.parametrize("torch", ["2.12.0a0+nv26.1", "2.9.0", "10.0", "/nobody/knows"])
def test_a_version_that_is_new_enough_or_unknown_will_do(installer: ModuleType, torch: str) -> None:
    installer.require_fitting({"name": "", "version": [3, 11, 0], "torch": torch, "slipway": ""})


def test_the_parts_of_the_wheels_for_this_machine_go_to_their_folders(installer: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for name, files in {
        "slipway-0.1.0-py3-none-any": ["slipway/__init__.py", "slipway.pth", "slipway-0.1.0.dist-info/RECORD"],
        "py_spy-1-py2.py3-none-manylinux1_x86_64": ["py_spy-1.data/scripts/py-spy", "py_spy-1.dist-info/RECORD"],
        "py_spy-1-py2.py3-none-manylinux2014_aarch64": ["py_spy-1.data/scripts/other"],
    }.items():
        with zipfile.ZipFile(tmp_path / f"wheels/{name}.whl", "w") as wheel:
            for file in files:
                wheel.writestr(file, file)
    assert installer.unpack("x86_64") == "0.1.0"
    target = tmp_path / "opt/slipway"
    assert sorted(str(file.relative_to(target)) for file in target.rglob("*") if file.is_file()) == [
        "bin/py-spy",
        "lib/slipway.pth",
        "lib/slipway/__init__.py",
        "share/py_spy-1.dist-info/RECORD",
        "share/slipway-0.1.0.dist-info/RECORD",
    ]
    assert (target / "bin/py-spy").stat().st_mode & 0o777 == 0o755
    assert (target / "lib/slipway/__init__.py").stat().st_mode & 0o777 == 0o644
