"""What a failure costs, on every side: torchrun, nvidia-resiliency-ext, lm-resiliency, torchft, and Slipway's three ways.

    .venv/bench/bin/python bench/resilience.py [--rounds 8] [--parts kill,nodes,equal,pace,hang,error] [--only torchrun,gpt]

All sides train a GPT with the shapes of `slipway gpt --preset tiny` on two ranks with gloo. Each has a script of its own in
`bench/peers/resilience`, written as its documentation advises. In every round all sides run, one after the other.

kill    from SIGKILL of a random rank, 2 to 12 s after the first steps, to the next step on all ranks; steps that are repeated
nodes   the same with two launchers, each a node of its own with one rank
equal   whether the weights after one kill equal those of an undisturbed run, bit for bit
pace    steps with a kill every 15 s, each counted once, as a share of the side's own pace without kills
hang    a rank stops (SIGSTOP): the first line about it, and when the job trains again, at the defaults and at settings for it
error   a rank raises a KeyError and the job may not restart: what is printed

A side that cannot do something is listed with its last line, and one that is not installed for this Python is left out.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from report import Report, options_parser, read_options
from sides import Spread

from slipway.launch.resolve.connectivity import free_port

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).parent / "peers" / "resilience"
PARTS = ("kill", "nodes", "equal", "pace", "hang", "error")
WARM_UP = 30  # steps before anything is done to a job
PATIENCE = 60.0  # s for a first or next step
HANG_PATIENCE = 60.0  # s
BETWEEN = 15.0  # s from kill to kill
LOOK = 0.01  # s
SHORT = 150  # steps of a run whose end is compared
RESTARTS = "1000"


@dataclass(frozen=True)
class Line:
    """A step that a script's rank has done."""

    time: float
    pid: int
    step: int


class StepFiles:
    """How far the ranks of a script are, from the files that it writes."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the job's."""
        self._folder = folder

    def lines(self, rank: int) -> list[Line]:
        """All steps of a rank."""
        lines = []
        with suppress(OSError):
            for text in (self._folder / f"steps-{rank}").read_text().splitlines(keepends=True):
                words = text.split()
                if text.endswith("\n") and len(words) == 4:
                    lines.append(Line(float(words[0]), int(words[1]), int(words[2])))
        return lines

    def step(self) -> int:
        """The newest step that all ranks have done."""
        return min(lines[-1].step if (lines := self.lines(rank)) else 0 for rank in (0, 1))

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return self.lines(rank)[-1].pid

    def next_step(self, killed: float, victim: int, pid: int) -> tuple[float, int] | None:
        """When all ranks had done a step after the kill, and which: the first of the victim's new process. None before that."""
        first = next((line for line in self.lines(victim) if line.pid != pid and line.time > killed), None)
        if not first:
            return None
        since = max(killed, first.time - 1)
        other = next((line for line in self.lines(1 - victim) if line.time > since and line.step >= first.step), None)
        return (max(first.time, other.time), first.step) if other else None

    def end(self) -> object:
        """What two equal runs have in common at their end."""
        return [(self._folder / f"final-{rank}").read_text() for rank in (0, 1)]


class Heartbeats:
    """The same of a workload of Slipway, from its heartbeats."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the job's."""
        self._folder = folder

    def _beat(self, rank: int) -> dict[str, object]:
        with suppress(OSError, ValueError, StopIteration):
            file = next(self._folder.glob(f"runs/*/node-*/heartbeat/rank-{rank}.json"))
            beat: dict[str, object] = json.loads(file.read_text()) | {"written": file.stat().st_mtime}
            return beat
        return {"pid": 0, "step": 0, "first": 0, "written": 0.0}

    def step(self) -> int:
        """The newest step that all ranks have done."""
        return min(int(str(self._beat(rank)["step"])) for rank in (0, 1))

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return int(str(self._beat(rank)["pid"]))

    def next_step(self, killed: float, victim: int, pid: int) -> tuple[float, int] | None:
        """When all ranks had done a step after the kill, and which. None before that."""
        beats = [self._beat(rank) for rank in (0, 1)]
        if beats[victim]["pid"] == pid or any(float(str(beat["written"])) < killed for beat in beats):
            return None
        first = int(str(beats[victim]["first"] or 0))  # the step that it resumed from
        return (time.time(), first + 1) if all(int(str(beat["step"])) > first for beat in beats) else None

    def end(self) -> object:
        """What two equal runs have in common at their end."""
        newest = max(self._folder.glob("runs/*/snapshots/step-????????"))
        files = (file for file in sorted(newest.iterdir()) if "manifest" not in file.name)
        return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


@dataclass(frozen=True)
class Start:
    """What a side's command lines depend on."""

    nodes: int
    port: int
    steps: int
    restarts: str = RESTARTS
    watchful: bool = False  # with settings that find a rank that hangs
    is_replica: bool = False  # one of two jobs of one rank each

    @property
    def processes(self) -> str:
        """Of each node."""
        return f"{1 if self.is_replica else 2 // self.nodes}"


Commands = Callable[[Start, int], Sequence[str | Path]]


def torchrun(start: Start, node: int, script: str = "plain.py") -> Sequence[str | Path]:
    """torchrun, with the rendezvous that its documentation advises for restarts."""
    words = [BIN / "python", "-m", "torch.distributed.run", "--nnodes", f"{start.nodes}"]
    words += ["--nproc-per-node", start.processes, "--max-restarts", start.restarts, "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"127.0.0.1:{start.port}", "--rdzv-id", "bench"]
    return [*words, *(["--rdzv-conf", f"is_host={1 - node}"] if start.nodes > 1 else []), SCRIPTS / script]


def ft_launcher(start: Start, node: int) -> Sequence[str | Path]:
    """NVIDIA's torchrun, that watches heartbeats."""
    words = [BIN / "ft_launcher", *torchrun(start, node, "ft.py")[3:-1], "--ignore-missing-fault-tol-cfg"]
    if start.watchful:
        words += ["--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "5"]
        words += ["--ft-workload-check-interval", "1"]
    return [*words, SCRIPTS / "ft.py"]


def slipway(start: Start, node: int, script: str = "plain.py") -> Sequence[str | Path]:
    """A script under Slipway."""
    words: list[str | Path] = [BIN / "python", "-m", "slipway", "run", "--nproc-per-node", start.processes]
    words += ["--max-restarts", start.restarts, "--progress-seconds", "5"]
    words += ["--hang-seconds", "5", "--on-hang", "end"] if start.watchful else []
    return [*words, SCRIPTS / script]


def gpt(start: Start, node: int) -> Sequence[str | Path]:
    """Slipway's own workload."""
    words: list[str | Path] = [BIN / "python", "-m", "slipway", "run", "--nproc-per-node", start.processes]
    words += ["--max-restarts", start.restarts]
    words += ["--hang-seconds", "5", "--on-hang", "end"] if start.watchful else []
    words += ["gpt", "--preset", "tiny", "--steps", f"{start.steps}", "--save-every", "20", "--eval-every", "0"]
    return [*words, "--sample-tokens", "0"]


@dataclass(frozen=True)
class Side:
    """A way to run the training, its script, and how one reads how far it is."""

    name: str
    commands: Commands
    script: str
    reader: type[StepFiles] | type[Heartbeats] = StepFiles
    is_replicated: bool = False  # two jobs of one rank each, with a service that knows both
    package: str = "torch"

    @property
    def is_installed(self) -> bool:
        """Whether this Python has the side's package."""
        return importlib.util.find_spec(self.package) is not None


SIDES = {
    side.name: side
    for side in (
        Side("torchrun", torchrun, "plain.py"),
        Side("ft_launcher", ft_launcher, "ft.py", package="nvidia_resiliency_ext"),
        Side(
            "lm-resiliency",
            lambda start, node: torchrun(start, node, "lm.py"),
            "lm.py",
            package="lm_resiliency",
        ),
        Side(
            "torchft",
            lambda start, node: torchrun(start, 0, "replicas.py"),
            "replicas.py",
            is_replicated=True,
            package="torchft",
        ),
        Side("slipway run", slipway, "plain.py"),
        Side("slipway.resume", lambda start, node: slipway(start, node, "own.py"), "own.py"),
        Side("slipway gpt", gpt, "", Heartbeats),
    )
}


class FailedError(Exception):
    """A side did not do what was asked."""


@dataclass
class Job:
    """A side's job under way."""

    folder: Path
    progress: StepFiles | Heartbeats
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def output(self) -> str:
        """What it printed."""
        return "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("output-*.txt")))

    def wait_for(self, ask: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """The first answer that is not None or False. Raises FailedError where the job ends before, or none comes."""
        until = time.monotonic() + patience
        while (answer := ask()) in (None, False):
            if any(process.poll() is not None for process in self.processes):
                raise FailedError(f"it ended: {self.last_line()}")
            if time.monotonic() > until:
                raise FailedError(f"not within {patience:.0f} s")
            time.sleep(LOOK)
        return answer

    def last_line(self) -> str:
        """The last line that it printed and that says something."""
        lines = [line.strip() for line in self.output.splitlines() if re.search(r"\w{3}", line)]
        return lines[-1][:160] if lines else "nothing was printed"

    def kill(self, victim: int) -> tuple[float, int]:
        """SIGKILL a rank. Returns the seconds until the next step on all ranks, and how many steps were repeated."""
        pid, before = self.progress.pid(victim), self.progress.step()
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        moment, step = self.wait_for(lambda: self.progress.next_step(killed, victim, pid)) or (0.0, 0)
        return moment - killed, max(0, before + 1 - step)


@contextmanager
def running(side: Side, start: Start, **variables: str) -> Iterator[Job]:
    """A job in a folder of its own. All its processes are killed at the end."""
    folder = Path(tempfile.mkdtemp())
    job = Job(folder, side.reader(folder))
    nodes = 2 if side.is_replicated else start.nodes
    try:
        lighthouse = free_port(0)
        if side.is_replicated:
            service = [BIN / "torchft_lighthouse", "--bind", f"127.0.0.1:{lighthouse}", "--min_replicas", "1"]
            begin(job, [*service, "--join_timeout_ms", "1000"], "lighthouse", {})
        for node in range(nodes):
            own, told = start, {"STEPS": f"{start.steps}", **variables}
            if side.is_replicated:
                own = replace(start, nodes=1, port=free_port(0), is_replica=True)
                told |= {"REPLICA_GROUP_ID": f"{node}", "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{lighthouse}"}
            elif nodes > 1 and "slipway" in side.name:
                told |= {"RANK": f"{node}", "WORLD_SIZE": "2"}
                told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{start.port}"}
            begin(job, side.commands(own, node), f"{node}", told)
        yield job
    finally:
        end(job)


def begin(job: Job, words: Sequence[str | Path], name: str, variables: Mapping[str, str]) -> None:
    """Start a process of a job."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME")}
    environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS.parents[1])}
    with (job.folder / f"output-{name}.txt").open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=job.folder,
            env=environ | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    job.processes.append(process)


def end(job: Job) -> None:
    """Kill all processes that run in the job's folder, and remove it."""
    for _ in range(3):
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink() == job.folder:
                    os.kill(int(process.name), signal.SIGKILL)
        time.sleep(0.2)
    for started in job.processes:
        started.wait()
    shutil.rmtree(job.folder, ignore_errors=True)


def is_warm(job: Job) -> bool:
    """Whether it has made its first steps."""
    return job.progress.step() >= WARM_UP


class Bench:
    """The parts, each a table."""

    def __init__(self, report: Report, names: Sequence[str]) -> None:
        """Measure these sides."""
        self._report, self._sides = report, {name: SIDES[name] for name in names}
        self._rounds, self._smoke = report.options.rounds, report.options.smoke
        self._draw = random.Random(7)

    def kill(self, nodes: int = 1) -> None:
        """One kill for each side and round."""
        taken: dict[str, list[float]] = {name: [] for name in self._sides}
        repeated: dict[str, list[int]] = {name: [] for name in self._sides}
        failed: dict[str, list[str]] = {name: [] for name in self._sides}
        for _ in range(self._rounds):
            victim, wait = self._draw.choice((0, 1)), self._draw.uniform(2, 12)
            for name, side in self._sides.items():
                try:
                    with running(side, Start(nodes, free_port(0), 1_000_000)) as job:
                        job.wait_for(lambda job=job: is_warm(job))
                        time.sleep(wait)
                        seconds, steps = job.kill(victim)
                except FailedError as error:
                    failed[name].append(str(error))
                    continue
                taken[name].append(seconds)
                repeated[name].append(steps)
                print(f"  {name}: {seconds:.2f} s, {steps} steps repeated", flush=True)
        self._report.table(
            f"SIGKILL of a rank to the next step on all ranks, {'one node' if nodes == 1 else 'two nodes'}",
            ["", "s", "steps repeated", "lines added to the script", "rounds that failed"],
            [
                [
                    name,
                    Spread.of(taken[name]).told(2) if taken[name] else "–",
                    f"{statistics.median(repeated[name]):.0f}" if repeated[name] else "–",
                    str(lines_added(side)) if side.script else "–",
                    "; ".join(failed[name]) or "none",
                ]
                for name, side in self._sides.items()
            ],
        )
        self._judge(taken, f"{'one node' if nodes == 1 else 'two nodes'}, a killed rank")

    def _judge(self, taken: Mapping[str, Sequence[float]], what: str) -> None:
        peers = taken.get("ft_launcher", [])
        for name, limit in (("slipway run", 0.5), ("slipway.resume", 0.25)):
            if peers and len(taken.get(name, [])) == len(peers):
                ratios = [own / theirs for own, theirs in zip(taken[name], peers, strict=True)]
                self._report.target(f"{what}: {name} / ft_launcher", Spread.of(ratios), limit, at_most=True)
        own, gpts = taken.get("slipway.resume", []), taken.get("slipway gpt", [])
        if own and len(own) == len(gpts):
            ratios = [one / other for one, other in zip(own, gpts, strict=True)]
            self._report.target(f"{what}: slipway.resume / slipway gpt", Spread.of(ratios), 1.2, at_most=True)

    def nodes(self) -> None:
        """The same on two nodes."""
        self.kill(nodes=2)

    def equal(self) -> None:
        """Two short runs of each side."""
        rows = []
        for name, side in self._sides.items():
            ends: list[object] = []
            try:
                for disturbed in (False, True):
                    with running(side, Start(1, free_port(0), SHORT)) as job:
                        if disturbed:
                            job.wait_for(lambda job=job: is_warm(job))
                            job.kill(1)
                        for process in job.processes[1 if side.is_replicated else 0 :]:
                            process.wait(10 * PATIENCE)
                        ends.append(job.progress.end())
                answer = "yes" if ends[0] == ends[1] else "no"
                if "slipway" in name:
                    equal = Spread.of([float(ends[0] == ends[1])])
                    self._report.target(f"{name}, weights equal to an undisturbed run's", equal, 1.0, "")
            except (FailedError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                answer = f"{type(error).__name__}: {error}"
            rows.append([name, answer])
            print(f"  {name}: {answer}", flush=True)
        self._report.table("Weights after one kill equal to those of an undisturbed run, bit for bit", ["", ""], rows)

    def pace(self) -> None:
        """A minute without kills and some with them, of each side."""
        seconds = 10.0 if self._smoke else 60.0 * self._report.options.minutes
        between = 4.0 if self._smoke else BETWEEN
        rows = []
        for name, side in self._sides.items():
            try:
                with running(side, Start(1, free_port(0), 1_000_000)) as job:
                    job.wait_for(lambda job=job: is_warm(job))
                    calm, _ = follow(job, min(seconds, 30.0), float("inf"))
                with running(side, Start(1, free_port(0), 1_000_000)) as job:
                    job.wait_for(lambda job=job: is_warm(job))
                    harmed, kills = follow(job, seconds, between)
                rows.append([name, f"{kills}", f"{calm:.1f}", f"{harmed:.1f}", f"{harmed / calm:.0%}"])
                if name == "slipway gpt":
                    self._report.target(f"{name}, share of its pace", Spread.of([harmed / calm]), 0.8, "")
            except FailedError as error:
                rows.append([name, "–", "–", "–", str(error)])
            print(f"  {rows[-1]}", flush=True)
        columns = ["", "kills", "steps/s without kills", "steps/s with them", "share"]
        self._report.table(f"A kill every {between:.0f} s, for {seconds:.0f} s", columns, rows)

    def hang(self) -> None:
        """A rank that stops, at the defaults and at each side's settings for it."""
        patience = 12.0 if self._smoke else HANG_PATIENCE
        rows = []
        for watchful in (False, True):
            for name, side in self._sides.items():
                told, again = "nothing", f"not within {patience:.0f} s"
                with running(side, Start(1, free_port(0), 1_000_000, watchful=watchful)) as job, suppress(FailedError):
                    job.wait_for(lambda job=job: is_warm(job))
                    pid, stopped, said = job.progress.pid(1), time.time(), len(job.output)
                    os.kill(pid, signal.SIGSTOP)
                    until = stopped + patience
                    while time.time() < until:
                        later = [
                            line for line in job.output[said:].splitlines() if "step " not in line and line.strip()
                        ]
                        if later and told == "nothing":
                            told = f"{time.time() - stopped:.1f} s: {later[0].strip()[:140]}"
                        if seen := job.progress.next_step(stopped, 1, pid):
                            again = f"{seen[0] - stopped:.1f} s"
                            break
                        time.sleep(LOOK)
                rows.append([name, "for hangs" if watchful else "defaults", told, again])
                print(f"  {rows[-1]}", flush=True)
        columns = ["", "settings", "first line after SIGSTOP of a rank", "next step on all ranks"]
        self._report.table("A rank that stops", columns, rows)

    def error(self) -> None:
        """What a KeyError on one rank prints."""
        rows = []
        for name, side in self._sides.items():
            if side.reader is Heartbeats:
                continue  # its loop is not the user's
            with running(side, Start(1, free_port(0), 1_000_000, restarts="0"), FAULT="1:40") as job:
                with suppress(FailedError):
                    job.wait_for(lambda: None)
                time.sleep(1.0)
                lines = [line for line in job.output.splitlines() if line.strip()]
                found = next((line.strip()[:140] for line in lines if re.search(r"rank.?1\b.*KeyError", line)), "none")
                rows.append([name, f"{len(lines)}", found])
            print(f"  {rows[-1]}", flush=True)
        columns = ["", "lines printed", "the first with the rank and the error"]
        self._report.table("A KeyError on rank 1", columns, rows)


def follow(job: Job, seconds: float, between: float) -> tuple[float, int]:
    """Steps per second over so many seconds, each step counted once, and how often a random rank was killed."""
    draw = random.Random(7)
    begun, first, kills, highest = time.time(), job.progress.step(), 0, 0
    while (passed := time.time() - begun) < seconds:
        highest = max(highest, job.progress.step())
        if passed > (kills + 1) * between:
            with suppress(ProcessLookupError, IndexError):
                os.kill(job.progress.pid(draw.choice((0, 1))), signal.SIGKILL)
                kills += 1
        if job.processes[-1].poll() is not None:
            raise FailedError(f"it ended: {job.last_line()}")
        time.sleep(0.1)
    return (highest - first) / passed, kills


def lines_added(side: Side) -> int:
    """How many lines of a side's script are not in bare.py, docstrings apart."""
    bare, own = ((SCRIPTS / name).read_text().splitlines()[1:] for name in ("bare.py", side.script))
    return sum(line.startswith("+") and line.strip("+ ") != "" for line in difflib.ndiff(bare, own))


def main() -> int:
    """Print the tables; 1 where a target is missed for no known reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SIDES))
    parser.add_argument("--minutes", type=float, default=2.0, help="with kills, in the part `pace`")
    report = Report("Resilience", "Two ranks train a small GPT, and one of them fails.", read_options(parser))
    missing = [name for name in report.options.only if not SIDES[name].is_installed]
    if missing:
        report.note(f"Not installed for this Python, and left out: {', '.join(missing)}.")
    bench = Bench(report, [name for name in report.options.only if name not in missing])
    for part in report.options.parts:
        getattr(bench, part)()
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
