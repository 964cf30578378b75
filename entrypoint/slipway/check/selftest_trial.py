"""Where the jobs and probes of a selftest run, how each of them ended, and what that proves: rows of `slipway selftest`."""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from slipway.check.finding import broken, exit_code, ok, skipped
from slipway.check.products import ProbeEnding, start_probe, wait_for_probe
from slipway.launch.rendezvous.messages import BROKEN, ERROR, OK, SKIPPED, WARNING, Finding
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.settings import SETTINGS
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import resolve_topology
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.records import NodeEnd
from slipway.launch.verdict.cause import CauseKind
from slipway.process.tree import OwnProcesses
from slipway.protocol.errors import CONFIGURATION, FAILED, FINISHED, PEER, UNHEALTHY, LaunchError
from slipway.protocol.printable import counted, last_line

PATIENCE = 300.0  # s that one job or probe may take; on eight GPUs or two idle cores each takes less than half a minute
# On this node alone, even if the environment names others, and once.
ALONE = ("--standalone", "--nproc-per-node", "auto", "--max-restarts", "0")


@dataclass(frozen=True)
class Ended:
    """A job that has ended: its exit code (None: it had to be killed), all that it printed, its run directory."""

    code: int | None
    said: str
    run: Path

    @property
    def last(self) -> str:
        """The last line that it printed."""
        return last_line(self.said.splitlines()) or "it printed nothing"

    @property
    def first(self) -> NodeEnd:
        """What its verdict names as the first cause; an empty one where there is none."""
        return RunDirectory(self.run).first_cause or NodeEnd()

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each number in metrics.jsonl."""
        numbers: dict[str, float] = {}
        with suppress(OSError):
            for values in RunDirectory(self.run).metrics_by_step():
                numbers |= values
        return numbers

    def log(self, rank: int) -> str:
        """What a rank printed."""
        with suppress(OSError):
            return RunDirectory(self.run).node(0).log_text(rank)
        return ""


@dataclass(frozen=True)
class Sandbox:
    """This node, and the private folder in which all jobs run. `environ` is the environment that they get, `processes` how many
    each has, `own` what is ended with a job that hangs."""

    folder: Path
    environ: Mapping[str, str]
    devices: Devices
    host: Host
    processes: int
    own: OwnProcesses

    @property
    def device(self) -> str:
        """`cuda` or `cpu`."""
        return "cuda" if self.devices.gpus else "cpu"

    def run(self, name: str, *words: str) -> Ended:
        """Run `slipway run` with a workload and its options to the end, in the run directory `name`."""
        return self._end(name, ["slipway", "run", *words])

    def rehearse(self, name: str, fault: str, *words: str) -> Ended:
        """The same for a job whose last rank has a fault, or `none` (train/workloads/selftest.py)."""
        return self._end(name, ["slipway.cli.rehearsal", fault, *words])

    def ask(self, module: str, word: str) -> ProbeEnding:
        """What a module of `train` answers, on the first device."""
        first = self.devices.gpus[0].uuid if self.devices.gpus else ""
        environ = {**self.environ, **self.host.mended, "CUDA_VISIBLE_DEVICES": first}
        return wait_for_probe(start_probe(module, (word,), environ), time.monotonic() + PATIENCE)

    def _end(self, name: str, words: list[str]) -> Ended:
        run, file = self.folder / name, self.folder / f"{name}.txt"
        command = [sys.executable, "-P", "-m", *words, *ALONE, "--run-dir", str(run)]
        with file.open("w") as output:
            job = subprocess.Popen(
                command,
                cwd=self.folder,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code: int | None = None
            try:
                code = job.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGKILL)
                job.wait()
                self.own.end()
        return Ended(code, file.read_text(errors="replace"), run)


def count_processes(environ: Mapping[str, str], devices: Devices, host: Host) -> int:
    """How many processes a job has here; 1 where none can start, which every job then reports itself."""
    sources = Sources({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}, environ, {})
    try:
        return resolve_topology(sources, devices, host).processes_per_node
    except LaunchError:
        return 1


def environment_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without Slipway's settings: jobs of a selftest have only those that it gives them. Pure."""
    ours = {name for setting in SETTINGS for name in (setting.name, *setting.aliases)}
    return {name: value for name, value in environ.items() if name not in ours}


def judge_finding(finding: Finding) -> Finding:
    """A row of `slipway check` as one of ours. What it only warns of could not be tried."""
    level = {ERROR: BROKEN, WARNING: SKIPPED}.get(finding.level, finding.level)
    return replace(finding, level=level)


def judge_node(what: str, findings: tuple[Finding, ...]) -> Finding:
    """The quick rows of `slipway check` as one: its errors, else its warnings, which may explain what comes after."""
    for level in (ERROR, WARNING):
        if said := [f"{row.what}: {row.found}" for row in findings if row.level == level]:
            advice = "; ".join(dict.fromkeys(row.advice for row in findings if row.level == level and row.advice))
            if level == ERROR:
                return broken(what, "; ".join(said), exit_code(findings), advice)
            return Finding(what, OK, f"fit for a job; {'; '.join(said)}", advice)
    return ok(what, "fit for a job")


def judge_probe(what: str, ending: ProbeEnding) -> Finding:
    """What a module of `train` answered."""
    report = ending.report
    if report.get("skipped"):
        return skipped(what, str(report["skipped"]))
    if ending.status == 0 and report.get("right"):
        return ok(what, str(report["right"]))
    if ending.status is None:
        return broken(what, f"no result within {PATIENCE:.0f} s")
    said = report.get("wrong") or report.get("failed") or ending.said
    return broken(what, str(said or f"ended with {ending.status}"))


def failed_job(what: str, ended: Ended) -> Finding | None:
    """The row of a job that should have finished and did not; None where it did."""
    if ended.code == FINISHED:
        return None
    if ended.code is None:
        return broken(what, f"had not ended after {PATIENCE:.0f} s; {ended.last}")
    found = ended.first.evidence or ended.last
    return broken(what, f"ended with {ended.code}: {found}", ended.code, ended.first.advice)


class TrialResult(NamedTuple):
    """How a job with a fault has to end: its exit code, the kind of its cause, and words of what the rank that has it said."""

    code: int
    cause: CauseKind
    words: str = ""


# By the fault of train/workloads/selftest.py, on the device that raises it.
VERDICTS: Mapping[tuple[str, str], TrialResult] = {
    ("hang", ""): TrialResult(PEER, CauseKind.HANG),
    ("raise", ""): TrialResult(FAILED, CauseKind.SAID, "this rank raises an exception on purpose"),
    ("kill", ""): TrialResult(FAILED, CauseKind.KILLED),
    ("memory", "cuda"): TrialResult(FAILED, CauseKind.SAID, "OutOfMemoryError"),
    ("memory", "cpu"): TrialResult(FAILED, CauseKind.SAID, "can't allocate memory"),
}


def judge_fault(what: str, fault: str, device: str, rank: int, ended: Ended) -> Finding:
    """Whether a job whose rank `rank` had a fault ended as it has to."""
    wanted = VERDICTS.get((fault, device)) or VERDICTS[fault, ""]
    evidence, named, cause = ended.first.evidence or ended.last, ended.first.rank, ended.first.cause
    if (ended.code, named, cause) != (wanted.code, rank, wanted.cause) or wanted.words not in evidence:
        return broken(
            what,
            f"ended with {ended.code} and named rank {named}: {evidence}; it should have ended with {wanted.code} and "
            f"named rank {rank} ({wanted.words or wanted.cause})",
            ended.code,
        )
    return ok(what, f"exit code {wanted.code}, rank {rank}: {evidence}")


STACK = "most recent call first"  # in what Python's faulthandler prints of each thread


def judge_stacks(row: Finding, processes: int, recorded: int, ended: Ended) -> Finding:
    """The row of a hang, which also has to leave the stacks of all ranks; `recorded` counts files of NCCL's flight recorder."""
    silent = [rank for rank in range(processes) if STACK not in ended.log(rank)]
    if row.level != OK:
        return row
    if silent:
        return broken(row.what, f"rank {silent[0]} left no stacks: {row.found}")
    recorder = f", {counted(recorded, 'file')} of the flight recorder" if recorded else ""
    return ok(row.what, f"{row.found}; stacks of all ranks{recorder}")


WITHOUT_LEARNING = math.log(256)  # nats per byte of text, for a model that has learned nothing


def judge_training(what: str, ended: Ended) -> Finding:
    """Whether a training of a model of text, byte by byte, learned something; with its throughput."""
    if failure := failed_job(what, ended):
        return failure
    numbers = ended.metrics
    loss, speed = numbers.get("loss", math.nan), numbers.get("tokens_per_second", 0)
    if not loss < WITHOUT_LEARNING:  # neither is NaN
        return broken(what, f"a loss of {loss:.2f} nats per byte: an untrained model has {WITHOUT_LEARNING:.2f}")
    mfu = f", {numbers['mfu']:.1%} MFU" if "mfu" in numbers else ""
    return ok(what, f"loss {loss:.2f} of {WITHOUT_LEARNING:.2f}, {speed:,.0f} tokens/s{mfu}")


def judge_bandwidth(what: str, ended: Ended, report: Mapping[str, Any], links: str) -> Finding:
    """Whether all sums of all-reduce were right, and the best bus bandwidth beside what the links carry."""
    if failure := failed_job(what, ended):
        return failure
    rates = [row["bus_gb_per_second"] for row in report.get("results") or ()]
    if not rates or not report.get("complete"):
        return broken(what, "nothing was measured")
    beside = f" beside {links}" if links else ""
    return ok(
        what,
        f"{report.get('processes')} processes, {report.get('backend')}: sums right, bus bandwidth up to "
        f"{max(rates):.3g} GB/s{beside}",
    )


def judge_resume(
    what: str, whole: Ended, resumed: Ended, files: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Finding:
    """Whether two runs, of which one was resumed from the other's snapshot, end with the same; `files` have the checksums."""
    if failure := failed_job(what, whole) or failed_job(what, resumed):
        return failure
    one, other = files
    if not one or one != other:
        differ = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        return broken(what, f"not bit for bit as without an interruption: {', '.join(differ) or 'no snapshot'}")
    return ok(what, f"bit for bit as without an interruption ({', '.join(sorted(one))})")


def code_of_all(results: tuple[Finding, ...]) -> int:
    """77 where any failure is the node's, else 1 for the image's, else 78, and 0 without any."""
    codes = {result.code for result in results if result.level == BROKEN}
    return next((code for code in (UNHEALTHY, FAILED, CONFIGURATION) if code in codes), FINISHED)
