"""Where the benches of this folder are measured: on a GPU; with `--smoke` and none at hand a CPU shows that they still run."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from report import Report, options_parser, read_options
from sides import Cost, Side, Spread

NONE = "skipped: no GPU answers"
DTYPES: Mapping[str, torch.dtype | None] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
# What tells a program where its GPU, its libraries and this checkout are.
KEPT = (
    "PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip


def read_ground(
    about: str | None, more: Callable[[argparse.ArgumentParser], None] = lambda parser: None
) -> argparse.Namespace | None:
    """The options of a bench, with its `device`; None, and a line that says so, where there is no such device.

    `more` adds options of the bench's own. On a CPU nothing is compiled: it would take a minute, and says nothing about a GPU.
    """
    parser = options_parser(about)
    parser.add_argument(
        "--device",
        type=torch.device,
        default=torch.device("cuda"),
        help="cuda; with --smoke the CPU where there is none",
    )
    more(parser)
    options = read_options(parser)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        if not options.smoke:
            print(NONE)
            return None
        options.device = torch.device("cpu")
    if options.device.type == "cuda":
        options.device = torch.device("cuda", options.device.index or 0)
        torch.cuda.set_device(options.device)
    else:
        if not options.smoke:
            parser.error("--device cpu only shows that a bench runs; type --smoke with it")
        torch.set_num_threads(1)
        torch.compiler.set_stance("force_eager")
    return options


def bare_environment() -> dict[str, str]:
    """The environment of a program of its own: what it needs of ours, and nothing of a job that this may be part of."""
    return {name: os.environ[name] for name in KEPT if name in os.environ}


def describe(device: torch.device) -> str:
    """The device and what drives it, for a report."""
    if device.type != "cuda":
        return f"on {device}, PyTorch {torch.__version__}: these numbers mean nothing"
    facts = torch.cuda.get_device_properties(device)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return (
        f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, compute capability {facts.major}.{facts.minor}, "
        f"PyTorch {torch.__version__}, cuDNN {cudnn}"
    )


def wait(device: torch.device) -> None:
    """Return once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, call: Callable[[], object]) -> Cost:
    """What a call costs, with all that it gives the device to do."""
    wait(device)
    cpu, start = time.process_time(), time.perf_counter()
    call()
    wait(device)
    return Cost(time.perf_counter() - start, time.process_time() - cpu)


def blocks(device: torch.device, takes: Mapping[str, Callable[[int], object]], steps: int) -> dict[str, Side]:
    """Sides that take so many steps whenever it is their turn."""
    return {name: lambda take=take: timed(device, lambda: take(steps)) for name, take in takes.items()}  # type: ignore[misc]


def warmed(sides: Mapping[str, Side], report: Report, optional: Sequence[str] = ()) -> dict[str, Side]:
    """The sides after a first turn, in which they compile; an `optional` one that fails is told about and left out."""
    whole = dict(sides)
    for name, side in sides.items():
        try:
            side()
        except Exception as error:  # whatever a compiler may raise: the other rows are worth having
            if name not in optional:
                raise
            report.note(f"{name}: left out, for it failed with {type(error).__name__}: {str(error)[:300]}")
            del whole[name]
    return whole


def speed(costs: Sequence[Cost], units: float) -> Spread:
    """Units a second, where each turn had so many."""
    return Spread.of([units / cost.wall for cost in costs])


def rows(costs: Mapping[str, Sequence[Cost]], units: float, losses: Mapping[str, float]) -> list[list[str]]:
    """For each side its speed, the host's CPU seconds of a turn, and its loss in the end."""
    return [
        [name, speed(side, units / 1e3).told(2, " k"), f"{Spread.of([c.cpu for c in side]).median:.3f}", f"{losses[name]:.4f}"]
        for name, side in costs.items()
    ]  # fmt: skip


def differ(losses: Mapping[str, float]) -> Spread:
    """By what share each loss differs from the first."""
    first, *others = losses.values()
    return Spread.of([abs(other / first - 1) for other in others])


def quickest(costs: Mapping[str, Sequence[Cost]], names: Sequence[str]) -> str:
    """Whichever of these sides took the least time; those that were left out do not count."""
    walls = {name: Spread.of([cost.wall for cost in costs[name]]).median for name in names if name in costs}
    return min(walls, key=walls.__getitem__)
