"""Files that are not what their names say: pointers of Git LFS and git-annex, web pages, and what systems leave in folders."""

from __future__ import annotations

from pathlib import Path

from slipway.protocol.mistake import ConfigurationError

LARGEST = 1024  # bytes of a pointer: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
POINTERS = (
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS", "git lfs pull"),
    (b"version https://hawser.github.com/spec/", "a pointer of Git LFS", "git lfs pull"),
    (b"/annex/objects/", "a pointer of git-annex", "git annex get ."),
)
PAGES = (b"<!doctype html", b"<html", b"<?xml")
# Folders and files that macOS, Windows, network storage and version control put beside a user's own.
COMPANIONS = frozenset(
    {"__macosx", "__pycache__", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "@eadir", "#recycle"}
    | {"$recycle.bin", "system volume information", "lost+found", "cvs"}
)


def is_companion(name: str) -> bool:
    """Whether a file or folder is hidden (`._000.png`, `.DS_Store`, `.git`), or was put there by some system."""
    return name.startswith(".") or name.lower() in COMPANIONS


def explain_pointer(path: Path) -> str:
    """What a file is instead of its content, with what to type; empty where it is no pointer, or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(LARGEST + 1)
    except OSError:
        return ""
    for beginning, what, command in POINTERS:
        if len(head) <= LARGEST and head.startswith(beginning):
            return f"{path} is {what} and not the file itself. Type where it was cloned: {command}"
    return ""


def explain_page(path: Path) -> str:
    """The same for a web page that was saved in a file's place."""
    try:
        with path.open("rb") as file:
            head = file.read(64).lstrip().lower()
    except OSError:
        return ""
    if head.startswith(PAGES):
        return f"{path} is a web page and not the file itself: download it again, without signing in or a redirect."
    return ""


def require_content(path: Path) -> None:
    """Raise ConfigurationError where a file is a pointer to its content."""
    if explained := explain_pointer(path):
        raise ConfigurationError(explained)
