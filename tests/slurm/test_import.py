"""`slurm/import.sh`: an image becomes a .sqsh file, from the real engine, an archive, or (a stand-in for enroot) a registry."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from archives import MADE, Entry, write_archive, write_checksum

IMPORT = Path(__file__).parents[2] / "slurm/import.sh"
NAMES = ("SHARED", "PYTHON", "ENROOT_SQUASH_OPTIONS", "TMPDIR", "BASH_ENV")  # of this shell: they decide nothing here
LAYERS = (
    (
        Entry("etc"),
        Entry("etc/environment", b"of=the image\n"),
        Entry("etc/fstab", b"/dev/sda1 / ext4 defaults 0 1\n"),
        Entry("usr"),
        Entry("usr/bin"),
        Entry("usr/bin/tool", b"#!/bin/sh\n", mode=0o4755),
        Entry("usr/bin/same", link="usr/bin/tool", kind=tarfile.LNKTYPE, mode=0o4755),
        Entry("run", link="/var/run"),
        Entry("kept"),
        Entry("kept/gone", b"gone"),
        Entry("kept/kept", b"kept", mode=0o600),
        Entry("emptied"),
        Entry("emptied/old", b"old"),
        Entry("became-a-file"),
        Entry("became-a-file/inside", b"inside"),
        Entry("became-a-folder", b"file"),
        Entry("became-a-link"),
        Entry("became-a-link/inside", b"inside"),
        Entry("locked", mode=0o555),
        Entry("removed"),
        Entry("removed/inside", b"inside"),
    ),
    (
        Entry("kept"),
        Entry("kept/.wh.gone", b""),
        Entry("emptied"),
        Entry("emptied/new", b"new"),
        Entry("emptied/.wh..wh..opq", b""),
        Entry("became-a-file", b"file"),
        Entry("became-a-folder"),
        Entry("became-a-folder/inside", b"inside"),
        Entry("became-a-link", link="usr"),
        Entry("locked", mode=0o555),
        Entry("locked/late", b"late"),
        Entry(".wh.removed", b""),
    ),
    (Entry("usr"), Entry("usr/bin"), Entry("usr/bin/tool", b"#!/bin/bash\n", mode=0o4755)),
)
SETTINGS = {
    "Env": ["PATH=/usr/bin", "GREETING=good day"],
    "Entrypoint": ["/usr/bin/tool", "--to", "all of you"],
    "Cmd": ["run"],
    "WorkingDir": "/kept",
}
RC = """\
cd /kept || exit 1
if [ $# -gt 0 ]; then exec /usr/bin/tool --to 'all of you' "$@"; else exec /usr/bin/tool --to 'all of you' run; fi
"""
# What enroot was asked for; it refuses a file that is there, as the real one does.
ENROOT = """\
#!/bin/sh
[ "$1 $2" = "import --output" ] && [ ! -e "$3" ] && [ $# = 4 ] && echo "$4" >"$(dirname "$0")/asked" && echo "$4" >"$3"
"""


@pytest.fixture
def name(undo: ExitStack) -> str:
    """A name for an image, which goes afterwards."""
    name = f"slipway-test-{secrets.token_hex(4)}:1.0"
    undo.callback(subprocess.run, ["docker", "image", "rm", "--force", name], capture_output=True)
    return name


@pytest.fixture
def archive(tmp_path: Path, name: str) -> Path:
    """An archive of a small image, as `docker save` would write it."""
    path = tmp_path / "image.tar"
    write_archive(path, name, LAYERS, SETTINGS)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The folder for .sqsh files."""
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def start(*words: str | Path, programs: Path | None = None, **settings: str) -> subprocess.Popen[str]:
    """Start import.sh; `programs` is a folder with programs that come first."""
    environ = {name: value for name, value in os.environ.items() if name not in NAMES} | settings
    if programs:
        environ["PATH"] = f"{programs}:{environ['PATH']}"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        # Whoever runs tests in the background has them ignore Ctrl-C's signal.
        ["env", "--default-signal=INT", IMPORT, *words],
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environ,
        cwd="/",
        start_new_session=True,
    )


def said(*words: str | Path, code: int = 0, programs: Path | None = None, **settings: str) -> str:
    """What import.sh says before it ends with this exit code."""
    process = start(*words, programs=programs, **settings)
    text = process.communicate(timeout=120)[1]
    assert process.returncode == code, text
    return text


def program(folder: Path, name: str, text: str) -> Path:
    """Write a program that stands in for a real one; returns its folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder


def unsquashed(file: Path) -> Path:
    """The files in a .sqsh file."""
    root = file.with_suffix("")
    subprocess.run(["unsquashfs", "-no-progress", "-d", root, file], check=True, capture_output=True)
    return root


def listing(root: Path) -> dict[str, tuple[object, ...]]:
    """All that is below a folder: where links lead, what files hold, their modes and times."""
    found: dict[str, tuple[object, ...]] = {}
    for path in root.rglob("*"):
        state = path.lstat()
        if path.is_symlink():
            found[str(path.relative_to(root))] = ("link", path.readlink())
        elif path.is_dir():
            found[str(path.relative_to(root))] = ("folder", oct(state.st_mode | 0o700))
        else:
            found[str(path.relative_to(root))] = (path.read_bytes(), oct(state.st_mode), int(state.st_mtime))
    return found


def exported(name: str, folder: Path) -> Path:
    """What the engine makes of the layers: the root file system of a container."""
    container = subprocess.check_output(["docker", "create", name], text=True).strip()
    folder.mkdir()
    with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as exporting:
        subprocess.run(
            ["tar", "--extract", "--preserve-permissions", "--directory", folder], stdin=exporting.stdout, check=True
        )
    subprocess.run(["docker", "rm", container], check=True, capture_output=True)
    return folder


@pytest.mark.needs("engine")
@pytest.mark.parametrize("source", ["dockerd", "tar", "tar.zst"])
def test_the_files_are_those_that_the_engine_gives_a_container(
    source: str, archive: Path, name: str, images: Path, tmp_path: Path
) -> None:
    subprocess.run(["docker", "load", "--input", archive], check=True, capture_output=True)
    if source == "tar.zst":
        subprocess.run(["zstd", "--quiet", archive], check=True)
        write_checksum(tmp_path / "image.tar.zst")
    file = images / "image.sqsh"
    told = said(f"dockerd://{name}" if source == "dockerd" else tmp_path / f"image.{source}", file)
    assert f"export IMAGE={file}" in told
    assert list(images.iterdir()) == [file]
    root = unsquashed(file)
    assert (root / "etc/environment").read_text() == "PATH=/usr/bin\nGREETING=good day\n"
    assert (root / "etc/fstab").read_text() == ""
    assert (root / "etc/rc").read_text() == RC
    ours, engines = listing(root), listing(exported(name, tmp_path / "exported"))
    # Files that enroot reads; and what the engine puts into a container, and mounts there.
    own = ("etc/", ".dockerenv", "dev", "proc", "sys")
    assert {path: what for path, what in ours.items() if not path.startswith(own)} == {
        path: what for path, what in engines.items() if not path.startswith(own)
    }
    assert ours["usr/bin/tool"] == (b"#!/bin/bash\n", oct(0o104755), MADE)
    assert ours["usr/bin/same"] == (b"#!/bin/sh\n", oct(0o104755), MADE)


def test_anybody_imports_an_archive_without_an_engine(archive: Path, images: Path) -> None:
    programs = program(images.parent / "bin", "docker", "#!/bin/sh\nexit 1\n")
    for folder in archive.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    images.chmod(0o777)
    stranger = ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups")
    environ = {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run([*stranger, IMPORT, archive, images / "image.sqsh"], env=environ, check=True, capture_output=True)
    assert (images / "image.sqsh").stat().st_uid == 12345
    told = subprocess.run(
        ["unsquashfs", "-stat", images / "image.sqsh"], check=True, capture_output=True, text=True
    ).stdout
    assert "Data is uncompressed" in told
    assert "Fragments are uncompressed" in told, "to pack the ends of files takes nearly all of the time"
    assert unsquashed(images / "image.sqsh").joinpath("kept/kept").read_bytes() == b"kept"


def test_no_layer_writes_through_a_link_to_somewhere_else(tmp_path: Path, images: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (outside / "mine").chmod(0o600)
    trap = Entry("trap", link=str(outside))
    layers = (
        (trap, Entry("trap/new", b"theirs"), Entry("copy", link="trap/mine", kind=tarfile.LNKTYPE)),
        (Entry("trap/mine", b"theirs"), Entry("trap/.wh.mine", b""), Entry("../up", b"theirs")),
        (trap, Entry("etc"), Entry("etc/rc", link=str(outside / "mine"))),
    )
    path = tmp_path / "image.tar"
    write_archive(path, name, layers[1:], SETTINGS)
    said(path, images / "image.sqsh")
    root = unsquashed(images / "image.sqsh")
    assert sorted(entry.name for entry in root.iterdir()) == ["etc", "trap", "up"]
    assert not (root / "etc/rc").is_symlink()
    write_archive(path, name, layers[:1], SETTINGS)
    assert "no archive of one image" in said(
        path, images / "hard.sqsh", code=78
    )  # a hard link to what it does not hold
    assert {entry.name: entry.read_text() for entry in outside.iterdir()} == {"mine": "mine"}


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("registry.example/owner/slipway:1.2.3", "docker://registry.example#owner/slipway:1.2.3"),
        ("registry.example#owner/slipway:1.2.3", "docker://registry.example#owner/slipway:1.2.3"),
        ("docker://registry.example/slipway:1.2.3", "docker://registry.example#slipway:1.2.3"),
        ("$oauthtoken@registry.example#slipway:1.2.3", "docker://$oauthtoken@registry.example#slipway:1.2.3"),
        ("localhost/slipway:1", "docker://localhost#slipway:1"),
        ("localhost:5000/slipway:1", "docker://localhost:5000#slipway:1"),
        ("registry.example/slipway@sha256:0123abcd", "docker://registry.example#slipway@sha256:0123abcd"),
        ("docker.io/owner/slipway:1.2.3", "docker://registry-1.docker.io#owner/slipway:1.2.3"),
    ],
)
def test_enroot_is_asked_for_a_registrys_image(source: str, asked: str, images: Path, tmp_path: Path) -> None:
    programs = program(tmp_path / "bin", "enroot", ENROOT)
    said(source, images / "image.sqsh", programs=programs)
    assert (programs / "asked").read_text() == f"{asked}\n"
    assert [path.name for path in images.iterdir()] == ["image.sqsh"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "one or two words are needed"),
        (("--help",), 2, "Type: slurm/import.sh dockerd://slipway:dev [FILE.sqsh]"),
        (("dockerd://slipway:dev", "slipway:dev"), 2, "does not end in .sqsh"),
        (("slipway:dev", "{images}/image.sqsh"), 2, "dockerd://slipway:dev"),
        (("owner/slipway:1", "{images}/image.sqsh"), 2, "Docker Hub's is docker.io/owner/slipway:1"),
        (("owner/a.b/slipway:1", "{images}/image.sqsh"), 2, "names no registry"),
        (("docker://slipway", "{images}/image.sqsh"), 2, "names no registry"),
        (("registry.example:5000/slipway", "{images}/image.sqsh"), 2, "as in registry.example:5000/slipway:1.2.3"),
        (("registry.example#slipway", "{images}/image.sqsh"), 2, "names no tag"),
        (("registry.example/slipway:1", "{images}/image.sqsh"), 78, "enroot is needed"),
        (("dockerd://slipway-test-none:1", "{images}/image.sqsh"), 78, "docker gives no image slipway-test-none:1"),
        (("/nowhere/slipway.tar.zst", "{images}/image.sqsh"), 78, "there is no /nowhere/slipway.tar.zst"),
        (("dockerd://slipway:dev", "/nowhere/images/image.sqsh"), 78, "Type: slurm/setup.sh /nowhere"),
        (("dockerd://slipway:dev", "/nowhere/image.sqsh"), 78, "Name a file in a folder of yours."),
        (("dockerd://slipway:dev", "/images/image.sqsh"), 78, "Name a file in a folder of yours."),
    ],
)
def test_what_cannot_work_is_refused(words: tuple[str, ...], code: int, says: str, images: Path) -> None:
    assert says in said(*(word.format(images=images) for word in words), code=code)
    assert not list(images.iterdir())


def test_the_file_that_jobs_start_is_made_where_none_is_named(archive: Path, images: Path) -> None:
    said(archive, SHARED=str(images.parent))
    assert [path.name for path in images.iterdir()] == ["slipway.sqsh"]


def test_a_file_that_is_there_stays(archive: Path, images: Path) -> None:
    file = images / "image.sqsh"
    file.write_text("older")
    assert f"rm {file}" in said(archive, file, code=78)
    assert file.read_text() == "older"


def test_of_two_who_import_at_once_the_first_ones_file_stays(archive: Path, images: Path, tmp_path: Path) -> None:
    file = images / "image.sqsh"
    real = shutil.which("mksquashfs")
    programs = program(tmp_path / "bin", "mksquashfs", f'#!/bin/sh\n{real} "$@" && echo first >{file}\n')
    assert "somebody else" in said(archive, file, code=78, programs=programs)
    assert {path.name: path.read_text() for path in images.iterdir()} == {"image.sqsh": "first\n"}


@pytest.mark.parametrize(
    ("checksum", "says"),
    [(None, "there is no {}.sha256"), ("0" * 64 + "  image.tar\n", "its sha256 differs"), ("", "its sha256 differs")],
)
def test_an_archive_without_its_checksum_is_not_imported(
    checksum: str | None, says: str, archive: Path, images: Path
) -> None:
    beside = archive.with_name("image.tar.sha256")
    if checksum is None:
        beside.unlink()
    else:
        beside.write_text(checksum)
    assert says.format(archive) in said(archive, images / "image.sqsh", code=78)
    assert not list(images.iterdir())


def test_what_is_no_image_is_said(tmp_path: Path, images: Path) -> None:
    path = tmp_path / "other.tar"
    path.write_text("no tar file")
    write_checksum(path)
    told = said(path, images / "image.sqsh", code=78)
    assert "no archive of one image" in told
    assert "Traceback" not in told
    assert not list(images.iterdir())


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    archive: Path, images: Path, tmp_path: Path
) -> None:
    programs = program(tmp_path / "bin", "df", "#!/bin/sh\necho Avail\necho 1000\n")
    assert "TMPDIR=/path" in said(archive, images / "image.sqsh", code=78, programs=programs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_import_leaves_nothing(
    number: signal.Signals, archive: Path, images: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # As Ctrl-C does: everyone gets the signal, while the file is there in part.
    killing = f'#!/bin/sh\necho part >"$2"\nkill -{number.value} 0\nsleep 60\n'
    programs = program(tmp_path / "bin", "mksquashfs", killing)
    process = start(archive, images / "image.sqsh", programs=programs, TMPDIR=str(scratch))
    text = process.communicate(timeout=60)[1]
    assert process.returncode in (-number, 128 + number), text
    assert not list(images.iterdir())
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("missing", ["mksquashfs", "zstd", "docker"])
def test_a_program_that_is_missing_is_named(missing: str, images: Path, tmp_path: Path) -> None:
    programs = tmp_path / "few"
    programs.mkdir()
    for each in ("bash", "env", "realpath", "dirname", "mksquashfs", "zstd", "docker", "mktemp", "rm"):
        if each != missing and (found := shutil.which(each)):
            (programs / each).symlink_to(found)
    source = "dockerd://slipway:dev" if missing == "docker" else "slipway.tar.zst"
    told = said(source, images / "image.sqsh", code=78, PATH=str(programs), PYTHON=sys.executable)
    assert f"{missing} is needed. On Debian: apt-get install" in told
    assert not list(images.iterdir())
