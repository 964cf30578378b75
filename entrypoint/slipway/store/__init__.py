"""A copy of a run's snapshots and records in a store that outlives every machine: a bucket, or a folder on another disk.

`address.py` is what a user types, and `open_store` opens it. `objects.py` is what a store can do; `folder.py` and `cloud.py` do
it. `layout.py` names the objects of a run, `claims.py` keeps attempts apart, `catalog.py` finds what is valid, `upload.py`,
`download.py` and `records.py` copy, `retention.py` deletes. `copier.py` is the process that does all this beside a job, and
`restore.py` what it does before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.store.address import StoreAddress
    from slipway.store.objects import ObjectStore


def open_store(address: StoreAddress) -> ObjectStore:
    """Open a store. Raises StoreRefusedError where it cannot exist, such as a folder that is missing."""
    if address.folder:
        from slipway.store.folder import FolderStore

        return FolderStore(address.folder)
    from slipway.store.cloud import CloudStore  # obstore, which a folder does without

    return CloudStore(address)
