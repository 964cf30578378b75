"""Does each device compute correctly? A child process per device multiplies matrices of known product (train/measure/health.py).

The launcher does not import torch. A child process does, and answers with a line of JSON; how it ends is an answer, too.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.check.finding import ok, sick, skipped, warning
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.devices import Devices
from slipway.process.tree import signal_name
from slipway.protocol.printable import last_line

MODULE = "slipway.train.measure.health"
# A first CUDA context without nvidia-persistenced takes ten seconds a GPU, importing torch half a minute.
SECONDS = 120.0
LAST_SECONDS = 5.0  # for a child that was killed
BUSY = "OutOfMemoryError"


@dataclass(frozen=True)
class ProbeEnding:
    """How a child ended: its report, its exit code (None: it had to be killed) and its last line on stderr."""

    report: Mapping[str, Any]
    status: int | None
    said: str = ""


def look_at_products(devices: Devices, environ: Mapping[str, str], seconds: float = SECONDS) -> Iterator[Finding]:
    """The row of each device's matrix products: of every GPU that CUDA will see, else of the CPU."""
    names = {f"GPU {gpu.index}" if gpu.uuid.startswith("GPU-") else gpu.uuid: gpu.uuid for gpu in devices.gpus}
    if importlib.util.find_spec("torch") is None:
        yield skipped("matrix product", "torch is not installed here")
        return
    # One device a process: MIG allows no more, and one that crashes or hangs says nothing about its neighbours.
    children = {
        name: start_probe(MODULE, "cuda", {**environ, "CUDA_VISIBLE_DEVICES": uuid}) for name, uuid in names.items()
    }
    children = children or {"CPU": start_probe(MODULE, "cpu", {**environ, "CUDA_VISIBLE_DEVICES": ""})}
    until = time.monotonic() + seconds
    for name, child in children.items():
        yield judge_product(f"{name} product", wait_for_probe(child, until), seconds)


def judge_product(what: str, ending: ProbeEnding, seconds: float) -> Finding:
    """The row of a device, by how its child process ended."""
    advice = "take the node out of service and look at nvidia-smi -q, dmesg and the memory test of the machine"
    if ending.status is None:
        return sick(what, f"no result within {seconds:.0f} s", advice)
    if ending.report.get("wrong"):
        return sick(what, f"wrong: {ending.report['wrong']}", advice)
    if ending.status == 0 and ending.report.get("right"):
        return ok(what, str(ending.report["right"]))
    said = str(ending.report.get("failed") or ending.said)
    if BUSY in said:
        return warning(what, "it has no free memory for the matrices", "nvidia-smi shows which process uses it")
    end = "failed" if ending.status >= 0 else signal_name(-ending.status)
    return sick(what, f"{end}{f': {said}' if said else ''}", advice)


def start_probe(module: str, word: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a module of `train` with one argument, in this environment."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, word],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def wait_for_probe(child: subprocess.Popen[str], until: float) -> ProbeEnding:
    """How a child ended; one that has not at `until` (monotonic seconds) is killed."""
    try:
        out, err = child.communicate(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the driver survives even that
            child.communicate(timeout=LAST_SECONDS)
        return ProbeEnding({}, None)
    return ProbeEnding(last_json(out.splitlines()), child.returncode, last_line(err.splitlines()))


def last_json(lines: Sequence[str]) -> Mapping[str, Any]:
    """The last line of JSON; libraries may have printed something, too."""
    for line in reversed(lines):
        try:
            report = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict):
            return report
    return {}
