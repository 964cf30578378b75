"""The rows of `slipway selftest`: what each one proves, what it needs, and how it is tried."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slipway.launch.health.links import describe_links
from slipway.launch.health.products import look_at_products
from slipway.launch.health.quick import quick_check
from slipway.launch.selftest.judge import (
    Result,
    judge_bandwidth,
    judge_fault,
    judge_finding,
    judge_node,
    judge_probe,
    judge_resume,
    judge_stacks,
    judge_training,
)
from slipway.launch.selftest.trial import Ground
from slipway.protocol.files import ALLREDUCE_FILE, LOGS, MANIFEST, SNAPSHOTS, node_folder, read_json, snapshot_name

KERNELS = "slipway.train.measure.kernels"
LEARNING = "gpt --preset tiny --steps 50 --warmup 10 --log-every 25 --eval-samples 16 --sample-tokens 0".split()  # noqa: SIM905
HALF, WHOLE = 4, 8  # steps to the snapshot that is resumed from, and in all
# Dropout, so that the random generators count; no preset of its own, since nobody trains this.
RESUMED = (
    "gpt --layers 2 --heads 2 --embed 64 --context 64 --batch-size 32 --dropout 0.1 --warmup 0 --eval-samples 16 "
    f"--sample-tokens 0 --steps {WHOLE} --save-every {HALF} --keep 2"
).split()
HANG_SECONDS = "30"  # of training; a start has longer
LARGEST = {"cuda": "256M", "cpu": "4M"}  # the largest message of all-reduce


@dataclass(frozen=True)
class Row:
    """`proves` is said while it runs; `lacks` says what it lacks here, which may be nothing; `look` tries it."""

    name: str
    proves: str
    look: Callable[[str, Ground], Iterator[Result]]
    lacks: Callable[[Ground], str] = lambda ground: ""


def no_gpu(ground: Ground) -> str:
    """Why nothing can run on a GPU here."""
    return "" if ground.devices.gpus else f"needs a GPU: {ground.devices.reason}"


def nobody_else(ground: Ground) -> str:
    """Why nothing travels between processes here."""
    return "" if ground.processes > 1 else "one process: nothing travels between processes"


def try_node(name: str, ground: Ground) -> Iterator[Result]:
    """The probes of this node that need no torch."""
    host = dataclasses.replace(ground.host, image=None)  # nobody wants to keep these results
    yield judge_node(name, quick_check(ground.environ, host, ground.devices, ground.folder, None))


def try_products(name: str, ground: Ground) -> Iterator[Result]:
    """Matrix products of known result; a row for each device."""
    for finding in look_at_products(ground.devices, {**ground.environ, **ground.host.mended}):
        yield judge_finding(finding)


def try_triton(name: str, ground: Ground) -> Iterator[Result]:
    """A kernel of Triton's."""
    yield judge_probe(name, ground.ask(KERNELS, "triton"))


def try_compile(name: str, ground: Ground) -> Iterator[Result]:
    """A compiled model against the same model."""
    yield judge_probe(name, ground.ask(KERNELS, "compile"))


def try_allreduce(name: str, ground: Ground) -> Iterator[Result]:
    """All-reduce over all devices, with its bandwidth."""
    words = (
        f"allreduce --collectives all-reduce --min-bytes 1K --factor 64 --max-bytes {LARGEST[ground.device]}".split()
    )
    ended = ground.run(name, *words)
    yield judge_bandwidth(name, ended, read_json(ended.run / ALLREDUCE_FILE), describe_links(ground.devices))


def try_gpt(name: str, ground: Ground) -> Iterator[Result]:
    """The tiny GPT on all devices, as anybody starts it."""
    yield judge_training(name, ground.run(name, *LEARNING))


def try_resume(name: str, ground: Ground) -> Iterator[Result]:
    """A training, and a second one from the snapshot that the first made half-way.

    That was copied aside (from a GPU into pinned memory) and written while training went on. Were a bit of it wrong, or were
    it touched by the steps that followed, the second training would end with another snapshot.
    """
    whole = ground.rehearse(name, "none", *RESUMED)
    half = whole.run / SNAPSHOTS / snapshot_name(HALF)
    resumed = whole if whole.code else ground.rehearse(f"{name}-again", "none", *RESUMED, "--resume", str(half))
    files = [read_json(run / SNAPSHOTS / snapshot_name(WHOLE) / MANIFEST) for run in (whole.run, resumed.run)]
    yield judge_resume(name, whole, resumed, (files[0].get("files") or {}, files[1].get("files") or {}))


def try_fault(fault: str) -> Callable[[str, Ground], Iterator[Result]]:
    """A job whose last rank has a fault."""

    def look(name: str, ground: Ground) -> Iterator[Result]:
        patience = ("--hang-seconds", HANG_SECONDS) if fault == "hang" else ()
        ended = ground.rehearse(name, fault, "linear", "--epochs", "1000", "--batch-size", "64", *patience)
        row = judge_fault(name, fault, ground.device, ground.processes - 1, ended)
        recorded = len(list((node_folder(ended.run, 0) / LOGS).glob("*nccl*")))
        yield judge_stacks(row, ground.processes, recorded, ended) if fault == "hang" else row

    return look


ROWS = (
    Row("node", "driver, /dev/shm, limits and disks: the quick part of `slipway check`", try_node),
    Row("products", "each device multiplies right, in each arithmetic that it has", try_products),
    Row("triton", "a kernel of Triton's is compiled and adds right", try_triton, no_gpu),
    Row("compile", "a compiled model learns what the same model learns that is not compiled", try_compile),
    Row("all-reduce", "all devices exchange numbers, and right ones", try_allreduce, nobody_else),
    Row("gpt", "50 steps on all devices, flags and reports over gloo beside NCCL", try_gpt),
    Row("resume", "from a snapshot that was written while training went on, bit for bit", try_resume),
    Row("hang", "a rank hangs on purpose: it is named, with the stacks of all", try_fault("hang")),
    Row("exception", "a rank raises on purpose", try_fault("raise")),
    Row("kill", "a rank is killed on purpose", try_fault("kill")),
    Row("memory", "a rank takes more memory than there is, on purpose", try_fault("memory")),
)
