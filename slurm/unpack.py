"""Unpack a docker archive into a folder, ready for mksquashfs and enroot: `unpack.py IMAGE.tar FOLDER` (import.sh does it).

It needs no container engine and no rights, and runs on login nodes: the standard library of Python 3.9 is all it uses.
Layers are laid from the newest to the oldest, and what a newer one has, or took away, is skipped. So nothing is written
twice, and nothing goes through a symbolic link of the image to a place outside the folder.

Format: manifest.json (https://github.com/moby/moby/blob/master/image/spec/v1.2.md) and what a layer takes away
(https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts).
"""

import json
import os
import posixpath
import shlex
import shutil
import signal
import sys
import tarfile
from pathlib import Path
from typing import Any

GONE, EMPTIED = ".wh.", ".wh..wh..opq"  # before the name of what a layer removes; in a folder that it made anew


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the image's files to `folder`, and what enroot reads. Raises KeyError, ValueError and tarfile's errors."""
    images = json.load(_member(archive, "manifest.json"))
    if len(images) != 1:
        raise ValueError(f"it holds {len(images)} images; save one alone")
    settings = json.load(_member(archive, images[0]["Config"]))
    covered: set[str] = set()
    for name in reversed(images[0]["Layers"]):
        with tarfile.open(fileobj=_member(archive, name)) as layer:
            covered |= lay(layer, folder, covered)
    configure(folder, settings.get("config") or {})


def lay(layer: tarfile.TarFile, folder: Path, covered: set[str]) -> set[str]:
    """Write what `covered` does not cover and add it there; return what this layer takes away from older ones.

    Covered is each path that is no folder, with all below it; `folder/` means only what is below it.
    """
    taken = set()
    for member in layer:
        name = posixpath.normpath(f"/{member.name.lstrip('/')}")[1:]
        above, last = posixpath.split(name)
        path = folder / name
        if last == EMPTIED:
            taken.add(f"{above}/")
        elif last.startswith(GONE):
            taken.add(posixpath.join(above, last[len(GONE) :]))
        elif not name or _is_covered(name, covered):
            continue
        elif member.isdir():
            if not path.is_dir():
                path.mkdir(parents=True)
                path.chmod(member.mode | 0o700)  # we write into it, and mksquashfs reads it
        elif not path.is_dir():
            _write(layer, member, path)
            covered.add(name)
    return taken


def configure(folder: Path, settings: "dict[str, Any]") -> None:
    """Write the files that stand for the image's settings: https://github.com/NVIDIA/enroot/blob/master/doc/image-format.md.

    Mounts are the job's business, so /etc/fstab is empty. /etc/rc runs where nobody said --no-container-entrypoint.
    """
    start = shlex.join(settings.get("Entrypoint") or [])
    command = shlex.join(settings.get("Cmd") or ([] if start else ["/bin/sh"]))
    place = shlex.quote(settings.get("WorkingDir") or "/")
    files = {
        "environment": "".join(f"{variable}\n" for variable in settings.get("Env") or []),
        "fstab": "",
        "rc": f'cd {place} || exit 1\nif [ $# -gt 0 ]; then exec {start} "$@"; else exec {start} {command}; fi\n',
    }
    if (folder / "etc").is_symlink():
        raise ValueError("its /etc is a symbolic link")
    for name, text in files.items():
        path = folder / "etc" / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)  # it may be a link to elsewhere
        path.write_text(text, encoding="utf-8")


def _write(layer: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.islnk():  # becomes a file of its own: mksquashfs finds that both are the same
        member = layer.getmember(member.linkname)
    if member.issym():
        path.symlink_to(member.linkname)
    elif member.isreg():
        with path.open("wb") as file:
            shutil.copyfileobj(_member(layer, member), file, 1 << 20)
        path.chmod(member.mode | 0o400)
        os.utime(path, (member.mtime, member.mtime))  # Python compares it with its byte code's
    # Devices belong to the host: enroot mounts its /dev.


def _is_covered(name: str, covered: set[str]) -> bool:
    above = posixpath.dirname(name)
    return name in covered or f"{above}/" in covered or (bool(above) and _is_covered(above, covered))


def _member(archive: tarfile.TarFile, member: "str | tarfile.TarInfo") -> Any:
    file = archive.extractfile(member)
    if file is None:
        raise ValueError(f"{member} is no file")
    return file


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)  # every user of a cluster reads the image
    try:
        with tarfile.open(sys.argv[1]) as opened:
            unpack(opened, Path(sys.argv[2]))
    except (KeyError, ValueError, tarfile.TarError, EOFError) as error:
        sys.exit(f"import: this is no archive of one image, as docker save writes it: {error}")
    except OSError as error:
        sys.exit(f"import: the image cannot be unpacked: {error}")
