"""The text that every Python carries with it: its standard library's own source.

Imports neither torch nor numpy: the launcher hashes the text, so that all nodes of a job are known to have the same.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from slipway.protocol.mistake import ConfigurationError

# Not part of every distribution's Python (Debian splits several off), or not source that a person wrote: encodings is
# a megabyte of tables.
EXCLUDED_FOLDERS = frozenset(
    {"__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idle_test", "idlelib", "lib-dynload"}
    | {"config", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "tkinter", "turtledemo", "venv"}
)
EXCLUDED_FILES = ("_distutils_system_mod", "_sysconfigdata", "sitecustomize", "turtle", "usercustomize")
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Text:
    """Bytes for training and for validation, and the sha256 over all files they came from."""

    train: bytes
    validation: bytes
    sha256: str


def is_validation(text: str, share: float = VALIDATION_SHARE) -> bool:
    """Whether a document, or the file with this path, is for validation: copies of it are, too."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:4]) < share * 2**32


def stdlib_files(root: Path) -> list[Path]:
    """The standard library's sources under `root`, sorted, without what some distributions lack. Raises ConfigurationError."""
    files = []
    for folder, inside, names in os.walk(root):
        # Left out before they are entered: site-packages alone holds ten times as many files as the library.
        inside[:] = [name for name in inside if name.partition("-3.")[0] not in EXCLUDED_FOLDERS]
        sources = (name for name in names if name.endswith(".py") and not name.startswith(EXCLUDED_FILES))
        files += [Path(folder, name) for name in sources]
    if not files:
        raise ConfigurationError(f"{root} holds no Python source; use a Python that ships its library as .py files.")
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def read_stdlib(root: Path | None = None) -> Text:
    """The Python standard library's own source as bytes, split by file. Raises OSError where it cannot be read."""
    root = root or Path(sysconfig.get_path("stdlib"))
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    digest = hashlib.sha256()
    for path in stdlib_files(root):
        name, content = path.relative_to(root).as_posix(), path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
        parts[is_validation(name)].append(content)
    return Text(b"".join(parts[False]), b"".join(parts[True]), digest.hexdigest())
