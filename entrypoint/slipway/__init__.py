"""Slipway launches PyTorch data-parallel training the same way everywhere.

run = slipway.resume(model=ddp, optimizer=optimizer) makes a training loop of your own one that resumes (docs/own-script.md).
"""

__version__ = "0.1.0.dev0"

TYPE_CHECKING = False  # importing `typing` takes longer than all of this package may
if TYPE_CHECKING:  # the same names for editors and type checkers, which do not run `__getattr__`
    from slipway import hf as hf
    from slipway.train.user.run import ResumableRun as ResumableRun
    from slipway.train.user.run import resume as resume


def __getattr__(name: str) -> object:
    """Load `resume`, `ResumableRun` and `hf` when they are first used, since they need torch. Raises AttributeError."""
    from importlib import import_module

    if name in ("ResumableRun", "resume"):
        found: object = getattr(import_module("slipway.train.user.run"), name)
        return found
    if name == "hf":
        return import_module("slipway.hf")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
