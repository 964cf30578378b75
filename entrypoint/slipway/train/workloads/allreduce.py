"""`allreduce`: how fast the processes exchange data, whether the data arrive intact, and which process is the slowest.

slipway allreduce --nproc-per-node 2 --max-bytes 4M

The results are in allreduce.json and allreduce.svg in the run directory.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from slipway.options import parse
from slipway.options.allreduce import AllreduceOptions
from slipway.protocol.durable import replace_file
from slipway.protocol.files import ALLREDUCE_FILE, CHARTS
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.protocol.printable import counted
from slipway.train.loop.metrics import write_options
from slipway.train.measure import bandwidth
from slipway.train.measure.collectives import (
    CollectiveBuffers,
    make_buffers,
    synchronize,
    time_calls,
    time_links,
    why_lacking,
)
from slipway.train.measure.plots import svg_file
from slipway.train.observe.sinks import Charts, Sinks
from slipway.train.worker.context import Context, open_context
from slipway.train.worker.launcher import PeerError, UnhealthyError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}

ALONE = "a single process has no communication to test. Try two: slipway allreduce --nproc-per-node 2"


@dataclass
class Findings:
    """The results so far; the same on all ranks except `own`, the seconds that this rank spent on its own work."""

    rows: list[bandwidth.Measurement] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    own: float = 0.0
    straggler: bandwidth.SlowestRank | None = None
    stragglers_host: str = ""
    complete: bool = False


def train(context: Context, args: list[str]) -> None:
    """Measure with the options in `args`. Nothing is resumed: a second start measures everything again."""
    options, place, findings = parse(AllreduceOptions, args), context.place, Findings()
    context.say(
        f"allreduce: {counted(place.world_size, 'process')}, {place.backend} on {context.device.type}, {options.dtype}, "
        f"{counted(options.iterations, 'call')} after {options.warmup_iterations} to warm up"
    )
    first = place.rank == 0
    shown = first and place.world_size > 1
    charts = Sinks(None, [(Charts.name, lambda: Charts(place.run_dir / CHARTS, 0))] if shown else [], context.warn)
    word = None
    try:
        if place.world_size > 1:
            word = sweep(options, context, findings, charts)
        if word is None and findings.rows:
            look_for_straggler(context, findings)
        findings.complete = word is None
    finally:
        charts.close()
        if first:
            write_findings(options, context, findings)
    note_result(context, findings, word)


def sweep(options: AllreduceOptions, context: Context, findings: Findings, charts: Sinks) -> str | None:
    """Measure all collectives at all sizes, into `findings`. Returns the word if a stop came.

    Raises UnhealthyError on a rank that received wrong numbers, PeerError on the others.
    """
    sizes = bandwidth.message_sizes(options.min_bytes, options.largest(context.device.type), options.factor)
    dtype = DTYPES[options.dtype]
    context.steps = len(options.names) * len(sizes)
    context.say(bandwidth.line(bandwidth.COLUMNS))
    for number, name in enumerate(options.names):
        word, _ = context.agree()
        if word is not None:
            return word
        context.beat(Phase.MEASURE)
        if reason := why_lacking(name, dtype, context):
            findings.skipped[name] = reason
            context.say(f"{name:<14}  skipped: {reason}")
            continue
        for index, size in enumerate(sizes):
            word, _ = context.agree()
            if word is not None:
                return word
            elements = bandwidth.count_elements(name, size, dtype.itemsize, context.place.world_size)
            row = measure_one(make_buffers(name, elements, dtype, context), options, context, findings)
            findings.rows.append(row)
            context.say(bandwidth.line(row.cells))
            context.progress(number * len(sizes) + index + 1)
            charts.write(row.size, **{f"{name}_bus_gb_per_second": row.bus / 1e9})
    return None


def measure_one(
    buffers: CollectiveBuffers, options: AllreduceOptions, context: Context, findings: Findings
) -> bandwidth.Measurement:
    """Check a collective once, then time it on every rank."""
    whole = max(buffers.given.nbytes, buffers.result.nbytes)
    context.beat(Phase.MEASURE)
    begin = time.perf_counter()
    buffers.fill()
    synchronize(context.device)
    filled = time.perf_counter()
    buffers.run()
    synchronize(context.device)
    arrived = time.perf_counter()
    wrong = buffers.check()
    findings.own += filled - begin + time.perf_counter() - arrived
    require_right(f"{buffers.collective} of {bandwidth.size_text(whole)}", wrong, context)
    context.beat(Phase.MEASURE)
    for _ in range(options.warmup_iterations):
        buffers.run()
    synchronize(context.device)
    context.wait_for_all()
    context.beat(Phase.MEASURE)
    seconds = time_calls(buffers.run, options.iterations, context.device)
    return bandwidth.measure(buffers.collective, whole, context.gather_number(seconds))


def require_right(what: str, wrong: str, context: Context) -> None:
    """Raise on all ranks if any rank received something `wrong`."""
    rank = context.place.rank
    bad = [rank for rank, odd in enumerate(context.gather_number(bool(wrong))) if odd]
    if wrong:
        raise UnhealthyError(f"{what}: rank {rank} got a wrong result: {wrong}")
    if bad:
        raise PeerError(f"{what}: rank {bad[0]} got a wrong result")


def look_for_straggler(context: Context, findings: Findings) -> None:
    """Find the slowest rank and say what it is slow at."""
    context.beat(Phase.MEASURE)
    findings.straggler = bandwidth.find_slowest(context.gather_number(findings.own), time_links(context))
    findings.stragglers_host = context.share_text(socket.gethostname(), findings.straggler.rank)
    context.say(f"slowest rank: {findings.straggler.rank} ({findings.stragglers_host}): {findings.straggler.text}")


def note_result(context: Context, findings: Findings, word: str | None) -> None:
    """Report the result in a line, and as the outcome."""
    context.wait_for_all()
    if word is not None:
        done = f"allreduce.json has {len(findings.rows)} of {counted(context.steps or 0, 'measurement')}"
        context.conclude(word, f"{word}; {done}; another start measures all of them again")
        return
    text = bandwidth.bandwidth_summary(findings.rows, context.place.world_size) if findings.rows else ALONE
    if context.place.world_size > 1 and not findings.rows:
        text = "the backend has none of these collectives"
    context.conclude(Word.FINISHED, text)


def as_json(options: AllreduceOptions, context: Context, findings: Findings) -> dict[str, Any]:
    """Return the content of allreduce.json."""
    place, cuda = context.place, context.device.type == "cuda"
    straggler = findings.straggler
    return {
        "complete": findings.complete,
        "processes": place.world_size,
        "backend": place.backend,
        "device": torch.cuda.get_device_name(context.device) if cuda else "cpu",
        "torch": torch.__version__,
        "dtype": options.dtype,
        "iterations": options.iterations,
        "warmup_iterations": options.warmup_iterations,
        "results": [row.values() for row in findings.rows],
        "skipped": findings.skipped,
        "slowest": {
            **asdict(straggler), "host": findings.stragglers_host, "certain": straggler.certain, "text": straggler.text,
        } if straggler else None,
    }  # fmt: skip


def write_findings(options: AllreduceOptions, context: Context, findings: Findings) -> None:
    """Write results, chart and options to the run directory."""
    folder = context.place.run_dir
    write_options(folder, options.workload, options)
    replace_file(folder / ALLREDUCE_FILE, json.dumps(as_json(options, context, findings), indent=1))
    if findings.rows:
        groups = [
            (name, number, group) for number, (name, group) in enumerate(bandwidth.by_collective(findings.rows).items())
        ]
        picture = bandwidth.draw_by_size("Bus bandwidth", groups, lambda row: row.bus, bandwidth.RATE)
        replace_file(folder / "allreduce.svg", svg_file(picture))


def main() -> None:
    """Run as a worker."""
    with open_context(abandon=True) as context:
        train(context, sys.argv[1:])


if __name__ == "__main__":
    main()
