"""The faults, as data: how each is provoked, and what it must end with."""

from collections.abc import Iterable
from dataclasses import dataclass
from signal import SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1
from typing import Any

import contained
import losses
import pytest

# pytest does not export the type of its parameters.
from _pytest.mark.structures import ParameterSet
from damages import delete, empty, empty_all, flip, found, overwrite, truncate, turn_times_round
from harms import (
    Harm,
    asked,
    becomes_read_only,
    clock_set_back,
    full,
    inside,
    killed_then_stopped,
    nowhere_else,
    out_of_memory,
    read_only,
    run_directory_goes,
    second_start,
    sent,
    slipway_stop,
    stopped,
)
from nodes import TRAINING


@dataclass(frozen=True)
class Resume:
    """What going on yields: the step of the snapshot (None: none), the exit code, and what it says.

    `exact`: it ends with the files that an uninterrupted run ends with, bit for bit, and every step is in the metrics once.
    `intact`: the snapshot is verified, and the launcher resumes with stand-ins for its workers. The other rows show that real
    workers resume exactly from an intact snapshot.
    """

    step: int | None = None
    code: int = 0
    says: str = ""
    exact: bool = True
    intact: bool = False

    @property
    def text(self) -> str:
        if self.code:
            return f"refused with {self.code}: {self.says}"
        begin = "from the start" if self.step is None else f"from step {self.step}"
        return f"{'finished already' if self.says == DONE else begin}{', intact' if self.intact else ', exact' if self.exact else ''}"


@dataclass(frozen=True)
class Fault:
    """A fault, the exit code, a pattern of the closing line, and what a resume yields.

    `bound`: seconds from the harm to the end on a loaded machine, shown beside what was measured and not judged.

    A negative code is a signal that ended the launcher itself; then `slipway status` tells.
    """

    name: str
    provoke: Harm
    code: int
    line: str
    bound: float
    resume: Resume
    needs: tuple[str, ...] = ()  # of the machine, by their names in tests/needs.py
    tier: str = ""  # the mark of its test: "core", "pull", or none for the nightly tier


@dataclass(frozen=True)
class Parting:
    """A fault of a job with several nodes: the exit code of each, with a pattern of its closing line.

    `resume`: what the last attempt goes on from; where no node finished, what starting all of them again does.
    """

    name: str
    provoke: losses.Loss
    ends: tuple[tuple[int, str], ...]
    bound: float
    resume: Resume
    needs: tuple[str, ...] = ("engine",)
    tier: str = ""  # the mark of its test: "core", "pull", or none for the nightly tier


def rows(faults: Iterable[Fault | Parting]) -> list[ParameterSet]:
    """The faults as parameters of a test, with their marks."""
    return [
        pytest.param(
            fault,
            id=fault.name,
            marks=[pytest.mark.needs(*fault.needs), *([getattr(pytest.mark, fault.tier)] if fault.tier else [])],
        )
        for fault in faults
    ]


DONE = "is finished; there is nothing to resume"
FINISHED = Resume(says=DONE)
FROM_20 = Resume(20)
INTACT_20 = Resume(20, intact=True)
SOON, STOP, HANG = 30, 30, 60  # s, on a machine under load; the hang's own 6 s may pass several times

# Where rank 0 is held, and the step that the snapshot of a stop is of; None: before the first step there is none.
HELD: dict[str, tuple[Any, int | None]] = {
    "setup": ({"beat": ("setup", 0, 1)}, None),
    "load": ({"beat": ("load", 0, 1)}, None),
    "first step": ({"beat": ("first-step", 0, 2)}, None),
    "training": ({}, 26),
    "waiting for data": ({"batch": (52,)}, 25),
    "evaluation": ({"beat": ("evaluate", 30, 1)}, 30),
    "saving": ({"beat": ("save", 20, 1)}, 21),
}
AT_ONCE = "stopped by the system: .*SIGTERM came before the first step: there was nothing to save"


def stops() -> list[Fault]:
    rows = []
    for phase, (where, step) in HELD.items():
        data, begun = "batch" in where, step is not None
        words = ("--workers", "1") if data else ()
        # The stop ends the waiting for data, and a job without a step, long before a second one.
        for times in (1, 2) if begun and not data else (1,):
            provoke = stopped(SIGTERM, times, *words, release=begun, **where)
            line = f"stopped by the system: .*stopped at step {step} of 40, snapshot saved" if begun else AT_ONCE
            tier = "core" if phase == "saving" and times == 1 else ""
            rows.append(Fault(f"SIGTERM ×{times}, {phase}", provoke, 75, line, STOP, Resume(step), tier=tier))
    return rows


LOST = "the workload failed: .*, rank {}: {}"
BEHIND = "workers hung: .*, rank 1: hang: behind: rank 1 {}"
WRITING = r"snapshots/\.step-00000020\.writing"


def dies(moment: str, event: str, pattern: str, number: int, step: int, tier: str = "") -> Fault:
    """Rank 0 is killed in the middle of the second snapshot, which replaces the first."""
    provoke = inside("kill", "--keep", "1", rank=0, event=(event, pattern, number))
    return Fault(f"SIGKILL {moment}", provoke, 1, LOST.format(0, "SIGKILL"), SOON, Resume(step), tier=tier)


FAULTS = [
    Fault("exception in a worker", inside("fail"), 1, LOST.format(1, "RuntimeError: boom"), SOON, FROM_20, tier="core"),
    Fault("a worker leaves with 3", inside("leave"), 1, LOST.format(1, "exit code 3"), SOON, FROM_20),
    Fault("a worker crashes", inside("crash"), 1, LOST.format(1, "SIGSEGV"), SOON, FROM_20),
    Fault("exception before the first step", inside("fail", "--max-restarts", "3", beat=("load", 0, 1)), 1, LOST.format(1, "RuntimeError: boom"), SOON, Resume(), tier="pull"),
    Fault("SIGKILL of rank 0", sent(SIGKILL, "rank 0"), 1, LOST.format(0, "SIGKILL"), SOON, FROM_20),
    Fault("SIGKILL of rank 1", sent(SIGKILL, "rank 1"), 1, LOST.format(1, "SIGKILL"), SOON, FROM_20),
    Fault("SIGKILL of torchrun", sent(SIGKILL, "torchrun", release=False), 1, "torchrun was ended by SIGKILL", SOON, INTACT_20, tier="pull"),
    Fault("SIGUSR1 to torchrun", sent(SIGUSR1, "torchrun"), 0, "^finished on 1 node", SOON, FINISHED),
    Fault("SIGKILL of the launcher", sent(SIGKILL, "launcher", release=False), -9, "without a verdict: its launcher was killed", SOON, FROM_20, tier="pull"),
    Fault("SIGKILL of rank 1, restarts allowed", sent(SIGKILL, "rank 1", "--max-restarts", "3"), 0, "^finished on 1 node after 2 attempts", SOON, FINISHED, tier="core"),
    Fault("exception in every attempt", inside("fail", "--max-restarts", "9", beat=("train", 5, 1)), 93, "no progress: .*3 attempts left no snapshot at all", HANG, Resume(), tier="pull"),
    Fault("SIGSTOP of rank 1", sent(SIGSTOP, "rank 1", "--hang-seconds", "6"), 76, BEHIND.format(".*SIGSTOP"), HANG, FROM_20, tier="pull"),
    Fault("rank 1 spins", inside("spin", "--hang-seconds", "6", beat=("train", 25, 2)), 76, BEHIND.format(""), HANG, INTACT_20, tier="core"),
    Fault("rank 1's data never come", inside("spin", "--hang-seconds", "6", "--workers", "1", batch=(52,)), 76, BEHIND.format(r"\(.*data"), HANG, FROM_20),
    *stops(),
    Fault("SIGTERM in the last moment", stopped(SIGTERM, 1, beat=("finish", 40, 1)), 0, "^finished on 1 node", STOP, FINISHED),
    Fault("SIGKILL of rank 1, then SIGTERM", killed_then_stopped, 75, r"stopped by the system: .*SIGTERM, while rank 1 was killed \(SIGKILL\); the snapshot of step 20 is intact", STOP, INTACT_20, tier="core"),
    Fault("SIGTERM, not heard in the grace", stopped(SIGTERM, 1, "--grace-seconds", "3", release=False), 76, "SIGTERM: ranks 0, 1 had not ended when the grace period was over", STOP, FROM_20, tier="pull"),
    Fault("SIGUSR1", stopped(SIGUSR1, 1), 75, "stopped by the system: .*stopped at step 26", STOP, Resume(26), tier="pull"),
    Fault("Ctrl-C", stopped(SIGINT, 1), 79, "cancelled by the user: .*cancelled at step 26", STOP, Resume(26), tier="pull"),
    Fault("Ctrl-C, and again", stopped(SIGINT, 2, release=False), 79, "killed at the second Ctrl-C", STOP, INTACT_20, tier="pull"),
    Fault("slipway stop", asked(slipway_stop), 79, "cancelled by the user: .*cancelled at step 26", STOP, Resume(26)),
    Fault("a stop file", asked(lambda scene: (scene.run / "stop").touch()), 75, "stopped by the system: .*stopped at step 26", STOP, Resume(26)),
    Fault("memory limit", out_of_memory, 1, LOST.format(1, "out of memory"), HANG, FROM_20, needs=("memory cgroup",)),
    Fault("disk full at a snapshot", full(("save", 20, 1)), 77, "a node is unhealthy: .*No space left on device", SOON, Resume(10, intact=True), needs=("mounts",), tier="pull"),
    Fault("disk full at logs and metrics", full(("train", 25, 3)), 77, "a node is unhealthy: .*No space left on device", SOON, FROM_20, needs=("mounts",)),
    Fault("quota exceeded at a snapshot", inside("exceed_quota", rank=0, event=("open", f"{WRITING}/model", 1)), 77, "a node is unhealthy: .*quota exceeded", SOON, Resume(10), tier="core"),
    Fault("read-only run directory", read_only, 77, "The run directory cannot be made: .*Read-only file system", SOON, Resume(), needs=("mounts",), tier="pull"),
    Fault("disk becomes read-only", becomes_read_only, 77, "a node is unhealthy: .*Read-only file system", SOON, Resume(20, exact=False), needs=("loop devices",)),  # what the metrics had not brought to the disk is lost with it
    Fault("temporary files and caches full", nowhere_else, 0, "^finished on 1 node", SOON, FINISHED, needs=("mounts",)),
    Fault("run directory renamed, then a rank dies", run_directory_goes(deleted=False), 77, "a node is unhealthy: .*was deleted or renamed while the job ran", SOON, INTACT_20, tier="core"),
    Fault("run directory deleted, then a rank dies", run_directory_goes(deleted=True), 77, "a node is unhealthy: .*was deleted or renamed while the job ran", SOON, Resume()),
    dies("before a snapshot's folder", "os.mkdir", WRITING, 1, 10),
    dies("before its model", "open", f"{WRITING}/model", 1, 10),
    dies("before its manifest", "open", f"{WRITING}/manifest", 1, 10, tier="pull"),
    dies("before its name", "os.rename", WRITING, 1, 10),
    dies("before its name is durable", "open", "/snapshots$", 2, 20),
    dies("before the older one goes", "os.rename", "step-00000010$", 1, 20, tier="pull"),
    dies("while the older one goes", "os.remove", "^model.safetensors$", 1, 20),
    Fault("truncated snapshot", found(truncate("model.safetensors")), 0, "^finished", SOON, Resume(10, says="step-00000020/model.safetensors has"), tier="core"),
    Fault("bit-flipped snapshot", found(flip("optimizer.safetensors")), 0, "^finished", SOON, Resume(10, says="step-00000020/optimizer.safetensors has")),
    Fault("file of a snapshot deleted", found(delete("ranks.safetensors")), 0, "^finished", SOON, Resume(10, says="step-00000020/ranks.safetensors is missing")),
    Fault("file of a snapshot empty", found(empty("state.json")), 0, "^finished", SOON, Resume(10, says="step-00000020/state.json has 0 bytes")),
    Fault("garbled manifest", found(flip("manifest.json")), 0, "^finished", SOON, Resume(10, says="step-00000020")),
    Fault("all snapshots damaged", found(empty_all), 93, "no progress: .*holds no snapshot that can be loaded", SOON, Resume(code=93, says="model.safetensors has 0 bytes"), tier="pull"),
    Fault("snapshot of a newer version", found(overwrite("manifest.json", format=9)), 78, "has format 9", SOON, Resume(code=78, says="has format 9")),
    Fault("file times lie", found(turn_times_round), 0, "^finished", SOON, FROM_20),
    Fault("clock set back by a day", clock_set_back, 0, "^finished on 1 node", SOON, FINISHED),
    Fault("infinite loss on rank 1, 2 steps", inside("infect", times=4), 0, "^finished on 1 node", SOON, Resume(says=DONE, exact=False)),
    Fault("infinite loss on rank 1, for good", inside("infect", "--nonfinite-budget", "2", times=1000), 93, "no progress: .*not finite in 3 steps in a row", SOON, INTACT_20, tier="core"),
    Fault("second start", second_start, 78, "is in use by the launcher with process id", SOON, FINISHED, tier="pull"),
    Fault("container killed and restarted (engine)", contained.killed_and_restarted, 0, "^finished on 1 node", HANG, FINISHED, needs=("engine", "other users")),
    Fault("docker stop, saving takes 40 s (engine)", contained.docker_stop, 75, "stopped by the system: .*stopped at step 26 of 40, snapshot saved", HANG, Resume(26), needs=("engine",), tier="core"),
    Fault("container's memory limit (engine)", contained.out_of_memory, 1, LOST.format(1, "out of memory"), HANG, FROM_20, needs=("engine",)),
]  # fmt: skip


def finish(attempts: int, nodes: int = 2) -> tuple[tuple[int, str], ...]:
    """All nodes finish in this attempt."""
    after = f" after {attempts} attempts" if attempts > 1 else ""
    return ((0, f"^finished on {nodes} node{'s'[: nodes - 1]}{after}: "),) * nodes


# s, on a machine under load: to a verdict; to the end of another attempt; and of two waits of 60 s, one after the other
CUT, LOSE, GO_ON, TWICE_IN_VAIN = 20, 60, 120, 180
FINISH = finish(2)
FIRST, SAVE, EVALUATE = losses.FIRST_STEP, losses.SAVING, losses.EVALUATION

PARTINGS = [
    Parting("node 1 killed", losses.killed(1, TRAINING), FINISH, GO_ON, FROM_20),
    Parting("node 0 killed", losses.killed(0, TRAINING), FINISH, GO_ON, FROM_20, tier="core"),
    Parting("node 1 killed waiting, first step, saving", losses.killed(1, FIRST, SAVE, waiting=True), finish(3), GO_ON, FROM_20),
    Parting("node 0 killed waiting, saving, evaluation", losses.killed(0, SAVE, EVALUATE, waiting=True), finish(3), GO_ON, Resume(30)),
    Parting("node 1 frozen for a while", losses.frozen(1), FINISH, GO_ON, FROM_20),
    Parting("node 0 frozen for a while", losses.frozen(0), FINISH, GO_ON, FROM_20),
    Parting("node 1 frozen, replaced, comes back", losses.frozen_and_replaced(1), (FINISH[0], (78, "RANK=1 is taken by"), FINISH[1]), GO_ON, FROM_20, tier="pull"),
    Parting("node 0 frozen, replaced, comes back", losses.frozen_and_replaced(0), ((76, "gave up after 20 s"), *FINISH), GO_ON, FROM_20),
    Parting("node 1 frozen, comes back too late", losses.frozen_too_long, ((76, "missing node rank 1"), (76, "missing node rank 0")), TWICE_IN_VAIN, FROM_20),
    Parting("node 1 cut off, no restarts left", losses.cut_off, ((76, "^a node was lost: node 1 .*no heartbeat for 4 s"), (76, "a node was lost: .*node 0 .*no heartbeat for 4 s")), CUT, FROM_20),
    Parting("node 0 cut off for a while", losses.cut_off_and_reconnected, FINISH, GO_ON, FROM_20),
    Parting("clocks an hour apart, one jumps", losses.clocks_apart, finish(1), GO_ON, Resume()),
    Parting("node 0's run directory deleted, then its rank dies", losses.run_directory_deleted, FINISH, GO_ON, FROM_20),
    Parting("IPv6 alone", losses.ipv6_alone, finish(1), GO_ON, Resume(), needs=("engine", "IPv6")),
    Parting("docker stop of node 1", losses.stopped, ((75, "^stopped by the system: .*stopped at step 26 of 40, snapshot saved"),) * 2, LOSE, Resume(26)),
    Parting("WORLD_SIZE=1:2: lost, joined, stopped", losses.elastic, (*finish(4, 1), (75, "^stopped by the system: .*stopped at step 2[67]")), GO_ON, Resume(26, exact=False)),
]  # fmt: skip
