"""Training code: one loop, its snapshots, and the workloads that use it.

from slipway.train import Common, Task, Validation, fit, open_context, option, parse

These names are for your own scripts (docs/own-script.md); their modules have more documentation. They are loaded on first
use: importing this package does not load torch, which the launcher and the options do not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for editors and type checkers, which do not run `__getattr__`
    from slipway.options import Common as Common
    from slipway.options import parse as parse
    from slipway.options.common import option as option
    from slipway.protocol.mistake import ConfigurationError as ConfigurationError
    from slipway.train.loop.fit import TrainingResult as TrainingResult
    from slipway.train.loop.fit import fit as fit
    from slipway.train.loop.loader import Loader as Loader
    from slipway.train.loop.loader import Sampler as Sampler
    from slipway.train.observe.replicas import ReplicasDifferError as ReplicasDifferError
    from slipway.train.observe.replicas import verify_replicas as verify_replicas
    from slipway.train.observe.traces import trace as trace
    from slipway.train.snapshots.snapshot import Snapshot as Snapshot
    from slipway.train.snapshots.snapshot import SnapshotError as SnapshotError
    from slipway.train.snapshots.snapshot import load_newest as load_newest
    from slipway.train.task import Batch as Batch
    from slipway.train.task import Task as Task
    from slipway.train.task import Validation as Validation
    from slipway.train.worker.context import Context as Context
    from slipway.train.worker.context import open_context as open_context
    from slipway.train.worker.prepared import cache_folder as cache_folder
    from slipway.train.worker.prepared import make_together as make_together

PUBLIC = {
    "options": ("Common", "parse"),
    "options.common": ("option",),
    "protocol.mistake": ("ConfigurationError",),
    "train.loop.loader": ("Loader", "Sampler"),
    "train.loop.fit": ("TrainingResult", "fit"),
    "train.observe.replicas": ("ReplicasDifferError", "verify_replicas"),
    "train.observe.traces": ("trace",),
    "train.snapshots.snapshot": ("Snapshot", "SnapshotError", "load_newest"),
    "train.task": ("Batch", "Task", "Validation"),
    "train.worker.context": ("Context", "open_context"),
    "train.worker.prepared": ("cache_folder", "make_together"),
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module. Raises AttributeError."""
    for module, names in PUBLIC.items():
        if name in names:
            return getattr(import_module(f"slipway.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names for completion at a prompt."""
    return sorted({*globals(), *(name for names in PUBLIC.values() for name in names)})
