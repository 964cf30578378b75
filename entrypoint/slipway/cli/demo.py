"""`slipway demo`: the same training under torchrun and under Slipway. A rank is killed in each, then one hangs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from slipway.cli.selftest import StoppedError, private_folder
from slipway.launch.resolve.host import name_user
from slipway.launch.resolve.packages import require_packages
from slipway.protocol.errors import FAILED, LaunchError

SCRIPT = Path(__file__).parents[1] / "templates" / "demo.py"
KILLED_AT = 40  # steps
PATIENCE = 300.0  # s for which a job may show no step that is waited for
POLL = 0.02  # s
HANG_SECONDS = 5
TORCHRUN = (
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("--max-restarts", "3", "--monitor-interval", "0.1"),
)
# All attempts of torchrun share one TCPStore. Over gloo and NCCL a rank may then find the address of a process that has ended
# (https://github.com/pytorch/pytorch/issues/135712); with this variable each attempt has one of its own.
UNSHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
LAST = (
    "Under torchrun such a job prints nothing until the time-out of its collectives: 10 minutes with nccl, 30 with gloo.\n"
    "Your own script: slipway run --max-restarts 5 train.py (docs/own-script.md)"
)
# What the environment says of another job, or of how to launch one.
FOREIGN = (
    *("MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "SLIPWAY_", "TORCHELASTIC_"),
    *("PET_", "NPROC_", "NNODES", "NODE_RANK"),
)
SLIPWAY = ("-P", "-m", "slipway", "run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3")


class DoneStep(NamedTuple):
    """A step that a rank has done: when, by the clock that only advances, its number, and the process."""

    time: float
    step: int
    pid: int


class Recovery(NamedTuple):
    """What a launcher showed: seconds to the first step of all ranks, and from the kill to their next one; steps done again."""

    first: float
    next: float
    repeated: int


@click.command(epilog="\b\nExample: slipway demo")
def demo() -> None:
    """Show in about a minute what a killed rank costs under torchrun and under Slipway, and what is said of one that hangs.

    The same script, a small loop with slipway.resume in two processes on the CPU, runs under torchrun with its best options and
    then under Slipway. Rank 1 is killed in each. Then rank 1 hangs under Slipway, which names the line. All files are temporary.
    """
    from slipway.process.tree import OwnProcesses

    require_packages("demo", builtin=True)
    own = OwnProcesses()
    try:
        with private_folder(own, "slipway-demo-") as folder:
            click.echo(f"The same script under both launchers. Rank 1 is killed after step {KILLED_AT}.")
            sides = {
                "torchrun": recover("torchrun", TORCHRUN, UNSHARED, folder),
                "slipway": recover("slipway", SLIPWAY, {}, folder),
            }
            click.echo("\n".join(["", *table(sides), ""]))
            click.echo(f"Now rank 1 hangs under Slipway, with --hang-seconds {HANG_SECONDS}:")
            click.echo("\n".join(["", *hang(folder), "", LAST]))
            shutil.rmtree(folder)
    except StoppedError as stopped:
        click.echo(f"slipway: demo: {stopped}: stopped; no files or processes were left", err=True)
        sys.exit(stopped.code)


def recover(name: str, words: Sequence[str], variables: Mapping[str, str], folder: Path) -> Recovery:
    """Run the script under a launcher, and kill rank 1. Raises LaunchError (1) if the steps that are waited for do not come."""
    work = folder / name
    with job(words, variables, work) as (launcher, begun):
        ranks = until(launcher, work, all)
        first = max(moments[0].time for moments in ranks) - begun
        click.echo(f"  {name:<8}  first step after {first:.1f} s")
        ranks = until(launcher, work, lambda ranks: all(moments[-1].step >= KILLED_AT for moments in ranks))
        victims = {moments[0].pid for moments in ranks}
        os.kill(ranks[1][0].pid, signal.SIGKILL)
        killed = time.monotonic()
        ranks = until(launcher, work, lambda ranks: all(moments[-1].pid not in victims for moments in ranks))
    again = [next(moment for moment in moments if moment.pid not in victims) for moments in ranks]
    lost = max(moment.step for moments in ranks for moment in moments if moment.pid in victims) + 1 - again[1].step
    seconds = max(moment.time for moment in again) - killed
    click.echo(f"  {name:<8}  rank 1 killed; all ranks train again after {seconds:.1f} s")
    return Recovery(first, seconds, max(0, lost))


def hang(folder: Path) -> list[str]:
    """Let rank 1 hang under Slipway; returns what it says of that."""
    work = folder / "hang"
    words = (*SLIPWAY[:-1], "0", "--hang-seconds", str(HANG_SECONDS), "--on-hang", "end")
    with job(words, {"DEMO_HANG": "1"}, work) as (launcher, _):
        launcher.wait(PATIENCE)
    said = (work / "output").read_text(errors="replace").splitlines()
    return [line for line in said if line.startswith(("slipway: hang: ", "slipway:   exit code"))]


@contextmanager
def job(
    words: Sequence[str], variables: Mapping[str, str], work: Path
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A job in a folder of its own, which ends with the block; also the moment at which it was started."""
    work.mkdir()
    # A hang is named by a line of the user's own, and what is installed is not the user's.
    script = shutil.copy(SCRIPT, work)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept |= name_user(os.environ)  # torch asks for the name, and a container's user may have none
    environ = {**kept, "CUDA_VISIBLE_DEVICES": "", "DEMO_FOLDER": str(work), "TMPDIR": str(work), **variables}
    with (work / "output").open("wb") as output:
        begun = time.monotonic()
        launcher = subprocess.Popen(
            [sys.executable, *words, script],
            cwd=work,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield launcher, begun
    finally:
        launcher.terminate()
        launcher.wait()


def until(
    launcher: subprocess.Popen[bytes], work: Path, done: Callable[[Sequence[Sequence[DoneStep]]], bool]
) -> Sequence[Sequence[DoneStep]]:
    """Wait for steps of both ranks; returns all of each rank. Raises LaunchError (1) if they do not come."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and launcher.poll() is None:
        ranks = [read_steps(work / f"moments-{rank}") for rank in (0, 1)]
        if all(ranks) and done(ranks):
            return ranks
        time.sleep(POLL)
    said = (work / "output").read_text(errors="replace")
    raise LaunchError(f"The demo's job did not train as it should. It printed:\n{said}", FAILED)


def read_steps(file: Path) -> list[DoneStep]:
    """The steps of a rank so far; whole lines alone."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    rows = (line.split() for line in lines)
    return [DoneStep(float(moment), int(step), int(pid)) for moment, step, pid in rows]


def table(sides: Mapping[str, Recovery]) -> Iterator[str]:
    """Both launchers side by side."""
    yield f"{'':<36}" + "".join(f"{name:>12}" for name in sides)
    yield f"{'start to the first step':<36}" + "".join(f"{f'{side.first:.1f} s':>12}" for side in sides.values())
    yield f"{'kill of a rank to the next step':<36}" + "".join(f"{f'{side.next:.1f} s':>12}" for side in sides.values())
    yield f"{'steps that had to be repeated':<36}" + "".join(f"{side.repeated:>12}" for side in sides.values())
