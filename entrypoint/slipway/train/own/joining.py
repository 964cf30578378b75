"""How a user's process joins its job: under `slipway`, under another launcher such as torchrun, or alone."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slipway.options.paths import require_local
from slipway.protocol.files import (
    HEARTBEATS,
    HONOURS_STOP,
    NO_FILE,
    NODE,
    STOP_FILE,
    held_below,
    rank_file,
    touch_run_file,
    write_passing_json,
)
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.train.worker.context import Context, pass_over_stops
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import COLLECTIVE_TIMEOUT, Place, read_place, silent_stdout

SIGNALS = {signal.SIGTERM: Word.STOPPED, signal.SIGUSR1: Word.STOPPED, signal.SIGINT: Word.CANCELLED}
LATE = 30.0  # seconds for which a rank waits for the others in `slipway.resume` before it says so
FOLDER = "runs"  # of the runs that have no launcher, by the name of the script


def is_launched(environ: Mapping[str, str]) -> bool:
    """Whether the launcher of Slipway started this process."""
    return bool(environ.get("SLIPWAY_NODE_DIR"))


def is_under_torchrun(environ: Mapping[str, str]) -> bool:
    """Whether torchrun or the launcher of Slipway started this process: both take any exit code but 0 for a failure."""
    return bool(environ.get("TORCHELASTIC_RUN_ID")) or is_launched(environ)


def join(environ: Mapping[str, str], device: torch.device, keeps: bool) -> tuple[Context, Heartbeat]:
    """Return the context of this process and its heartbeat. `keeps`: there will be snapshots.

    Raises ConfigurationError where its process group is missing.
    """
    world_size = int(environ.get("WORLD_SIZE") or 1) if is_launched(environ) or environ.get("RANK") else 1
    if world_size > 1 and not dist.is_initialized():
        raise ConfigurationError(
            f"This job has {world_size} processes, which have not found each other. Call "
            "torch.distributed.init_process_group() before slipway.resume()."
        )
    side = None
    if dist.is_initialized() and dist.get_world_size() > 1:
        with silent_stdout(), told_if_late(dist.get_rank()):
            side = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    place = read_place(environ) if is_launched(environ) else place_without_launcher(environ)
    fenced = place.is_writer
    heartbeat = Heartbeat(
        rank_file(place.node_dir, HEARTBEATS, place.rank), (lambda: place.superseded) if fenced else lambda: False
    )
    context = Context(place, device, side, heartbeat)
    if is_launched(environ):
        touch_run_file(place.node_dir / HONOURS_STOP)
    else:
        make_node_folder(place, clears=context.is_local_leader)
        context.place = replace(place, shared=is_shared(context, environ))
        kept = f"snapshots on the disk only, in {place.run_dir}" if keeps else "no restarts"
        context.say(f"slipway.resume without its launcher: {kept}")
    context.beat(Phase.SETUP)
    return context, heartbeat


def make_node_folder(place: Place, *, clears: bool) -> None:
    """Make this node's folder where there is no launcher; `clears`: a stop flag of an earlier process is removed from it.

    Raises ConfigurationError where somebody has put a link in its place.
    """
    place.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with held_below(place.run_dir, [place.node_dir.name], make=True) as folder:
            if clears:
                (folder / STOP_FILE).unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise ConfigurationError(
            f"{error.filename} {error.strerror}. Remove it, or set SLIPWAY_RUN_DIR to a folder of yours."
        ) from None


@contextmanager
def told_if_late(rank: int, seconds: float = LATE, say: Callable[[str], object] = sys.stderr.write) -> Iterator[None]:
    """`say` which rank waits for others in the block, once it has done so for some seconds."""
    done = threading.Event()

    def tell() -> None:
        if not done.wait(seconds):
            say(
                f"slipway: rank {rank} has called slipway.resume and waits for ranks that have not. Call it on all ranks, at the "
                "same place in the script.\n"
            )

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def place_without_launcher(environ: Mapping[str, str]) -> Place:
    """Return the place of a process that torchrun, another launcher or a user started."""
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "script"
    for name in ("SLIPWAY_RUN_DIR", "SLIPWAY_RESUME"):
        require_local(environ.get(name, ""), f"{name}={environ.get(name)}")
    run_dir = Path(environ.get("SLIPWAY_RUN_DIR") or Path(FOLDER, script)).absolute()
    node_rank = int(environ.get("GROUP_RANK") or 0)
    several = dist.is_initialized()
    return Place(
        rank=dist.get_rank() if several else 0,
        local_rank=int(environ.get("LOCAL_RANK") or 0) if several else 0,
        world_size=dist.get_world_size() if several else 1,
        node_rank=node_rank,
        run_dir=run_dir,
        node_dir=run_dir / f"{NODE}{node_rank}",
        backend=dist.get_backend() if several else "gloo",
        device="cuda" if torch.cuda.is_available() else "cpu",
        resume=environ.get("SLIPWAY_RESUME") or "auto",
        bar=False,
        shared=True,
    )


def is_shared(context: Context, environ: Mapping[str, str]) -> bool:
    """Whether all nodes see one run directory; a file that rank 0 makes shows that."""
    world_size = context.place.world_size
    if int(environ.get("LOCAL_WORLD_SIZE") or world_size) == world_size:
        return True
    probe = context.place.run_dir / f".seen-{context.share_text(secrets.token_hex(8))}"
    if context.place.rank == 0:
        probe.touch()
    context.wait_for_all()
    [missing] = context.total(not probe.exists())
    if context.place.rank == 0:
        probe.unlink()
    return not missing


def handle_stops(context: Context, environ: Mapping[str, str], passed_over: set[int]) -> dict[signal.Signals, Any]:
    """Turn the signals that stop a job into the stop flag. Returns what was replaced.

    The launcher raises the flag itself, and signals have no effect but that they are noted in `passed_over`. Elsewhere the first
    signal raises it, and a second one has its usual effect. Handlers of the user's own stay.
    """
    if is_launched(environ):
        return pass_over_stops(passed_over.add)
    if threading.current_thread() is not threading.main_thread():
        return {}
    usual = {number: signal.getsignal(number) for number in SIGNALS}
    replaced = {
        number: handler for number, handler in usual.items() if handler in (signal.SIG_DFL, signal.default_int_handler)
    }
    process = os.getpid()

    def raise_flag(number: int, frame: object) -> None:
        for each, handler in replaced.items():
            signal.signal(each, handler)
        if os.getpid() != process:  # a child of this process, such as a worker of a data loader
            os.kill(os.getpid(), number)
            return
        with suppress(OSError):
            flag = {"outcome": SIGNALS[signal.Signals(number)], "signal": signal.Signals(number).name}
            write_passing_json(context.place.node_dir / STOP_FILE, flag)

    for number in replaced:
        signal.signal(number, raise_flag)
    return replaced
