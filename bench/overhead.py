"""What a training pays for snapshots in memory, and for comparing replicas and ranks, while nothing fails.

    .venv/bench/bin/python bench/overhead.py [--rounds 8]

Each round is a job whose blocks of some 40 steps are with everything in turn with blocks that leave a part out
(blocks/sitecustomize.py): a machine's speed differs by more from job to job than what is measured here. A round's ratio is the
seconds per step without the part over those of the blocks right before and after it, the means of all. The metrics page is on
and read every 15 s. On CPUs the model is tiny and has two ranks; with a GPU it is of the size of GPT-2, alone on it and, for
what ranks compare, twice on it, over gloo.
"""

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from blocks.sitecustomize import MEMORY, WATCHING, WHOLE
from report import Report, options_parser, read_options
from sides import Spread

PERIOD = 15.0  # s between two looks at the metrics page
LIMITS = {MEMORY: 0.99, WATCHING: 0.99}
BOTH = tuple(LIMITS)
ALL = ("--eval-every", "0", "--save-every", "0", "--sample-tokens", "0", "--eval-samples", "16", "--log-every", "1000")


def train(words: Sequence[str], without: Sequence[str], steps: int, hide_gpus: bool) -> list[tuple[str, float]]:
    """The blocks of a job, each with its name and the seconds of a step; every other one is `without` a part. Raises RuntimeError
    with the job's lines where it fails.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as name:
        file, output = Path(name, "blocks.json"), Path(name, "output")
        told = {"PYTHONPATH": str(Path(__file__).with_name("blocks")), "SLIPWAY_METRICS_PORT": port}
        told |= {"BLOCKS": str(file), "WITHOUT": "\n".join(without)}
        told |= {"CUDA_VISIBLE_DEVICES": ""} if hide_gpus else {}
        with output.open("wb") as out:
            job = subprocess.Popen(
                [sys.executable, "-m", "slipway", "gpt", *words, *ALL, "--steps", str(steps)], cwd=name,
                env=with_paths(told), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
            while job.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    job.wait(PERIOD)
                with suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PERIOD).read()  # noqa: S310
        if job.returncode or not file.exists():
            raise RuntimeError(output.read_text(errors="replace"))
        return [(kind, seconds) for kind, seconds in json.loads(file.read_text())]


def with_paths(told: dict[str, str]) -> dict[str, str]:
    """What a job needs of this environment, and what it is `told`."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    paths = [told["PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | told | {"PYTHONPATH": os.pathsep.join(paths)}


def compare(blocks: Sequence[tuple[str, float]], name: str) -> float | None:
    """Seconds without a part over those with everything, right before and after; None without any such blocks."""
    pairs = [
        (seconds, (before + after) / 2)
        for (_, before), (kind, seconds), (_, after) in zip(blocks, blocks[1:], blocks[2:], strict=False)
        if kind == name
    ]
    return sum(each[0] for each in pairs) / sum(each[1] for each in pairs) if pairs else None


def main() -> int:
    """Print the table; 1 where a target is missed for no known reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--gpu", action="store_true", help="on a GPU")
    parser.add_argument("--steps", type=int, default=3000, help="of each job (3000)")
    options = read_options(parser)
    about = "One training, in blocks of steps with everything and with a part left out."
    report = Report("What watching over a job costs", about, options)
    steps = 400 if options.smoke else options.steps
    sides = {"gpt --preset tiny, two ranks on CPUs": (("--preset", "tiny", "--nproc-per-node", "2"), BOTH)}
    if options.gpu:
        gpt2 = ("--preset", "gpt2", "--batch-size", "16")
        sides = {
            "gpt --preset gpt2, one rank on a GPU": ((*gpt2, "--nproc-per-node", "1"), (MEMORY,)),
            "gpt --preset gpt2, two ranks that share a GPU": (
                (*gpt2, "--nproc-per-node", "2", "--oversubscribe"), BOTH,
            ),
        }  # fmt: skip
    for side, (words, parts) in sides.items():
        found = [train(words, parts, steps, not options.gpu) for _ in range(options.rounds)]
        pace = statistics.median(seconds for kind, seconds in itertools.chain(*found) if kind == WHOLE)
        report.note(f"{side}: {1e3 * pace:.1f} ms a step, {sum(map(len, found))} blocks")
        for part in parts:
            ratios = [ratio for blocks in found if (ratio := compare(blocks, part)) is not None]
            report.target(f"{side}: {part} / with everything", Spread.of(ratios), LIMITS[part])
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
