"""The package as a wheel: a folder without `__init__.py` is in the checkout and would not be in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.launch.resolve.host import name_user

ROOT = Path(__file__).parents[2]
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


@pytest.mark.core
def test_every_module_is_in_the_wheel_and_can_be_imported_from_it(tmp_path: Path) -> None:
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    copy, installed = tmp_path / "copy", tmp_path / "installed"
    copy.mkdir()
    tar = subprocess.run(
        ["tar", "-c", "--null", "-T", "-", "--ignore-failed-read"],
        cwd=ROOT,
        input=files,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-x"], cwd=copy, input=tar.stdout, check=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps")
    subprocess.run([*pip, "--no-build-isolation", "--no-index", "--target", installed, copy], check=True)
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
