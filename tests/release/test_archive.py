"""`make save` and `make load`: an image on its way to a site without a network."""

from pathlib import Path

import pytest
from commands import make, output, run

pytestmark = pytest.mark.needs("zstd")


def image_id(image: str) -> str:
    """What the engine calls the image's content."""
    return output("docker", "image", "inspect", "--format", "{{.Id}}", image)


def test_what_is_saved_here_is_loaded_there(small: str, tmp_path: Path) -> None:
    archive, saved = tmp_path / "an" / "image.tar.zst", image_id(small)
    make("save", IMAGE=small, ARCHIVE=str(archive))
    assert sorted(path.name for path in archive.parent.iterdir()) == ["image.tar.zst", "image.tar.zst.sha256"]
    # As a site without a checkout checks it.
    output("env", "--chdir", archive.parent, "sha256sum", "--check", "image.tar.zst.sha256")
    output("docker", "image", "rm", small)
    assert small in make("load", ARCHIVE=str(archive))
    assert image_id(small) == saved


def test_a_damaged_archive_is_not_loaded(small: str, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar.zst"
    make("save", IMAGE=small, ARCHIVE=str(archive))
    output("docker", "image", "rm", small)
    with archive.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    done = run("images/release/archive.sh", "load", ARCHIVE=str(archive))
    assert done.returncode == 78
    assert "its sha256 differs" in done.stderr
    assert run("docker", "image", "inspect", small).returncode


@pytest.mark.pull
@pytest.mark.parametrize(
    ("there", "says"),
    [((), "Make it with 'make save'"), (("image.tar.zst",), "there is no {}.sha256, which 'make save' writes")],
)
def test_what_is_missing_is_named(tmp_path: Path, there: tuple[str, ...], says: str) -> None:
    archive = tmp_path / "image.tar.zst"
    for name in there:
        (tmp_path / name).touch()
    done = run("images/release/archive.sh", "load", ARCHIVE=str(archive))
    assert done.returncode == 78
    assert says.format(archive) in done.stderr


def test_an_image_that_is_not_there_leaves_an_older_archive_alone(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar.zst"
    archive.write_text("older")
    done = run("images/release/archive.sh", "save", IMAGE="slipway-test-none", ARCHIVE=str(archive))
    assert done.returncode == 78
    assert "Type: make image" in done.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["older"]


@pytest.mark.pull
def test_an_archive_is_called_after_the_version() -> None:
    done = run("images/release/archive.sh", "load", VERSION="9.9.9")
    assert "dist/slipway-9.9.9-cuda12-torch2.10.tar.zst" in done.stderr
