"""What goes wrong, as functions that return what does it: each starts a job in a scene, harms it, and returns the job."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any

from launchers import Launcher, start_launcher
from limits import failing_disk, small_disk, small_memory
from scene import Scene
from waiting import wait_until

from slipway.launch.attempt.stops import SAME_STOP

Harm = Callable[[Scene], Any]


def inside(do: str, *words: str, rank: int = 1, before: tuple[str, ...] = (), **when: Any) -> Harm:
    """A worker does it itself; by default after step 25."""

    def provoke(scene: Scene) -> Launcher:
        moment = {} if when.keys() & {"beat", "event", "batch"} else {"beat": ("train", 25, 1)}
        job = scene.start(*words, do=do, rank=rank, before=before, **moment, **when)
        job.wait_for(f"fault: {do}")
        scene.harm()
        return job

    return provoke


def sent(number: Signals, to: str, *words: str, release: bool = True) -> Harm:
    """A signal from outside to `rank 0`, `rank 1`, `torchrun` or the `launcher`, in the middle of step 26."""

    def provoke(scene: Scene) -> Launcher:
        job = scene.held(*words)
        scene.harm()
        os.kill(job.process.pid if to == "launcher" else scene.pid(to), number)
        if release:
            scene.release()
        return job

    return provoke


def stopped(number: Signals, times: int, *words: str, release: bool = True, **where: Any) -> Harm:
    """Signals to the launcher while rank 0 is held somewhere, further apart than those that count as one."""

    def provoke(scene: Scene) -> Launcher:
        job = scene.held(*words, **where)
        scene.harm()
        job.signal(number)
        scene.wait_for_file("node-0/stop")
        for _ in range(times - 1):
            first = time.monotonic()
            wait_until(lambda since=first: time.monotonic() - since > SAME_STOP, "a signal to be a second one")
            job.signal(number)
            job.wait_for("stopping already")
        if release:
            scene.release()
        return job

    return provoke


def killed_then_stopped(scene: Scene) -> Launcher:
    """SIGKILL to rank 1 and a moment later SIGTERM to the launcher, in the middle of step 26: it finds both when it looks."""
    job = scene.held()
    scene.harm()
    job.signal(SIGSTOP)
    os.kill(scene.pid("rank 1"), SIGKILL)
    job.signal(SIGTERM)
    job.signal(SIGCONT)
    scene.release()
    return job


def run_directory_goes(*, deleted: bool) -> Harm:
    """The run directory is renamed or deleted in the middle of step 26, and then a rank dies; restarts are allowed."""

    def provoke(scene: Scene) -> Launcher:
        job = scene.held("--max-restarts", "3")
        scene.harm()
        rank, elsewhere = scene.pid("rank 1"), scene.folder / "elsewhere"
        scene.run.rename(elsewhere)
        if deleted:
            shutil.rmtree(elsewhere)
        else:
            scene.afterwards.append(lambda: elsewhere.rename(scene.run))
        os.kill(rank, SIGKILL)
        return job

    return provoke


def asked(how: Callable[[Scene], object]) -> Harm:
    """A stop without a signal, in the middle of step 26."""

    def provoke(scene: Scene) -> Launcher:
        job = scene.held()
        scene.harm()
        how(scene)
        scene.wait_for_file("node-0/stop")
        scene.release()
        return job

    return provoke


def slipway_stop(scene: Scene) -> None:
    """`slipway stop`, which waits for the end; we do not."""
    scene.stack.callback(scene.end, start_launcher(scene.folder, "stop", str(scene.run)))


def out_of_memory(scene: Scene) -> Launcher:
    """A rank eats all memory of a cgroup of 1 GiB."""
    return inside("eat", before=scene.stack.enter_context(small_memory(1 << 30)))(scene)


def full(beat: tuple[str, int, int], *words: str) -> Harm:
    """The run directory's disk is filled to the last byte at this heartbeat."""

    def provoke(scene: Scene) -> Launcher:
        disk = scene.stack.enter_context(small_disk(scene.folder / "disk", "4m"))
        scene.run, filler = disk / "run", disk / "filler"
        job = scene.held(*words, beat=beat)
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 512):
                pass
        scene.harm()
        scene.release()
        scene.afterwards.append(filler.unlink)
        return job

    return provoke


def becomes_read_only(scene: Scene) -> Launcher:
    """The file system of the run directory gives up, as after an error of its disk, in the middle of step 26."""
    disk = scene.stack.enter_context(failing_disk(scene.folder / "disk"))
    scene.run = disk.folder / "run"
    job = scene.held()
    scene.harm()
    disk.fail()
    scene.release()
    scene.afterwards.append(disk.mend)
    return job


def nowhere_else(scene: Scene) -> Launcher:
    """Temporary files and caches lie on a file system that is full."""
    disk = scene.stack.enter_context(small_disk(scene.folder / "disk", "4k"))
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 512):
            pass
    names = ("TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    job = scene.held(before=("env", *(f"{name}={disk}" for name in names)))
    scene.harm()
    scene.release()
    return job


def read_only(scene: Scene) -> Launcher:
    """The run directory lies on a file system that is mounted read-only."""
    disk = scene.stack.enter_context(small_disk(scene.folder / "disk", "4m"))
    scene.run = disk / "run"
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    scene.afterwards.append(lambda: subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True))
    scene.harm()
    return scene.start()


def clock_set_back(scene: Scene) -> Launcher:
    """By a day, for the launcher and all workers, in the middle of training."""
    job = scene.start(do="set_clock", ahead=(0, -86400))
    job.wait_for("step 5/")
    scene.harm()
    scene.release()
    return job


def second_start(scene: Scene) -> Launcher:
    """Another launcher is started on the same run directory while the first is alive; that one must not notice."""
    first = scene.held()
    scene.harm()

    def let_it_finish() -> None:
        scene.release()
        assert first.end() == 0, first.text

    scene.afterwards.append(let_it_finish)
    return scene.start("--resume", "auto")
