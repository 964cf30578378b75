"""What `allreduce` found: allreduce.json and allreduce.svg in the run directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from slipway.options import AllreduceOptions
from slipway.protocol.durable import replace_file
from slipway.protocol.files import ALLREDUCE_FILE
from slipway.train.loop.metrics import write_options
from slipway.train.measure.bandwidth import RATE, Measurement, by_collective, draw_by_size
from slipway.train.measure.plots import svg_file
from slipway.train.measure.straggler import Straggler
from slipway.train.worker.context import Context


@dataclass
class Findings:
    """What was found so far; the same on all ranks but for `own`, the seconds that this one worked by itself."""

    rows: list[Measurement] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    own: float = 0.0
    straggler: Straggler | None = None
    stragglers_host: str = ""
    complete: bool = False


def as_json(options: AllreduceOptions, context: Context, findings: Findings) -> dict[str, Any]:
    """The content of allreduce.json."""
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


def bandwidth_picture(rows: list[Measurement]) -> str:
    """Bus bandwidth over message sizes, a curve for each collective, as an SVG file."""
    groups = [(name, number, group) for number, (name, group) in enumerate(by_collective(rows).items())]
    return svg_file(draw_by_size("Bus bandwidth", groups, lambda row: row.bus, RATE))


def write_findings(options: AllreduceOptions, context: Context, findings: Findings) -> None:
    """Leave what was found in the run directory: for machines, for people, and with which options."""
    folder = context.place.run_dir
    write_options(folder, options.workload, options)
    replace_file(folder / ALLREDUCE_FILE, json.dumps(as_json(options, context, findings), indent=1))
    if findings.rows:
        replace_file(folder / "allreduce.svg", bandwidth_picture(findings.rows))
