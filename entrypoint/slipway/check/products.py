"""Does each device compute correctly? A child process per device computes what is known: matrix products within seconds
(train/measure/health.py), and much more for as long as asked (train/measure/burn.py).

The launcher does not import torch. A child process does, and answers with a line of JSON; how it ends is an answer, too.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.check.finding import ok, sick, skipped, warning
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.devices import Devices, Gpu
from slipway.process.tree import signal_name
from slipway.protocol.printable import last_line

MODULE, BURN = "slipway.train.measure.health", "slipway.train.measure.burn"
# On a CPU each core has a thread of its own; cuBLAS repeats its sums bit by bit only with this workspace.
BURNING = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# A first CUDA context without nvidia-persistenced takes ten seconds a GPU, importing torch half a minute.
SECONDS = 120.0
LAST_SECONDS = 5.0  # for a child that was killed
BUSY = "OutOfMemoryError"
ADVICE = "take the node out of service and look at nvidia-smi -q, dmesg and the memory test of the machine"


@dataclass(frozen=True)
class ProbeEnding:
    """How a child ended: its report, its exit code (None: it had to be killed) and its last line on stderr."""

    report: Mapping[str, Any]
    status: int | None
    said: str = ""


def look_at_products(devices: Devices, environ: Mapping[str, str], seconds: float = SECONDS) -> Iterator[Finding]:
    """The row of each device's matrix products: of every GPU that CUDA will see, else of the CPU."""
    if importlib.util.find_spec("torch") is None:
        yield skipped("matrix product", "torch is not installed here")
        return
    for name, ending in probe_devices(devices, environ, seconds, MODULE):
        yield judge_product(f"{name} product", ending, seconds)


def look_at_burn(
    devices: Devices, environ: Mapping[str, str], burn: int, seconds: float = SECONDS
) -> Iterator[Finding]:
    """The rows of a burn of so many seconds, and of a comparison of equal devices; a child may take `seconds` longer."""
    if importlib.util.find_spec("torch") is None:
        yield skipped("burn", "torch is not installed here")
        return
    endings = dict(probe_devices(devices, {**environ, **BURNING}, burn + seconds, BURN, str(burn)))
    for name, ending in endings.items():
        yield judge_product(f"{name} burn", ending, burn + seconds)
    kinds = {device_name(gpu): gpu.name for gpu in devices.gpus}
    digests = {name: ending.report["digest"] for name, ending in endings.items() if "digest" in ending.report}
    for kind in dict.fromkeys(kinds.values()):
        yield from compare_digests(kind, {name: digest for name, digest in digests.items() if kinds.get(name) == kind})


def compare_digests(kind: str, digests: Mapping[str, int]) -> Iterator[Finding]:
    """The rows of what devices of one kind computed, each by itself, from the same data; none for a single device."""
    if len(digests) < 2:
        return
    usual, count = Counter(digests.values()).most_common(1)[0]
    odd = [name for name, digest in digests.items() if digest != usual]
    if not odd:
        yield ok("burn", f"{len(digests)} devices of the kind {kind} computed the same gradients")
    elif 2 * count > len(digests):
        found = f"computes other gradients than the {count} other devices of the kind {kind}"
        yield from (sick(f"{name} burn", found, ADVICE) for name in odd)
    else:
        found = (
            f"{', '.join(digests)} (of the kind {kind}) do not compute the same gradients; which is wrong is not known"
        )
        yield warning("burn", found, "burn for longer: --burn 3600")


def device_name(gpu: Gpu) -> str:
    """How a GPU, or a slice of one, is called in rows."""
    return gpu.uuid if gpu.is_slice else f"GPU {gpu.number}"


def probe_devices(
    devices: Devices, environ: Mapping[str, str], seconds: float, module: str, *words: str
) -> Iterator[tuple[str, ProbeEnding]]:
    """Start a module on every device at the same time; the name of each, and how its child ended, within so many seconds."""
    # One device a process: MIG allows no more, and one that crashes or hangs says nothing about its neighbours.
    children = {
        device_name(gpu): start_probe(module, ("cuda", *words), {**environ, "CUDA_VISIBLE_DEVICES": gpu.uuid})
        for gpu in devices.gpus
    }
    children = children or {"CPU": start_probe(module, ("cpu", *words), {**environ, "CUDA_VISIBLE_DEVICES": ""})}
    until = time.monotonic() + seconds
    for name, child in children.items():
        yield name, wait_for_probe(child, until)


def judge_product(what: str, ending: ProbeEnding, seconds: float) -> Finding:
    """The row of a device, by how its child process ended."""
    if ending.status is None:
        return sick(what, f"no result within {seconds:.0f} s", ADVICE)
    if ending.report.get("wrong"):
        return sick(what, f"wrong: {ending.report['wrong']}", ADVICE)
    if ending.status == 0 and ending.report.get("right"):
        return ok(what, str(ending.report["right"]))
    said = str(ending.report.get("failed") or ending.said)
    if BUSY in said:
        return warning(what, "it has no free memory for the matrices", "nvidia-smi shows which process uses it")
    end = "failed" if ending.status >= 0 else signal_name(-ending.status)
    return sick(what, f"{end}{f': {said}' if said else ''}", ADVICE)


def start_probe(module: str, words: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a module of `train` with these arguments, in this environment."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],
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
