"""The root file system of a container: the image's layers, below a layer in memory in which mount points are made.

As enroot does it: what it mounts and writes is there when the root becomes read-only. Paths of the image are followed
through its own symbolic links, or the layer in memory would hide them (/var/run).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kernel import BIND, NODEV, NOEXEC, NOSUID, RDONLY, REMOUNT, bind, call

KERNEL = {"/proc": NOSUID | NODEV | NOEXEC, "/sys": NOSUID | NODEV | NOEXEC, "/dev": NOSUID | NOEXEC}
HOST_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/localtime")
IN_MEMORY = ("/tmp", "/run")
Mount = tuple[str, str, int]  # source, target, flags


def make_root(
    scratch: Path, lower: Path, files: Mapping[str, str], folders: Iterable[str], mounts: Sequence[Mount]
) -> Path:
    """Return the place of a read-only root with these files, folders and mounts. `scratch` is hidden by it."""
    call("mount", "tmpfs", scratch, "tmpfs", NOSUID | NODEV, "mode=0755")
    upper, root = scratch / "upper", scratch / "root"
    for folder in (upper, scratch / "work", root):
        folder.mkdir()
    system = [(path, path, RDONLY | flags) for path, flags in KERNEL.items()]
    system += [(path, path, RDONLY | NOSUID | NODEV | NOEXEC) for path in HOST_FILES if Path(path).exists()]
    for source, target, _ in (*system, *mounts):
        if not Path(source).exists():
            raise OSError(f"failed to mount: {source} at {target}: No such file or directory")
        if not (lower / followed(lower, target)).exists():
            make_point(upper / followed(lower, target), Path(source).is_dir())
    for path in (*IN_MEMORY, *folders):
        make_point(upper / followed(lower, path), True)
    for path, text in files.items():
        make_point(upper / followed(lower, path), False)
        (upper / followed(lower, path)).write_text(text)
    layers = f"lowerdir={lower},upperdir={upper},workdir={scratch}/work,userxattr"
    call("mount", "overlay", root, "overlay", NOSUID | NODEV, layers)

    for source, target, flags in system:
        bind(source, root / followed(lower, target), flags)
    for path in IN_MEMORY:
        call("mount", "tmpfs", root / followed(lower, path), "tmpfs", NOSUID | NODEV, None)
    for source, target, flags in mounts:
        place = root / followed(lower, target)
        if not place.exists():
            make_point(place, Path(source).is_dir())  # below /tmp
        bind(source, place, flags)
    call("mount", None, root, None, REMOUNT | BIND | NOSUID | NODEV | RDONLY, None)
    return root


def make_point(place: Path, folder: bool) -> None:
    """Make an empty file or folder to mount on, and the folders above it.

    Those that the image has too become this user's, as all of an image is that enroot unpacked for him.
    """
    (place if folder else place.parent).mkdir(parents=True, exist_ok=True)
    if not folder:
        place.touch()


def followed(lower: Path, path: str) -> Path:
    """A path of the image relative to its root, all symbolic links followed there."""
    rest, done = list(Path(path).parts[1:]), Path()
    for _ in range(1000):
        if not rest:
            return done
        part = rest.pop(0)
        link = lower / done / part
        if link.is_symlink():
            target = link.readlink()
            rest[:0] = target.parts[target.is_absolute() :]
            done = Path() if target.is_absolute() else done
        else:
            done = done.parent if part == ".." else done / part
    raise OSError(f"{path}: too many symbolic links in the image")
