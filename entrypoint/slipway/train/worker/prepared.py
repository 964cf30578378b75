"""Files that one process of each node makes or fetches before training, for all processes to use.

A folder is there when it has its name: it is made under a temporary one beside it, and renamed. No file is ever locked
(flock does nothing on much shared storage): where nodes share the cache each makes its own, the first one's stays.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.options.paths import require_local
from slipway.protocol.durable import sync_tree
from slipway.protocol.errors import DISK_ERRORS
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase

if TYPE_CHECKING:
    from slipway.train.worker.context import Context  # torch takes a second, and a command may only want `cache_folder`

POLL = 0.2  # seconds between polls of the processes that wait
MAKING = "slipway-making"  # in the names of temporary folders, so that nobody else's hidden folder is taken for one
# Seconds after which a temporary folder is nobody's any more. Its time stands still while a folder in it is filled, and
# nothing takes that long to make.
STALE = 7 * 24 * 3600.0


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where prepared data are kept: in the image under /data, elsewhere in the user's cache."""
    return Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "slipway"


def make_together(context: Context, final: Path, make: Callable[[Path, Callable[[], None]], None]) -> Path:
    """See to the folder `final`: local rank 0 of each node calls `make(folder, tick)` where it is missing; all wait.

    `make` calls `tick` whenever it got on, so that nobody takes it for hanging. Raises what `make` raised, on that
    rank, and PeerError on the others.
    """
    require_local(final, str(final))
    act_together(context, f"make {final}", lambda tick: make_folder_once(final, lambda folder: make(folder, tick)))
    return final


def act_together(context: Context, what: str, act: Callable[[Callable[[], None]], None]) -> None:
    """Let local rank 0 of each node call `act(tick)` while all wait, as `make_together` does; `what` is for errors."""
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    with ThreadPoolExecutor(max_workers=1) as maker:
        work: list[Future[None]] = []
        if context.is_local_leader:  # the first process of its node
            work = [maker.submit(act, tick)]
        seen = -1
        while True:
            waiting = wait(work, POLL).not_done
            if ticks > seen:
                context.beat(Phase.PREPARE)
                seen = ticks
            busy, failed = context.total(
                len(waiting), sum(done.exception() is not None for done in work if done.done())
            )
            if failed or not busy:
                break
        for done in work:
            done.result()
    if failed:
        from slipway.train.worker.launcher import PeerError

        raise PeerError(f"another rank could not {what}")


def agree_here(context: Context, here: bool, named: str) -> bool:
    """Whether what `named` means is here, on all nodes or on none. By every rank. Raises ConfigurationError."""
    [ranks] = context.total(here)
    if 0 < ranks < context.place.world_size:
        raise ConfigurationError(
            f"{named} exists on some nodes, but not on {'others' if here else socket.gethostname()}. Copy it to "
            "every node, or give it a name that no repo of the Hub can have."
        )
    return here


def make_folder_once(final: Path, make: Callable[[Path], None]) -> None:
    """Call `make` on a temporary folder that then becomes `final`, unless that is there. Raises what `make` raises."""
    if final.is_dir():
        return
    require_writable(final.parent)
    with temporary_folder(final) as folder:
        try:
            make(folder)
            sync_tree(folder)
        except OSError as error:
            if error.errno in DISK_ERRORS and error.filename is None:  # a write does not say where
                error.filename = str(final.parent)
            raise
        try:
            folder.rename(final)
        except OSError:
            if not final.is_dir():  # else another node was faster
                raise


def require_writable(folder: Path) -> None:
    """Make a folder for caches where it is missing. Raises ConfigurationError where nothing can be put into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission to write there")
    except OSError as error:
        if error.errno in DISK_ERRORS and error.errno != errno.EROFS:
            raise
        raise ConfigurationError(
            f"{folder} cannot be used for prepared data ({error.strerror}). Name another folder for caches: "
            "XDG_CACHE_HOME=PATH"
        ) from None


@contextmanager
def temporary_folder(final: Path) -> Iterator[Path]:
    """A new folder beside `final`, removed afterwards; those that crashes left there a week ago are removed as well."""
    final.parent.mkdir(parents=True, exist_ok=True)
    start = f".{final.name}.{MAKING}."
    for old in final.parent.glob(f"{escape(start)}*"):
        with suppress(FileNotFoundError):  # another node may be done with it just now
            if time.time() - old.stat().st_mtime > STALE:
                shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{start}{socket.gethostname()}.", dir=final.parent))
    folder.chmod(0o775)  # shared caches belong to a group
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
