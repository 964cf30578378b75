"""Models and data sets from the Hub, at one commit, in the cache of the library huggingface_hub.

slipway data fetch openai-community/gpt2

The library downloads every file under a unique name and renames it. A cache that several nodes share therefore stays sound
where flock has no effect, at the price of downloading a file twice. The library does not compare files with their checksums
(sha256 for LFS files, git's sha1 for the others); `verify` does that, once per file.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import listed
from slipway.train.hub.causes import SHOWN, HubError, explain_failure, missing_offline

if TYPE_CHECKING:
    from slipway.train.worker.context import Context

PATIENCE = 20.0  # seconds until the Hub's first answer
PIECE = 2**20  # bytes per read while hashing
LINES = 10.0  # seconds between two progress lines without a terminal


@dataclass(frozen=True)
class Listed:
    """A file as the Hub lists it: its size in bytes, and its checksum (sha256, or sha1 of the git object)."""

    size: int
    checksum: str


def fetch(
    repo: str,
    *,
    revision: str | None = None,
    kind: str = "model",
    include: Sequence[str] = (),
    tick: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> Path:
    """Return the folder with the files of `repo` (`owner/name` or `owner/name@revision`); its name is the commit.

    `kind` is model or dataset. `include` is a list of globs; an empty list means all files. `tick` is called whenever the
    download makes progress. The library's own variables apply: HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT. If the Hub
    cannot be reached, files that are already in the cache are used.

    Raises ConfigurationError for what the user can fix, HubError for what may be temporary, and OSError for a disk that is
    full or broken.
    """
    from huggingface_hub import constants

    repo, revision = read_source(repo, revision)
    if constants.is_offline_mode():
        return find_cached(repo, revision, kind, include) or missing_offline(repo, revision, kind, include)
    try:
        commit, files = look_up(repo, revision, kind)
    except Exception as error:
        explained = explain_failure(error, repo, revision, kind)
        cached = find_cached(repo, revision, kind, include) if isinstance(explained, HubError) else None
        if cached is None:
            raise explained from error
        say(f"{explained} Going on with commit {cached.name}, which is in the cache.")
        return cached
    wanted = select_files(files, include)
    if not wanted:
        raise ConfigurationError(
            f"{repo} has no file {' or '.join(include)}. It holds {listed(list(files), SHOWN) or 'none at all'}."
        )
    if commit != revision:
        say(f"{repo} at {revision or 'its main revision'} is commit {commit}")
    progress = ByteProgress(repo, sum(file.size for file in wanted.values()), say)
    try:
        folder = download_repo(repo, revision, kind, include, tick, progress)
    except Exception as error:
        raise explain_failure(error, repo, revision, kind) from error
    if folder.name != commit:
        raise HubError(f"{repo} changed from commit {commit} to {folder.name} while it was fetched; try again.")
    verify(repo, folder, wanted, tick)
    return folder


def fetch_together(context: Context, repo: str, *, kind: str = "model", include: Sequence[str] = ()) -> Path:
    """Call `fetch` in one process of each node while the others wait; by every rank. Returns the folder on this rank's node.

    Raises what `fetch` raises, PeerError on the other ranks, and HubError if nodes got different commits.
    """
    from slipway.train.worker.prepared import act_together

    fetched: list[Path] = []
    act_together(
        context, f"fetch {repo}", lambda tick: fetched.append(fetch(repo, kind=kind, include=include, tick=tick))
    )
    commit = context.share_text(fetched[0].name if fetched else "")
    folder = find_cached(read_source(repo)[0], commit, kind, include)
    if folder is None:
        raise HubError(
            f"Rank 0 has commit {commit} of {repo}, and this node another. Try again, or type {repo}@{commit}."
        )
    return folder


def read_source(source: str, revision: str | None = None) -> tuple[str, str | None]:
    """Split `owner/name@revision`; without `@`, `revision` applies. Raises ConfigurationError if the two disagree."""
    repo, mark, pinned = source.partition("@")
    if mark and revision and pinned != revision:
        raise ConfigurationError(f"{source} names one revision, and --revision {revision} another; type one of them.")
    return repo, pinned or revision


def look_up(repo: str, revision: str | None, kind: str) -> tuple[str, dict[str, Listed]]:
    """Return the commit that `revision` refers to now, and its files by name. Raises what the library raises."""
    from huggingface_hub import HfApi

    ask = HfApi().dataset_info if kind == "dataset" else HfApi().model_info
    info = ask(repo, revision=revision, files_metadata=True, timeout=PATIENCE)
    files = {
        file.rfilename: Listed(file.size or 0, file.lfs.sha256 if file.lfs else file.blob_id or "")
        for file in info.siblings or []
    }
    if not info.sha:
        raise HubError(f"The Hub names no commit of {repo}.")
    return info.sha, files


def select_files(files: Mapping[str, Listed], include: Sequence[str]) -> dict[str, Listed]:
    """Return the files whose names match one of the globs `include`, as the library reads globs; all files if there are none."""
    globs = [f"{glob}*" if glob.endswith("/") else glob for glob in include or ["*"]]
    return {name: file for name, file in files.items() if any(fnmatchcase(name, glob) for glob in globs)}


def find_cached(repo: str, revision: str | None, kind: str, include: Sequence[str]) -> Path | None:
    """The folder of files fetched before; None if any are missing. Raises ConfigurationError if `repo` is no valid name."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                repo, revision=revision, repo_type=kind, allow_patterns=list(include) or None, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise explain_failure(error, repo, revision, kind) from None
    return folder if any(folder.iterdir()) else None


def download_repo(
    repo: str, revision: str | None, kind: str, include: Sequence[str], tick: Callable[[], None], progress: ByteProgress
) -> Path:
    """Download what is not in the cache yet. Raises what the library raises."""
    from huggingface_hub import snapshot_download
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # generic in its stubs alone
        """The library makes three of these; only the one that counts bytes on the disk reports progress."""

        def __init__(self, *args: Any, **more: Any) -> None:
            self.counts_bytes = str(more.get("desc")).startswith("Reconstructing")
            super().__init__(*args, **more | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            tick()
            if self.counts_bytes:
                progress.add(int(n or 0))

    try:
        folder = snapshot_download(
            repo, revision=revision, repo_type=kind, allow_patterns=list(include) or None, tqdm_class=Bar
        )
    finally:
        progress.close()
    return Path(folder)


class ByteProgress:
    """Progress of a download or of other work: a bar on a terminal, otherwise a line every few seconds."""

    def __init__(self, name: str, total: int, say: Callable[[str], None]) -> None:
        """`total` in bytes."""
        self._name, self._say, self._total, self._done = name, say, total, 0
        self._reported = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty() and find_spec("tqdm"):  # a launcher alone, without PyTorch, has none
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=name, unit="B", unit_scale=True, leave=False)

    def add(self, count: int) -> None:
        """Report that `count` more bytes are done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._reported > LINES:
            self._reported = time.monotonic()
            self._say(f"{self._name}: {self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def verify(repo: str, folder: Path, files: Mapping[str, Listed], tick: Callable[[], None]) -> None:
    """Compare files with their checksums, once, and remove those that differ. Raises HubError if any did."""
    notes = folder.parents[1] / "verified"

    def is_right(name: str) -> bool:
        checksum = files[name].checksum
        return not checksum or has_checksum(folder / name, checksum, notes / checksum, tick)

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


def has_checksum(path: Path, checksum: str, note: Path, tick: Callable[[], None]) -> bool:
    """Whether a file has its checksum, as `hash_file` computes it. Raises OSError if the file cannot be read.

    The file `note` records size and modification time of a file that was found right. While these stay the same, the file is not
    read again.
    """
    state = path.stat()
    stamp = f"{state.st_size} {state.st_mtime_ns}"
    if note.is_file() and note.read_text() == stamp:
        return True
    if hash_file(path, tick, git=len(checksum) == 40) != checksum:
        return False
    with suppress(OSError):  # the cache is read-only: the file is compared again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(stamp)
    return True


def hash_file(path: Path, tick: Callable[[], None] = lambda: None, git: bool = False) -> str:
    """Return a file's sha256 or, with `git`, its sha1 as a git object, in hexadecimal. Raises OSError."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False) if git else hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            tick()
    return digest.hexdigest()
