"""Models and data sets from the Hub, at one commit, in its library's own cache.

slipway data fetch openai-community/gpt2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.causes import HubError, explain_failure, listed, missing_offline

if TYPE_CHECKING:
    from slipway.train.worker.context import Context


import hashlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

PATIENCE = 20.0  # seconds for the Hub's first answer
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


def read_source(source: str, revision: str | None = None) -> tuple[str, str | None]:
    """`owner/name@revision` in two; `revision` is meant where there is none. Raises ConfigurationError for both."""
    repo, mark, pinned = source.partition("@")
    if mark and revision and pinned != revision:
        raise ConfigurationError(f"{source} names one revision, and --revision {revision} another; type one of them.")
    return repo, pinned or revision


def fetch(
    repo: str,
    *,
    revision: str | None = None,
    kind: str = "model",
    include: Sequence[str] = (),
    tick: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> Path:
    """The folder with the files of `repo` (`owner/name` or `owner/name@revision`); its name is the commit.

    `kind` is model or dataset; `include` are globs, none means all files. `tick` is called whenever the download got on.
    The library's own variables hold: HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT. Where the Hub cannot be reached,
    files that are in the cache do.

    Raises ConfigurationError for what the user can mend, HubError for what may pass, and OSError for a disk that is
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
            f"{repo} has no file {' or '.join(include)}. It holds {listed(files) or 'none at all'}."
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
    """`fetch`, by one process of each node while all wait; by every rank. Returns the folder on this rank's node.

    Raises what `fetch` raises, PeerError on the other ranks, and HubError where nodes came by different commits.
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


def look_up(repo: str, revision: str | None, kind: str) -> tuple[str, dict[str, Listed]]:
    """The commit that `revision` means now, and its files by name. Raises what the library raises."""
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
    """The files whose names match one of the globs `include`, as the library reads them; all where there are none."""
    globs = [f"{glob}*" if glob.endswith("/") else glob for glob in include or ["*"]]
    return {name: file for name, file in files.items() if any(fnmatchcase(name, glob) for glob in globs)}


def find_cached(repo: str, revision: str | None, kind: str, include: Sequence[str]) -> Path | None:
    """The folder of files fetched before, None where any are missing, as far as the cache knows.

    Raises ConfigurationError for what is no name of a repo.
    """
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
