"""What a store can do, and how it fails. Nothing else of a store is relied on: no rename, no lock. Its clock is
only shown to people, and finds the newest of several runs. All nodes of a job reach the same store.

To add a store:

1. A branch in `open_store` in `store/__init__.py`, and a class with the methods of `ObjectStore`, as `CloudStore` in
   `store/cloud.py` and `FolderStore` in `store/folder.py`. One that is a folder of this machine needs no class: `folder` of
   `StoreAddress` returns it, and step 3 falls away.
2. Its URL: `parse_store`, `SUPPORTED`, `BUCKETS` and `VARIABLES` in `store/address.py`, which assume scheme://BUCKET/PATH, and
   whose messages speak of buckets, as `explain_address` in `options/paths.py` does. One with a host also changes
   `StoreAddress` and `is_store`, `COPIES` in `options/paths.py`, and `_transfer` in `cli/data.py`.
3. Its library: `require_store` in `launch/companions/copies.py`; in pyproject.toml the extra `store`, import-linter's contract
   and mypy's list of packages without types; the lock files (`make lock`, `make lock-image VARIANT=cpu` and `VARIANT=cuda13`).
4. How it fails: `kind` in `store/copier.py`, from which `launch/companions/copies.py` makes errors and warnings.
5. Tests: the tables of addresses in `tests/unit/store/test_store.py`, which also applies `tests/unit/store_contract.py`,
   `tests/unit/launch/companions/test_storing.py` and `tests/unit/options/test_addresses.py`. A real server: a module like
   `tests/launch/azure_server.py`, its rows in `tests/launch/object_servers.py`, `tests/needs.py` and tests/tools.sh; then
   `tests/launch/test_store_server.py` and `tests/launch/test_store_faults.py` run on it.
6. Its row in docs/storage.md, and a line in CHANGELOG; docs/settings.md and docs/cli.md are generated again; with another port
   than 443 the NetworkPolicy in k8s/README.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from slipway.protocol.files import LARGEST


class StoreError(Exception):
    """A store that does not do what it was asked; the message says what and why."""


class MissingObjectError(StoreError):
    """There is no object of that name."""


class StoreRefusedError(StoreError):
    """The store answered that this user, bucket or setting is wrong. It will say so again unless somebody fixes that."""


class UnreachableError(StoreError):
    """The store did not answer, or could not do its work. It may answer later."""


class ObjectFacts(NamedTuple):
    """What a store lists of an object: its size in bytes, and a tag that is another one when its content is (an ETag)."""

    size: int
    tag: str


class ObjectStore(Protocol):
    """Objects by name (`a/b/c`). An object is written whole or not at all, and whoever reads after that reads it.

    All methods raise StoreRefusedError and UnreachableError. `odd` has a line for each thing that was passed over, since it
    cannot be what Slipway wrote: a link, a pipe, a device, far more bytes.
    """

    odd: set[str]

    def list_objects(self, prefix: str) -> dict[str, int]:
        """Names and sizes in bytes of all objects whose name begins with `prefix`, which ends with a slash."""

    def list_folders(self, prefix: str) -> list[str]:
        """What stands between `prefix` and the next slash in the names of objects, each once."""

    def find(self, name: str) -> dict[str, ObjectFacts]:
        """The object of this name; without one those whose names begin with it and a slash, or all where it is empty."""

    def read(self, name: str, most: int = LARGEST) -> bytes:
        """The content of an object, of at most so many bytes. Raises MissingObjectError, also for what is passed over."""

    def written(self, name: str) -> float:
        """When an object was written, in Unix seconds by the store's clock. Raises MissingObjectError."""

    def read_part(self, name: str, facts: ObjectFacts, begin: int, end: int) -> bytes:
        """The bytes from `begin` to before `end` of the object that `find` found. Raises MissingObjectError where another one has
        its name by now.
        """

    def write(self, name: str, content: bytes) -> None:
        """Write an object, in the place of one of that name."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object, unless there is one of that name: then return False. Of several that try at once one succeeds.

        After an answer that was lost, it may be this very object that is there: compare its content.
        """

    def delete(self, names: Collection[str]) -> None:
        """Delete objects; those that are not there do not matter."""
