"""A home and caches for any user id: torch asks for both, and fails or caches in vain without them."""

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from slipway.launch.resolve.folders import can_write, may_execute

CACHES = {"XDG_CACHE_HOME": "cache", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}

WORKSPACE = Path("/workspace")  # the image's working directory, which is its user's home


def place_home(
    environ: Mapping[str, str], scratch: Path, data: Path | None, mounts: Collection[Path] = ()
) -> dict[str, str]:
    """Return the variables for a home that cannot be written, and for caches where the usual places do not do.

    `data`, the image's own folder for caches, comes first, then `scratch`, which lies among the temporary files, then
    the home. Code is cached where it may be executed, if there is such a place. In the image a home is the user's own
    where a volume is in it; `mounts` are the mount points.
    """
    home = Path(environ.get("HOME") or "/nonexistent")
    at_home = [home / ".cache/slipway"] if os.access(home, os.W_OK | os.X_OK) else []
    if at_home and not data and may_execute(scratch) and may_execute(home):
        return {}
    places = [*([data] if data and can_write(data) else []), scratch, *at_home]
    code = next((place for place in places if may_execute(place)), places[0])
    mended = place_caches(environ, places[0], code)
    if at_home and places[0] == scratch:
        mended.pop("XDG_CACHE_HOME", None)  # the usual place does for data
    # A real home may hold what the user's programs read, and only the caches go elsewhere.
    real = home.is_dir() and home != Path("/")
    if data:
        real = real and home != WORKSPACE and any(point.is_relative_to(home) for point in mounts)
    return mended if at_home or real else {"HOME": str(scratch), **mended}


def place_caches(environ: Mapping[str, str], data: Path, code: Path) -> dict[str, str]:
    """Return the variables of caches for data and for compiled code that the user has not set."""
    folders = {"XDG_CACHE_HOME": data, "TORCHINDUCTOR_CACHE_DIR": code, "TRITON_CACHE_DIR": code}
    return {name: f"{folders[name]}/{part}" for name, part in CACHES.items() if not environ.get(name)}


def make_folders(mended: Mapping[str, str]) -> None:
    """Make the folders that `mended` names, for this user alone. Raises OSError."""
    homes = [Path(mended["HOME"])] if "HOME" in mended else []
    for folder in [*homes, *(Path(mended[name]).parent for name in CACHES if name in mended)]:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def private_folder(parent: Path) -> Path:
    """A folder of this user's own in a place that all users of a host write to: caches hold code that is executed."""
    folder = parent / f"slipway-{os.getuid()}"
    try:
        found = folder.lstat()
    except OSError:
        return folder  # whoever starts makes it
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return parent / f"{folder.name}-{os.urandom(8).hex()}"
