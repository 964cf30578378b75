"""How a user's process joins its job, and says why it cannot go on: under `slipway`, torchrun or another launcher, or alone."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slipway.options.paths import require_local
from slipway.process.folder_lock import FolderLock, Holder, is_alive, is_here, name_of, read_holder, this_process
from slipway.protocol import files
from slipway.protocol.errors import CODE_OF
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.protocol.redact import redact_words
from slipway.train.user.declared import differing_options
from slipway.train.worker.context import Context, pass_over_stops, report_failure
from slipway.train.worker.launcher import Heartbeat, WorkerOutcome, outcome_word
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
    if not is_launched(environ):
        make_node_folder(place)
    heartbeat = Heartbeat(
        files.rank_file(place.node_dir, files.HEARTBEATS, place.rank),
        lambda: context.place.is_writer and context.place.superseded,
    )
    context = Context(place, device, side, heartbeat)
    if is_launched(environ):
        files.touch_run_file(place.node_dir / files.HONOURS_STOP)
    else:
        context.place = replace(place, shared=is_shared(context, environ))
        context.place = replace(context.place, lock=lock_folder(context))
        if context.is_local_leader:  # a stop flag of an earlier process
            with files.held_folder(place.node_dir) as folder:
                (folder / files.STOP_FILE).unlink(missing_ok=True)
        kept = f"snapshots on the disk only, in {place.run_dir}" if keeps else "no restarts"
        context.say(f"slipway.resume without its launcher: {kept}")
    context.beat(Phase.SETUP)
    return context, heartbeat


def make_node_folder(place: Place) -> None:
    """Make this node's folder if there is no launcher. Raises ConfigurationError if somebody has put a link in its place."""
    place.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with files.held_below(place.run_dir, [place.node_dir.name], make=True):
            pass
    except OSError as error:
        if error.errno not in files.NO_FILE:
            raise
        raise ConfigurationError(
            f"{error.filename} {error.strerror}. Remove it, or set SLIPWAY_RUN_DIR to a folder of yours."
        ) from None


def lock_folder(context: Context) -> FolderLock | None:
    """Hold this node's folder as a launcher does, on ranks that write snapshots, until the run ends.

    Raises ConfigurationError, on all ranks, while another process trains in the run directory.
    """
    place, lock, refused = context.place, None, ""
    if place.is_writer:
        lock, words = FolderLock(place.node_dir / files.LAUNCHER_FILE), tuple(redact_words(sys.argv))
        try:
            for file in place.node_dir.glob("launcher-*.json"):  # with a launcher for each process
                refuse_held(file, read_holder(file), words)
            lock.take(
                this_process(time.time(), script=words),
                lambda holder: refuse_held(place.node_dir / files.LAUNCHER_FILE, holder, words),
            )
        except ConfigurationError as error:
            lock, refused = None, str(error)
    by = [rank for rank, each in enumerate(context.gather_number(bool(refused))) if each]
    if by:
        if lock:
            lock.release()
        raise ConfigurationError(context.share_text(refused, by[0]))
    return lock


def refuse_held(file: Path, holder: Holder | None, words: Sequence[str]) -> None:
    """Raise ConfigurationError while another process than this one holds the folder of a lock file; `words`: our command line."""
    if (holder and is_here(holder) and holder.pid == os.getpid()) or not is_alive(file):
        return
    run = file.parent.parent
    had, has = differing_options(holder.script[1:], words[1:]) if holder and holder.script else ("", "")
    arguments = f" (it has {had}, and this start has {has})" if had else ""
    raise ConfigurationError(
        f"The run directory {run} is in use by {name_of(holder)}{arguments}. Two trainings in one folder would mix "
        "their snapshots. Give this one a folder of its own: SLIPWAY_RUN_DIR=PATH; or wait for the other, or end it: "
        f"`slipway stop {shlex.quote(str(run))}`."
    )


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
        node_dir=run_dir / f"{files.NODE}{node_rank}",
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
            files.write_passing_json(context.place.node_dir / files.STOP_FILE, flag)

    for number in replaced:
        signal.signal(number, raise_flag)
    return replaced


def end_badly(error: BaseException, place: Place | None, so_far: WorkerOutcome, environ: Mapping[str, str]) -> int:
    """Write down and print why the process cannot go on. Returns its exit code."""
    if place is None and is_launched(environ):
        place = read_place(environ)
    if place is not None and is_launched(environ):
        report_failure(error, place, so_far)
    elif place is None or place.local_rank == 0 or not isinstance(error, ConfigurationError):
        print("slipway:", str(error).replace("--run-dir PATH", "SLIPWAY_RUN_DIR=PATH"), file=sys.stderr, flush=True)
    return 1 if is_under_torchrun(environ) else CODE_OF[Word(outcome_word(error))]
