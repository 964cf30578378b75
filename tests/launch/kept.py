"""Where the jobs of a test keep copies: a folder, or a bucket of a real server of S3."""

from __future__ import annotations

from typing import NamedTuple

from slipway.store.catalog import Catalog
from slipway.store.objects import ObjectStore


class Kept(NamedTuple):
    """A store, its address, and the variables that lead to it."""

    store: ObjectStore
    address: str
    variables: dict[str, str]

    def steps(self, run: str) -> list[int]:
        """The steps of the complete snapshots, newest first."""
        catalog = Catalog(self.store, run)
        catalog.refresh()
        return [each[0].place.step for each in catalog.sets()]

    def contents(self) -> dict[str, bytes]:
        """All objects."""
        return {name: self.store.read(name) for name in self.store.find("")}
