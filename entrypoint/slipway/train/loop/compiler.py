"""Whether a model is compiled: this machine must have the compilers that torch.compile starts while it trains."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from slipway.protocol.mistake import ConfigurationError

# MB. torch cuts a model that is compiled within DistributedDataParallel where buckets end, and asserts that none is smaller
# than the first, which has 1 MiB (DDPOptimizer in torch/_dynamo/backends/distributed.py, torch 2.10).
SMALLEST_BUCKET = 1.0


def decide_compile(
    wanted: bool | None, device_type: str, environ: Mapping[str, str], bucket_mb: float | None = None
) -> bool:
    """Whether to compile the model. `wanted` is None where the user said nothing: then a GPU's model is compiled.

    `bucket_mb` is the size of DistributedDataParallel's buckets, None without it. Raises ConfigurationError where they are too
    small for a model that is compiled, and where --compile was typed and its compiler is missing.
    """
    cuda = device_type == "cuda"
    # Worth its start-up time on a GPU; on a CPU it gains 5 % at best and costs up to 36 s.
    if not (cuda if wanted is None else wanted):
        return False
    # torch/_inductor/config.py (cpp.cxx) and triton/runtime/build.py look for these.
    candidates = (
        [environ["CC"]] if cuda and environ.get("CC") else ["gcc", "clang"] if cuda else [environ.get("CXX") or "g++"]
    )
    path = environ.get("PATH")
    if any(shutil.which(name, path=path) for name in candidates):
        if bucket_mb is not None and bucket_mb < SMALLEST_BUCKET:
            raise ConfigurationError(
                f"--bucket-mb {bucket_mb:g} is too small for a model that is compiled: torch's compiler wants "
                f"{SMALLEST_BUCKET:g} MB or more. Type --bucket-mb {SMALLEST_BUCKET:g}, or --no-compile."
            )
        return True
    if wanted is None:
        return False
    needed, package = ("the C compiler gcc", "gcc libc6-dev") if cuda else ("the C++ compiler g++", "g++")
    only = "" if cuda else " (GPUs need only gcc)"
    install = f"Install it (on Debian: apt-get install {package})"
    if environ.get("SLIPWAY_IMAGE"):  # set by the image itself, in which its user can install nothing
        install = f"Add it in an image of your own (images/extend/Dockerfile: apt-get install {package})"
    raise ConfigurationError(
        f"--compile on a {'GPU' if cuda else 'CPU'} needs {needed}{only}, and {' or '.join(candidates)} is not installed. "
        f"{install}, or leave --compile out."
    )
