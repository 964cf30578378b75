"""A run that is in a store, as commands on any machine read it: what they need is fetched into the cache, and read from there."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from slipway.launch.companions.copies import require_store
from slipway.protocol.durable import make_folder
from slipway.protocol.errors import UNHEALTHY, LaunchError, code_of
from slipway.protocol.files import node_folder
from slipway.protocol.printable import listed
from slipway.store import open_store
from slipway.store.address import parse_store
from slipway.store.catalog import Catalog
from slipway.store.claims import identify
from slipway.store.objects import MissingObjectError, ObjectStore, StoreError, StoreRefusedError
from slipway.store.progress import CopyProgress, write_progress
from slipway.store.records import fetch_records
from slipway.store.restore import drop_outdated, restore

SHOWN = 10  # names that a message lists


def cached(address: str, kind: str = "store", identity: str = "", environ: Mapping[str, str] = os.environ) -> Path:
    """The place in the cache for a run in a store, or for other files of this `kind`. A run that was deleted and one that has its
    name now have another `identity`, and so another place.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "slipway" / kind
    above, _, name = address.rpartition("/")
    return cache / hashlib.sha256(f"{above}{identity}".encode()).hexdigest()[:16] / name


def fetch_run(address: str, *, snapshots: bool, say: Callable[[Iterable[str]], object] = lambda lines: None) -> Path:
    """Fetch the records of the run at an address, and with `snapshots` its newest one. Returns the folder where they are.

    `say` is called with lines on what was passed over.

    Raises LaunchError: 78 where there is no such run or the store refuses, 77 where it does not answer or the cache is full.
    """
    try:
        found = parse_store(address)
        assert found is not None
        where, run = found.split()
    except ValueError as error:
        raise LaunchError(f"{address}: {error}.") from None
    require_store(where)
    with store_errors(address, cached(str(found)), "Set XDG_CACHE_HOME."):
        store = open_store(where)
        path = cached(str(found), identity=identify(store, run))
        try:
            _fetch(store, run, path, str(found), snapshots)
        finally:
            say(sorted(store.odd))
    return path


@contextmanager
def store_errors(address: str, path: Path, elsewhere: str) -> Iterator[None]:
    """Raise LaunchError for what a store or the disk at `path` refuses: 78 where what is asked for is missing or not allowed, 77
    where the store does not answer or the disk is full. `elsewhere` says how another place is named.
    """
    try:
        yield
    except (MissingObjectError, StoreRefusedError) as error:
        raise LaunchError(
            f"{address} cannot be read: {error}. Check the address, the credentials and their rights."
        ) from None
    except StoreError as error:
        raise LaunchError(f"{address} does not answer: {error}. Try again later.", UNHEALTHY) from None
    except OSError as error:
        raise LaunchError(f"{address} cannot be fetched into {path}: {error}. {elsewhere}", code_of(error)) from None


def _fetch(store: ObjectStore, run: str, path: Path, address: str, snapshots: bool) -> None:
    if not fetch_records(store, run, path, always=True):
        raise LaunchError(f"There is no run {address}. {_explain_name(store, run)}")
    catalog = Catalog(store, run)
    catalog.refresh()
    if snapshots:
        drop_outdated(path, catalog)
        found = restore(store, run, path, ranks=[0])
        if found.step is None and found.skipped:
            raise LaunchError(f"{address} has no snapshot that can be used: {'; '.join(found.skipped)}.")
    newest = next(catalog.sets(), None)
    taken: float | None = None
    with suppress(MissingObjectError):  # the snapshot has been deleted since it was listed
        taken = catalog.taken(newest[0]) if newest else None
    step = newest[0].place.step if newest else None
    progress = CopyProgress(store=address, step=step, taken=taken, fetched=time.time())
    node = node_folder(path, 0)
    make_folder(node)
    write_progress(node, progress)


def _explain_name(store: ObjectStore, run: str) -> str:
    """What there is instead of a run: others in the store, or below this name."""
    below, beside = ([each for each in store.list_folders(prefix) if each != "-"] for prefix in (f"{run}/", ""))
    address = "An address is that of the store and the name of a run."
    if below:
        return f"{address} Below it there are {listed(below, SHOWN)}."
    return f"{address} The store has {listed(beside, SHOWN)}." if beside else f"{address} The store is empty."
