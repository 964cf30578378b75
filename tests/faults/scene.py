"""Where a fault happens: a small job in a folder of its own, what harms it from outside, and what a resume makes of it."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launchers import Launcher, start_launcher
from stand_in_rules import SITE
from waiting import wait_until

from slipway.protocol.snapshots import list_snapshots, snapshot_name

STEPS = 40
ENOUGH = 150.0  # s, in which every job ends on any machine; far less than a collective of torch's waits
COURSE = (
    "--batch-size", "8", "--accumulate", "2", "--steps", str(STEPS),
    "--save-every", "10", "--eval-every", "30", "--log-every", "1",
)  # fmt: skip
JOB = ("linear", "--dataset-size", "256", *COURSE)
INSIDE = Path(__file__).parent / "inside"  # its sitecustomize.py does harm in the worker


@dataclass
class Scene:
    """A folder with one run in it, and everything that was started there."""

    folder: Path
    stack: ExitStack
    killed: Path = Path()  # a run that died, to be copied
    run: Path = Path()
    harmed: float = 0.0  # when the harm was done, monotonic seconds
    resumed: Any = None  # the job that goes on, where the fault itself is found by it
    afterwards: list[Callable[[], object]] = field(default_factory=list)  # what makes a resume possible

    def __post_init__(self) -> None:
        self.folder.chmod(0o777)  # a container's user writes here, too
        self.run, self.go = self.folder / "run", self.folder / "go"

    def start(self, *words: str, before: tuple[str, ...] = (), stand_ins: bool = False, **fault: object) -> Launcher:
        """Start the job with two processes; `words` are the launcher's, or change the job; `fault`: see sitecustomize.

        With `stand_ins` the agent and the workers are those without torch.
        """
        # Workers that are forked read no sitecustomize.py of their own.
        harm = {"FAULTS": faults(str(self.run), str(self.go), fault), "PYTHONPATH": str(INSIDE), "SLIPWAY_WARM": "0"}
        given = ("run", "--run-dir", str(self.run), "--max-restarts", "0", *JOB, *words)
        more = {"PYTHONPATH": str(SITE), "STAND_INS": "1"} if stand_ins else harm if fault else {}
        launcher = start_launcher(self.folder, *given, before=before, NPROC_PER_NODE="2", **more)
        self.stack.callback(self.end, launcher)
        return launcher

    def held(self, *words: str, beat: tuple[str, int, int] = ("train", 25, 3), **more: Any) -> Launcher:
        """Start the job and wait until rank 0 waits for `release`; by default in the middle of step 26."""
        job = self.start(*words, do="hold", **({"beat": beat} | more))
        job.wait_for("fault: hold")
        return job

    def release(self) -> None:
        self.go.touch()

    def harm(self) -> None:
        """From now on the time counts."""
        self.harmed = time.monotonic()

    def pid(self, who: str) -> int:
        """The process id of `rank 0`, `rank 1` or `torchrun`."""
        rank = who.removeprefix("rank ") if who.startswith("rank") else "0"
        pid = int(json.loads((self.run / f"node-0/heartbeat/rank-{rank}.json").read_text())["pid"])
        if who != "torchrun":
            return pid
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    @property
    def workers(self) -> list[int]:
        """The process ids of all ranks that have said where they stand."""
        beats = self.run.glob("node-0/heartbeat/rank-*.json")
        return [int(json.loads(beat.read_text())["pid"]) for beat in beats]

    def wait_for_file(self, path: str) -> None:
        """Wait until there is a file in the run directory."""
        wait_until((self.run / path).exists, path)

    def resume(self, intact: int | None = None) -> Any:
        """Resume the run, unless a job has resumed it already.

        `intact`: the step of the newest snapshot. It is verified, and stand-ins resume from it, which read only its name.
        """
        for act in self.afterwards:
            act()
        if intact is not None:
            end_state(self.run, intact)
        return self.resumed or self.start("--resume", "auto", stand_ins=intact is not None)

    def status(self) -> str:
        """How `slipway status` says that the run ended."""
        told = start_launcher(self.folder, "status", str(self.run))
        assert told.end() == 0, told.text
        return next(line.strip() for line in told.lines if line.strip().startswith("ended"))

    def result(self) -> dict[str, str]:
        """The sha256 of each file in the last snapshot; each step must be in the metrics once."""
        evaluations(self.run)
        return end_state(self.run)

    @staticmethod
    def end(launcher: Launcher) -> None:
        """Leave nothing behind."""
        if launcher.process.poll() is None:
            os.killpg(launcher.process.pid, signal.SIGKILL)
        launcher.end()


def faults(run: str, go: str, *wanted: dict[str, Any]) -> str:
    """Faults as sitecustomize takes them. What happens after step 25 finds the snapshot of step 20 complete."""
    saved = {"saved": f"{run}/snapshots/{snapshot_name(20)}"}
    placed = [saved if fault.get("beat", ())[:2] == ("train", 25) else {} for fault in wanted]
    return json.dumps([{"rank": 0, "go": go, **more, **fault} for more, fault in zip(placed, wanted, strict=True)])


def end_state(run: Path, steps: int = STEPS) -> dict[str, str]:
    """The sha256 of each file in the last snapshot of a run that ended after so many steps, which must verify."""
    from slipway.train.snapshots.snapshot import verify_snapshot  # who only reads the table needs no torch

    newest = list_snapshots(run / "snapshots")[0]
    assert newest.name == snapshot_name(steps)
    verify_snapshot(newest)
    files = json.loads((newest / "manifest.json").read_text())["files"]
    return {name: file["sha256"] for name, file in files.items()}


def evaluations(run: Path, since: int = 0) -> list[float]:
    """The losses of both evaluations; each step after `since` must be in the metrics once, and no other."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "lr" in line] == list(range(since + 1, STEPS + 1))
    assert [line["step"] for line in lines if "val_loss" in line] == [30, 40]
    return [line["val_loss"] for line in lines if "val_loss" in line]


def verdict(closing: list[str]) -> str:
    """The line of what a launcher said that shows how it ended."""
    told = [line for line in closing if not line.startswith((" ", "results are in ", "the newest snapshot is "))]
    return told[-1] if told else ""


TRACEBACK = re.compile(r"^(\[[\d:]+\] )?(Traceback|\s+File \"|[\w.]+(Error|Exception)\b)")


def is_traceback(line: str) -> bool:
    """Whether a line of the output belongs to a traceback."""
    return TRACEBACK.match(line) is not None
