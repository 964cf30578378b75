"""Where the jobs of a selftest run, and how each of them ended."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.launch.health.probe_process import ProbeEnding, start_probe, wait_for_probe
from slipway.launch.own_processes import OwnProcesses
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.settings import SETTINGS, Sources
from slipway.launch.resolve.topology import resolve_topology
from slipway.protocol.errors import LaunchError
from slipway.protocol.files import LOGS, METRICS_FILE, OUTCOME_FILE, node_folder, rank_log, read_json, read_run_text

PATIENCE = (
    300.0  # seconds that one job or probe may take; on eight GPUs or two idle cores each takes less than half a minute
)
# On this node alone, whatever the environment says of others, and once.
ALONE = ("--standalone", "--nproc-per-node", "auto", "--max-restarts", "0")


@dataclass(frozen=True)
class Ended:
    """A job that has ended: its exit code (None: it had to be killed), all that it printed, its run directory."""

    code: int | None
    said: str
    run: Path

    @property
    def first(self) -> Mapping[str, Any]:
        """What its verdict names as the first cause; empty where there is none."""
        first = read_json(self.run / OUTCOME_FILE).get("first")
        return first if isinstance(first, dict) else {}

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each number in metrics.jsonl."""
        numbers: dict[str, float] = {}
        with suppress(OSError, ValueError):
            for line in read_run_text(self.run / METRICS_FILE).splitlines():
                numbers |= json.loads(line)
        return numbers

    def log(self, rank: int) -> str:
        """What a rank printed."""
        with suppress(OSError):
            return read_run_text(node_folder(self.run, 0) / LOGS / rank_log(rank))
        return ""


@dataclass(frozen=True)
class Ground:
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
        return wait_for_probe(start_probe(module, word, environ), time.monotonic() + PATIENCE)

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
    """How many processes a job has here; 1 where none can start, which every job then says itself."""
    sources = Sources({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}, environ, {})
    try:
        return resolve_topology(sources, devices, host).processes_per_node
    except LaunchError:
        return 1


def environment_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what it says of Slipway's settings: jobs of a selftest have those that it gives them. Pure."""
    ours = {name for setting in SETTINGS for name in (setting.name, *setting.aliases)}
    return {name: value for name, value in environ.items() if name not in ours}
