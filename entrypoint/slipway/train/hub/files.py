"""Files on their way from the Hub into its library's cache: fetched, shown, compared with their checksums.

The library downloads every file under a name of its own and renames it: a cache that several nodes share stays sound
where flock does nothing, at the price of a file that is fetched twice. It does not compare what it fetched with the
checksum (of LFS files the sha256, of others git's sha1); that is done here, once per file.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.train.hub.causes import HubError

PIECE = 2**20  # bytes that are hashed at once
LINES = 10.0  # seconds between two lines of progress where there is no terminal


@dataclass(frozen=True)
class Listed:
    """A file as the Hub lists it: its size in bytes, and its checksum (sha256, or sha1 of git's object)."""

    size: int
    checksum: str


def download_repo(
    repo: str, revision: str | None, kind: str, include: Sequence[str], tick: Callable[[], None], progress: ByteProgress
) -> Path:
    """Fetch what is not in the cache yet. Raises what the library raises."""
    from huggingface_hub import snapshot_download
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # generic in its stubs alone
        """What the library draws three of; the one that counts bytes on the disk is heard."""

        def __init__(self, *args: Any, **more: Any) -> None:
            self.heard = str(more.get("desc")).startswith("Reconstructing")
            super().__init__(*args, **more | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            tick()
            if self.heard:
                progress.add(int(n or 0))

    try:
        folder = snapshot_download(
            repo, revision=revision, repo_type=kind, allow_patterns=list(include) or None, tqdm_class=Bar
        )
    finally:
        progress.close()
    return Path(folder)


class ByteProgress:
    """How much of a download, or of other work, is done: a bar on a terminal, otherwise a line now and then."""

    def __init__(self, name: str, total: int, say: Callable[[str], None]) -> None:
        """`total` in bytes."""
        from tqdm import tqdm

        self._name, self._say, self._total, self._done = name, say, total, 0
        self._told = time.monotonic()
        shown = sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=name, unit="B", unit_scale=True, leave=False) if shown else None

    def add(self, count: int) -> None:
        """`count` more bytes are done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._told > LINES:
            self._told = time.monotonic()
            self._say(f"{self._name}: {self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB")

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


def verify(repo: str, folder: Path, files: Mapping[str, Listed], tick: Callable[[], None]) -> None:
    """Compare files with their checksums, and remove those that differ. Raises HubError where any did.

    What was found right is noted beside the files, and not read again while size and time of change stay the same.
    """
    notes = folder.parents[1] / "verified"

    def is_right(name: str) -> bool:
        path, listed = folder / name, files[name]
        state, note = path.stat(), notes / listed.checksum
        stamp = f"{state.st_size} {state.st_mtime_ns}"
        if not listed.checksum or (note.is_file() and note.read_text() == stamp):
            return True
        if hash_file(path, tick, git=len(listed.checksum) == 40) != listed.checksum:
            return False
        with suppress(OSError):  # a cache that is only read: the file is compared again next time
            notes.mkdir(exist_ok=True)
            note.write_text(stamp)
        return True

    with ThreadPoolExecutor(4) as pool:
        wrong = [name for name, right in zip(files, pool.map(is_right, files), strict=True) if not right]
    for name in wrong:
        content = (folder / name).resolve()
        (folder / name).unlink(missing_ok=True)
        content.unlink(missing_ok=True)
    if wrong:
        raise HubError(
            f"{', '.join(wrong)} of {repo} arrived damaged: the checksum is not the one that the Hub names. It was removed "
            "from the cache; try again. Where this happens again, something between here and the Hub changes files."
        )


def hash_file(path: Path, tick: Callable[[], None] = lambda: None, git: bool = False) -> str:
    """A file's sha256 or, for `git`, the sha1 of it as a git object, in hexadecimal. Raises OSError."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False) if git else hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            tick()
    return digest.hexdigest()
