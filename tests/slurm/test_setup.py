"""`slurm/setup.sh`: the folders that the jobs of a group share, made by the real script, by other users too."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "slurm/setup.sh"
FOLDERS = ("runs", "cache", "images")
GROUP, GID = "users", 100  # Debian has them
MEMBER = ("setpriv", "--reuid=12345", "--regid=12345", f"--groups={GID}")
COLLEAGUE = ("setpriv", "--reuid=12346", "--regid=12346", f"--groups={GID}")
STRANGER = ("setpriv", "--reuid=12347", "--regid=12347", "--clear-groups")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in which every user may make one, as on a cluster's shared disk."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def setup(*words: str | Path, user: tuple[str, ...] = MEMBER, code: int = 0, **variables: str) -> str:
    """What setup.sh says, started by a user in a shell that lets nobody else write, and ended with this code."""
    command = ["bash", "-c", 'umask 077; exec "$@"', "bash", *user, SETUP, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", env={**os.environ, **variables})
    assert done.returncode == code, done.stderr
    return done.stderr


def modes(lab: Path) -> dict[str, tuple[str, int, int]]:
    """Mode, owner and group of what is there."""
    found = {}
    for path in lab.iterdir():
        state = path.stat()
        found[path.name] = (oct(state.st_mode & 0o7777), state.st_uid, state.st_gid)
    return found


def test_a_group_gets_its_folders(place: Path) -> None:
    lab = place / "lab"
    told = setup("--group", GROUP, lab)
    assert modes(lab) == dict.fromkeys(FOLDERS, ("0o3770", 12345, GID))
    assert modes(place)["lab"] == ("0o3770", 12345, GID)
    assert f"slurm/import.sh dockerd://slipway:dev {lab}/images/slipway.sqsh" in told
    assert f"SHARED={lab} sbatch --nodes=2 slurm/train.sbatch gpt" in told


def test_without_a_name_it_is_the_users_own_group(place: Path) -> None:
    setup(place / "lab", user=STRANGER)
    assert modes(place / "lab") == dict.fromkeys(FOLDERS, ("0o3770", 12347, 12347))


def test_what_a_colleague_makes_belongs_to_the_group_and_no_stranger_sees_it(place: Path) -> None:
    setup("--group", GROUP, place / "lab")
    inside = place / "lab/cache/tokens"
    make = 'umask 077; mkdir --parents "$1/new" && mkdir --mode=700 "$1/private"'
    subprocess.run([*COLLEAGUE, "bash", "-c", make, "bash", inside], check=True)
    # The group may write at every depth, whatever the umask; what is made for one alone stays so.
    assert modes(inside) == {"new": ("0o2770", 12346, GID), "private": ("0o2700", 12346, GID)}
    assert subprocess.run([*STRANGER, "ls", place / "lab"], capture_output=True).returncode


def test_without_access_control_lists_the_folders_are_the_same(place: Path) -> None:
    (place / "setfacl").write_text("#!/bin/sh\nexit 1\n")  # as on a file system that has none
    (place / "setfacl").chmod(0o755)
    setup("--group", GROUP, place / "lab", PATH=f"{place}:{os.environ['PATH']}")
    assert modes(place / "lab") == dict.fromkeys(FOLDERS, ("0o3770", 12345, GID))


def test_twice_is_once(place: Path) -> None:
    setup("--group", GROUP, place / "lab")
    (place / "lab/runs/run").write_text("of the member")
    before = modes(place / "lab")
    told = setup("--group", GROUP, place / "lab", user=COLLEAGUE)
    assert "left" in told
    assert "made" not in told
    assert modes(place / "lab") == before
    setup(place / "lab", user=COLLEAGUE)  # whose own group is another one
    assert modes(place / "lab") == before
    assert (place / "lab/runs/run").read_text() == "of the member"


def test_what_others_made_is_never_changed(place: Path) -> None:
    lab = place / "lab"
    lab.mkdir()
    lab.chmod(0o777)
    (lab / "runs").mkdir(mode=0o755)
    told = setup("--group", GROUP, lab, code=78)
    assert f"chgrp {GROUP} {lab}/runs && chmod g+rwxs {lab}/runs" in told
    assert "sbatch" not in told
    assert modes(lab) == {**dict.fromkeys(FOLDERS, ("0o3770", 12345, GID)), "runs": ("0o755", 0, 0)}


@pytest.mark.parametrize(
    ("words", "user", "code", "says"),
    [
        ((), MEMBER, 2, "setup.sh [--group NAME] DIR"),
        (("/",), MEMBER, 78, "Name a folder that all nodes share"),
        (("--shared", "{place}/lab"), MEMBER, 2, "setup.sh [--group NAME] DIR"),
        (("--help",), MEMBER, 2, "setup.sh [--group NAME] DIR"),
        (("--group", "no-such-group", "{place}/lab"), MEMBER, 78, "there is no group no-such-group"),
        (("--group", GROUP, "{place}/lab"), STRANGER, 78, f"you are not in the group {GROUP}"),
        (("{place}/no/lab",), MEMBER, 78, "No such file or directory"),
        (("{place}/root's/lab",), MEMBER, 78, "Permission denied"),
        (("{place}/root's",), MEMBER, 78, "Name a folder in one of yours, or ask its owner."),
    ],
)
def test_what_cannot_work_is_said(
    words: tuple[str, ...], user: tuple[str, ...], code: int, says: str, place: Path
) -> None:
    (place / "root's").mkdir(mode=0o755)
    assert says in setup(*(word.format(place=place) for word in words), user=user, code=code)
    assert sorted(path.name for path in place.rglob("*")) == ["root's"]
