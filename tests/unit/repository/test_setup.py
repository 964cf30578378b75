"""entrypoint/setup.sh on machines that lack something: it says what, and what to type, before it fetches anything."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout on a machine that has coreutils, 100 GB of free disk, and what else a test puts into its `bin`."""
    (tmp_path / "checkout" / "entrypoint").mkdir(parents=True)
    for name in ("setup.sh", "slipway.pth"):
        shutil.copy(ROOT / "entrypoint" / name, tmp_path / "checkout" / "entrypoint")
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "tail", "mkdir", "rm", "env", "ln", "cp", "du", "seq"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    add(tmp_path, "df", "echo Avail; echo 102400")
    return tmp_path


def add(machine: Path, name: str, script: str) -> None:
    program = machine / "bin" / name
    program.unlink(missing_ok=True)
    program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    program.chmod(0o755)


def set_up(machine: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [machine / "checkout/entrypoint/setup.sh", "locks/requirements.lock"],
        env={"PATH": str(machine / "bin"), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("", "apt-get install python3 python3-venv"),
        ("exit 1  # not 3.11 to 3.13", "no Python 3.11, 3.12 or 3.13 was found"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "apt-get install python3-venv"),
    ],
)
def test_without_a_python_that_fits_it_names_the_packages(machine: Path, python: str, says: str) -> None:
    if python:
        add(machine, "python3", python)
    answer = set_up(machine)
    assert answer.returncode == 78
    assert says in answer.stderr


def test_any_python_that_fits_is_taken_and_a_shim_that_does_not_start_is_passed_over(machine: Path) -> None:
    add(machine, "python3", "exit 127")
    add(machine, "python3.12", 'case "$1" in -m) echo "makes $3"; exit 1;; --version) echo "Python 3.12.1";; esac')
    answer = set_up(machine)
    assert "making .venv with Python 3.12.1" in answer.stderr
    assert "makes .venv" in answer.stdout


def test_too_little_disk_is_told_before_anything_is_fetched(machine: Path) -> None:
    add(machine, "df", "echo Avail; echo 2048")
    answer = set_up(machine)
    assert answer.returncode == 77
    assert "13 GB of free disk are needed here, 2 GB are free" in answer.stderr
    assert not (machine / "checkout" / ".venv").exists()


def fetch_with(machine: Path, pip: str) -> str:
    """A Python and a pip that do `pip` instead; returns the folder of caches, which is to be XDG_CACHE_HOME."""
    add(machine, "pip", pip)
    makes = f"mkdir -p .venv/bin .venv/lib/python3.12/site-packages && cp '{machine}/bin/pip' .venv/bin"
    add(machine, "python3", f'case "$1" in -m) {makes};; --version) echo "Python 3.12.1";; esac')
    return str(machine / "cache")


def test_wheels_are_fetched_into_a_cache_that_all_checkouts_share_and_installed_from_there(machine: Path) -> None:
    answer = set_up(machine, XDG_CACHE_HOME=fetch_with(machine, 'echo "pip: $*"'))
    assert answer.returncode == 0, answer.stderr
    wheels = machine / "cache/slipway/wheels"
    said = (machine / "checkout/.venv/setup.log").read_text().splitlines()
    fetch, install, ourselves = [line for line in said if line.startswith("pip: ")]
    assert fetch.startswith("pip: download ")
    assert fetch.endswith(
        f" --require-hashes --no-deps --progress-bar off --requirement locks/requirements.lock --dest {wheels}"
    )
    assert install.endswith(
        f" --require-hashes --no-deps --requirement locks/requirements.lock --no-index --find-links {wheels}"
    )
    assert ourselves.endswith(" --editable .")
    assert (machine / "checkout/.venv/wheels").resolve() == wheels


def test_a_step_is_a_line_and_says_how_much_was_fetched(machine: Path) -> None:
    wheel = machine / "cache/slipway/wheels/it.whl"
    caches = fetch_with(machine, f"[ $1 = install ] || printf %0120000000d 0 >'{wheel}'; seq 50; seq 50 >&2")
    answer = set_up(machine, XDG_CACHE_HOME=caches)
    assert answer.returncode == 0, answer.stderr
    lines = answer.stderr.splitlines()
    assert all(line.startswith("setup: ") for line in lines), answer.stderr
    assert len(lines) == 4, answer.stderr
    assert lines[2].startswith("setup: fetched 0.1 GB in "), answer.stderr
    assert answer.stdout == ""


def test_an_error_shows_its_end_and_names_the_file_that_has_all_of_it(machine: Path) -> None:
    answer = set_up(machine, XDG_CACHE_HOME=fetch_with(machine, "seq 50; echo no route to host; exit 3"))
    assert answer.returncode == 3
    assert "setup: this failed with exit code 3: .venv/bin/pip download" in answer.stderr
    assert "no route to host" in answer.stderr
    assert "\n20\n" not in answer.stderr
    log = machine / "checkout/.venv/setup.log"
    assert f"all of what it said: {log}" in answer.stderr
    assert "\n20\n" in log.read_text()


@pytest.mark.parametrize("lock", sorted(ROOT.glob("locks/*.lock")), ids=lambda lock: lock.stem)
def test_a_lock_is_the_same_for_every_patch_release_of_python(lock: Path) -> None:
    """Wheels that were fetched by 3.11.7 do for Debian 12's 3.11.2, on a machine without a network too."""
    told_apart = re.findall(r"^.*python_full_version [<>=]+ '3\.\d+\.\d+'.*$", lock.read_text(), re.MULTILINE)
    assert not told_apart, "make lock"
