"""Whether this machine has the compilers that torch.compile starts while it trains."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from slipway.protocol.mistake import ConfigurationError


def decide_compile(wanted: bool | None, device_type: str, environ: Mapping[str, str]) -> bool:
    """Whether to compile the model. `wanted` is None where the user said nothing: then a GPU's model is compiled.

    Raises ConfigurationError where --compile was typed and its compiler is missing.
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
