"""Does each device compute right? A child process per device multiplies matrices of known product (train/measure/health.py)."""

import importlib.util
import time
from collections.abc import Iterator, Mapping

from slipway.launch.health.finding import ok, sick, skipped, warning
from slipway.launch.health.probe_process import ProbeEnding, start_probe, wait_for_probe
from slipway.launch.muster.card import Finding
from slipway.launch.process_tree import signal_name
from slipway.launch.resolve.devices import Devices

MODULE = "slipway.train.measure.health"
# A first CUDA context without nvidia-persistenced takes ten seconds a GPU, importing torch half a minute.
SECONDS = 120.0
BUSY = "OutOfMemoryError"


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
    """What a child's end says about its device."""
    advice = "take the node out of service and look at nvidia-smi -q, dmesg and the memory test of the machine"
    if ending.status is None:
        return sick(what, f"no result within {seconds:.0f} s", advice)
    if ending.report.get("wrong"):
        return sick(what, f"wrong: {ending.report['wrong']}", advice)
    if ending.status == 0 and ending.report.get("right"):
        return ok(what, str(ending.report["right"]))
    said = str(ending.report.get("failed") or ending.said)
    if BUSY in said:
        return warning(what, "no memory is free on it for a product", "nvidia-smi shows who holds it")
    end = "failed" if ending.status >= 0 else signal_name(-ending.status)
    return sick(what, f"{end}{f': {said}' if said else ''}", advice)
