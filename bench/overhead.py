"""What a training pays for snapshots in memory, for comparing replicas and ranks, and for replays, while nothing fails.

    .venv/bench/bin/python bench/overhead.py [--rounds 8] [--gpu] [--only replays]

Each round is a job in which both are switched on and off every dozen steps (switched/sitecustomize.py): a machine's speed differs
by more from job to job, and from minute to minute, than what is measured here. All ways that follow each other once make one
comparison; a round's ratio is the mean of them all, the seconds of a step without a part over those with it. Replays come every
OFTEN steps; their ratio is then computed for the interval that the training chose. The metrics page is on and read every 15 s.

On CPUs the model is tiny and has two ranks, in `slipway gpt` and in a loop with slipway.resume; with a GPU it is of the size of
GPT-2 and alone on it, and, for what ranks compare, a small one of two ranks that share it, over gloo.
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

from report import Report, options_parser, read_options
from sides import Spread
from switched.sitecustomize import MEMORY, OFTEN, REPLAYS, WATCHING

HERE = Path(__file__).parent
PERIOD = 15.0  # s between polls of the metrics page
LIMITS = {MEMORY: 0.99, WATCHING: 0.99, REPLAYS: 0.995}
BOTH = (MEMORY, WATCHING)
ALL = ("--eval-every", "0", "--save-every", "0", "--sample-tokens", "0", "--eval-samples", "16", "--log-every", "1000")


Switched = list[tuple[list[str], float]]  # what was on, and the seconds of a step


def train(words: Sequence[str], parts: Sequence[str], steps: int, hide_gpus: bool) -> tuple[Switched, int]:
    """A job of so many steps, whose `parts` are switched on and off, and the interval of replays that it chose.

    `words`: what follows `slipway`; a script reads the number of steps from STEPS.
    Raises RuntimeError with its lines where it fails.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as name:
        file, output = Path(name, "switched.json"), Path(name, "output")
        told = {"PYTHONPATH": os.pathsep.join([str(HERE / "switched"), str(HERE)]), "SLIPWAY_METRICS_PORT": port}
        told["STEPS"] = str(steps)
        told |= {"SWITCHED": str(file), "PARTS": "\n".join(parts)} | ({"CUDA_VISIBLE_DEVICES": ""} if hide_gpus else {})
        with output.open("wb") as out:
            job = subprocess.Popen(
                [sys.executable, "-m", "slipway", *words], cwd=name,
                env=with_paths(told), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
            while job.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    job.wait(PERIOD)
                with suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PERIOD).read()
        if job.returncode or not file.exists():
            raise RuntimeError(output.read_text(errors="replace"))
        found = json.loads(file.read_text())
        return [(on, seconds) for on, seconds in found["switched"]], found["interval"]


def with_paths(told: dict[str, str]) -> dict[str, str]:
    """What a job needs of this environment, and what it is `told`."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    paths = [told["PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | told | {"PYTHONPATH": os.pathsep.join(paths)}


def compare(switched: Switched, part: str, ways: int) -> list[float]:
    """The ratio of each comparison, of so many ways: a step's seconds without a part over those with it, whatever else is on."""
    ratios = []
    for begin in range(0, len(switched) - ways + 1, ways):
        both = ([], [])
        for on, seconds in switched[begin : begin + ways]:
            both[part in on].append(seconds)
        ratios.append(statistics.mean(both[False]) / statistics.mean(both[True]))
    return ratios


def dilute(ratio: float, interval: int) -> float:
    """The ratio where replays come every `interval` steps, by that where they come every OFTEN."""
    return 1 / (1 + (1 / ratio - 1) * OFTEN / interval)


def main() -> int:
    """Print the table; 1 where a target is missed for no known reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--gpu", action="store_true", help="on a GPU")
    parser.add_argument("--steps", type=int, default=1500, help="of each job (1500)")
    parser.add_argument("--only", default="", help="only trainings with this in their names")
    options = read_options(parser)
    about = "Parts of one training are switched on and off every dozen steps."
    report = Report("What watching over a job costs", about, options)
    steps = 240 if options.smoke else options.steps
    gpt, two, replays = ("gpt", *ALL, "--steps", str(steps)), ("--nproc-per-node", "2"), ("--replay-every", "auto")
    tiny, own = (*gpt, "--preset", "tiny", *two), str(HERE / "peers" / "resilience" / "own.py")
    sides = {
        "gpt --preset tiny, two ranks on CPUs": (tiny, BOTH),
        "gpt --preset tiny with replays, two ranks on CPUs": ((*tiny, *replays), (REPLAYS,)),
        "a loop with slipway.resume, two ranks on CPUs": (("run", *two, "--max-restarts", "3", own), (MEMORY,)),
    }
    if options.gpu:
        size = (*gpt, "--batch-size", "16", "--accumulate", "1", "--no-compile")
        sides = {
            "gpt --preset gpt2, one rank on a GPU": ((*size, "--preset", "gpt2", "--nproc-per-node", "1"), (MEMORY,)),
            "gpt --preset small, two ranks that share a GPU": (
                (*size, "--preset", "small", *two, "--oversubscribe"), BOTH,
            ),
            "gpt --preset small with replays, two ranks that share a GPU": (
                (*size, "--preset", "small", *two, "--oversubscribe", *replays), (REPLAYS,),
            ),
        }  # fmt: skip
    for side, (words, parts) in sides.items():
        if options.only not in side:
            continue
        found, intervals = zip(
            *(train(words, parts, steps, not options.gpu) for _ in range(options.rounds)), strict=True
        )
        pace = statistics.median(seconds for _, seconds in itertools.chain(*found))
        report.note(f"{side}: {1e3 * pace:.1f} ms a step")
        for part in parts:
            rounds = [compare(switched, part, 2 ** len(parts)) for switched in found]
            if part == REPLAYS:
                rounds = [
                    [dilute(ratio, chosen) for ratio in ratios]
                    for ratios, chosen in zip(rounds, intervals, strict=True)
                ]
                report.note(f"Replays: one every {' or '.join(map(str, sorted(set(intervals))))} steps.")
            every = [*itertools.chain(*rounds)]
            what = f"{side}, without {part}"
            report.target(what, Spread.of([statistics.mean(ratios) for ratios in rounds]), LIMITS[part], "of a step")
            error = statistics.stdev(every) / len(every) ** 0.5
            report.note(
                f"Without {part}: {len(every)} comparisons, mean {statistics.mean(every):.4f} ± {error:.4f} (standard error)."
            )
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
