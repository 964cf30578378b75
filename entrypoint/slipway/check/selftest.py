"""The rows of `slipway selftest`: what each one proves, what it needs, and how it is tried; and the report of them."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from slipway.check import selftest_trial as trial
from slipway.check.devices import describe_links
from slipway.check.finding import findings_lines
from slipway.check.products import look_at_products
from slipway.check.quick import quick_check
from slipway.launch.rendezvous.messages import BROKEN, OK, SKIPPED, Finding
from slipway.launch.run_directory.directory import RunDirectory
from slipway.protocol.errors import CONFIGURATION, FAILED, FINISHED, UNHEALTHY
from slipway.protocol.files import ALLREDUCE_FILE, LOGS, NODE, SNAPSHOTS
from slipway.protocol.snapshots import snapshot_name

KERNELS = "slipway.train.measure.kernels"
LEARNING = "gpt --preset tiny --steps 50 --warmup 10 --log-every 25 --eval-samples 16 --sample-tokens 0".split()  # noqa: SIM905
HALF, WHOLE = 4, 8  # steps to the snapshot that is resumed from, and in all
# Dropout, so that the random generators count; no preset of its own, since it is of no other use.
RESUMED = (
    "gpt --layers 2 --heads 2 --embed 64 --context 64 --batch-size 32 --dropout 0.1 --warmup 0 --eval-samples 16 "
    f"--sample-tokens 0 --steps {WHOLE} --save-every {HALF} --keep 2"
).split()
HANG_SECONDS = "30"  # of training; a start has longer
LARGEST = {"cuda": "256M", "cpu": "4M"}  # the largest message of all-reduce


@dataclass(frozen=True)
class SelftestRow:
    """A row: `proves` is printed while it runs; `lacks` returns what it lacks here, empty if nothing; `look` tries it."""

    name: str
    proves: str
    look: Callable[[str, trial.Sandbox], Iterator[Finding]]
    lacks: Callable[[trial.Sandbox], str] = lambda sandbox: ""


def no_gpu(sandbox: trial.Sandbox) -> str:
    """Why nothing can run on a GPU here."""
    return "" if sandbox.devices.gpus else f"needs a GPU: {sandbox.devices.reason}"


def nobody_else(sandbox: trial.Sandbox) -> str:
    """Why nothing travels between processes here."""
    return "" if sandbox.processes > 1 else "a single process has no communication to test"


def try_node(name: str, sandbox: trial.Sandbox) -> Iterator[Finding]:
    """The probes of this node that need no torch."""
    host = sandbox.host._replace(image=None)  # these results need not be kept
    yield trial.judge_node(name, quick_check(sandbox.environ, host, sandbox.devices, sandbox.folder, None))


def try_products(name: str, sandbox: trial.Sandbox) -> Iterator[Finding]:
    """Matrix products of known result; a row for each device."""
    for finding in look_at_products(sandbox.devices, {**sandbox.environ, **sandbox.host.mended}):
        yield trial.judge_finding(finding)


def try_kernel(name: str, sandbox: trial.Sandbox) -> Iterator[Finding]:
    """`triton`: a kernel of Triton's; `compile`: a compiled model against the same model."""
    yield trial.judge_probe(name, sandbox.ask(KERNELS, name))


def try_allreduce(name: str, sandbox: trial.Sandbox) -> Iterator[Finding]:
    """All-reduce over all devices, with its bandwidth."""
    words = (
        f"allreduce --collectives all-reduce --min-bytes 1K --factor 64 --max-bytes {LARGEST[sandbox.device]}".split()
    )
    ended = sandbox.run(name, *words)
    yield trial.judge_bandwidth(
        name, ended, RunDirectory(ended.run).content(ALLREDUCE_FILE), describe_links(sandbox.devices)
    )


def try_gpt(name: str, sandbox: trial.Sandbox) -> Iterator[Finding]:
    """The tiny GPT on all devices, as anybody starts it."""
    yield trial.judge_training(name, sandbox.run(name, *LEARNING))


def try_resume(name: str, sandbox: trial.Sandbox) -> Iterator[Finding]:
    """A training, and a second one from the snapshot that the first made half-way.

    That was copied aside (from a GPU into pinned memory) and written while training went on. Were a bit of it wrong, or were
    it touched by the steps that followed, the second training would end with another snapshot.
    """
    whole = sandbox.rehearse(name, "none", *RESUMED)
    half = whole.run / SNAPSHOTS / snapshot_name(HALF)
    resumed = whole if whole.code else sandbox.rehearse(f"{name}-again", "none", *RESUMED, "--resume", str(half))
    first, second = (RunDirectory(run).snapshot_files(snapshot_name(WHOLE)) for run in (whole.run, resumed.run))
    yield trial.judge_resume(name, whole, resumed, (first, second))


def try_fault(fault: str) -> Callable[[str, trial.Sandbox], Iterator[Finding]]:
    """A job whose last rank has a fault."""

    def look(name: str, sandbox: trial.Sandbox) -> Iterator[Finding]:
        patience = ("--hang-seconds", HANG_SECONDS) if fault == "hang" else ()
        ended = sandbox.rehearse(name, fault, "linear", "--epochs", "1000", "--batch-size", "64", *patience)
        row = trial.judge_fault(name, fault, sandbox.device, sandbox.processes - 1, ended)
        recorded = len(RunDirectory(ended.run).files(f"{NODE}0/{LOGS}/*nccl*"))
        yield trial.judge_stacks(row, sandbox.processes, recorded, ended) if fault == "hang" else row

    return look


ROWS = (
    SelftestRow("node", "driver, /dev/shm, limits and disks: the quick part of `slipway check`", try_node),
    SelftestRow("products", "each device multiplies correctly, in every precision that it supports", try_products),
    SelftestRow("triton", "a Triton kernel compiles and adds correctly", try_kernel, no_gpu),
    SelftestRow("compile", "a compiled model has the same gradients as the model that is not compiled", try_kernel),
    SelftestRow("all-reduce", "all devices exchange numbers correctly", try_allreduce, nobody_else),
    SelftestRow("gpt", "50 steps on all devices, flags and reports over gloo beside NCCL", try_gpt),
    SelftestRow("resume", "from a snapshot that was written during training, bit for bit", try_resume),
    SelftestRow("hang", "a rank hangs on purpose: it is named, with the stacks of all ranks", try_fault("hang")),
    SelftestRow("exception", "a rank raises on purpose", try_fault("raise")),
    SelftestRow("kill", "a rank is killed on purpose", try_fault("kill")),
    SelftestRow("memory", "a rank allocates more memory than there is, on purpose", try_fault("memory")),
)
CLOSING = MappingProxyType(
    {
        FINISHED: "everything that could be tested here works",
        FAILED: "the image, or this checkout, is broken: report it, with the output of --json",
        UNHEALTHY: "this node is unhealthy: take it out of service",
        CONFIGURATION: "wrong configuration: see the rows that failed",
    }
)
Timed = tuple[Finding, float]  # with the seconds that it took


def report_json(timed: Sequence[Timed], versions: Mapping[str, Any], links: str) -> dict[str, Any]:
    """The documented form of `slipway selftest --json`."""
    return {
        "code": trial.code_of_all(tuple(result for result, _ in timed)),
        "seconds": round(sum(seconds for _, seconds in timed)),
        "machine": {**versions, "links": links or None},
        "rows": [{**dataclasses.asdict(result), "seconds": round(seconds, 1)} for result, seconds in timed],
    }


def report_lines(report: Mapping[str, Any], colour: bool, width: int) -> list[str]:
    """The table of what `report_json` returned, the totals, and one line about the machine."""
    rows = [
        Finding(row["what"], row["level"], f"{row['found']}  ({row['seconds']:.0f} s)", row["advice"])
        for row in report["rows"]
    ]
    counts = Counter(row["level"] for row in report["rows"])
    told = ", ".join(f"{counts[level]} {level}" for level in (OK, BROKEN, SKIPPED) if counts[level])
    return [
        *findings_lines(rows, colour, width),
        f"{told}, in {report['seconds']} s",
        machine_line(report["machine"]),
        f"exit code {report['code']}: {CLOSING[report['code']]}",
    ]


def report_table(report: Mapping[str, Any], private: Sequence[str]) -> list[str]:
    """What `report_json` returned as a table of Markdown, for an issue; `private`: names and folders that are left out."""
    rows = [(row["what"], f"{row['level']}: {row['found']} ({row['seconds']:.0f} s)") for row in report["rows"]]
    table = [("machine", machine_line(report["machine"])), ("exit code", str(report["code"])), *rows]
    hidden = "|".join(re.escape(name) for name in sorted(private, key=len, reverse=True) if name)
    text = [(what, re.sub(rf"(?<![\w.-])(?:{hidden})(?![\w-])", "…", found)) for what, found in table]
    cells = [(what, " ".join(found.split()).replace("|", "\\|")) for what, found in text]
    return ["| row | result |", "| --- | --- |", *(f"| {what} | {found} |" for what, found in cells)]


def machine_line(machine: Mapping[str, Any]) -> str:
    """The devices and versions in a line."""
    gpus = Counter(machine["gpus"])
    devices = " + ".join(f"{count} × {name}" for name, count in gpus.items()) or f"no GPU ({machine['no_gpu_because']})"
    names = ("driver", "cuda", "torch", "nccl", "slipway", "image")
    named = [f"{name} {machine[name]}" for name in names if machine[name]]
    named += [f"images that fit: {' or '.join(machine['fits'])}"] if machine["fits"] else []
    links = [machine["links"]] if machine["links"] else []
    return ", ".join([devices, *links, *named, f"{machine['cpus']:g} CPUs", machine["kernel"]])
