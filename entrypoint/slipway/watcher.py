"""In every worker, whatever program it runs: answers the launcher's questions about where the process stands.

`slipway.pth` in site-packages imports this when a Python begins to which the launcher left an address in SLIPWAY_WATCHER. A
thread listens on a socket. The program keeps its own signals, streams, import path and exit code. torch is not imported: what the
program imported of it is asked. To a line `numbers` or `all` the answer is a JSON object in a line:

    groups     {process group's id: [number of the collective begun last, of the one done last]}
    begun      of `all`: the collectives begun last, as [process group, number, name, sizes, types, since, done]; seconds UTC
    members    of `all`: {process group: its ranks}
    threads    of `all`: [[name, whether it is the main one, [[file, line, function], …]], …]; the innermost frame first
"""

import _thread
import atexit
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

ADDRESS = "SLIPWAY_WATCHER"  # the name of the launcher's socket
FRAMES, COLLECTIVES = 60, 60  # at most: of a thread, and begun ones of a process beside those that are not done
FORK_SECONDS = 0.5  # that a fork waits for an answer that is under way


class Watcher:
    """The thread, and what wakes it before a fork: a process with one thread stays one where it forks."""

    def __init__(self, address: str) -> None:
        self._address, self._owner = address, os.getpid()
        self._link: socket.socket | None = None
        self._ended, self._thread, self._stopping = _thread.allocate_lock(), 0, False
        self._woken, self._wake = os.pipe()

    def start(self) -> None:
        """Begin to listen."""
        if os.getpid() != self._owner:  # a child that forks: what it has open is its own
            return
        self._stopping = False
        if self._ended.acquire(blocking=False):  # else the one before is busy with an answer, and goes on after it
            mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # they are the program's
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:  # the interpreter is about to end
                self._ended.release()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def stop(self) -> None:
        """Let the thread end, and wait for that: Python 3.12 and later warn of a fork beside a thread, by the kernel's count."""
        if os.getpid() != self._owner:
            return
        self._stopping = True
        with suppress(OSError):  # the program closed what it did not open
            os.write(self._wake, b"\n")
        if self._ended.acquire(timeout=FORK_SECONDS):
            self._ended.release()
            until = time.monotonic() + FORK_SECONDS
            while os.path.exists(f"/proc/self/task/{self._thread}") and time.monotonic() < until:  # noqa: PTH110  # no more imports
                time.sleep(0)

    def leave(self) -> None:
        """In a child: the connection is its parent's. Only once: its own children may have other files of these numbers."""
        if self._owner < 0:
            return
        self._owner = -1
        for number in (self._woken, self._wake, *([self._link.detach()] if self._link else [])):
            with suppress(OSError):
                os.close(number)

    def _run(self) -> None:
        self._thread = _thread.get_native_id()
        try:
            with suppress(Exception):  # the launcher is gone, or the program closed what it did not open
                self._listen()
        finally:
            self._ended.release()

    def _listen(self) -> None:
        if self._link is None:
            self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._link.connect(f"\0{self._address}")
            about = {"pid": os.getpid(), "rank": int(os.environ["RANK"])}
            self._link.sendall(f"{json.dumps(about)}\n".encode())
        listening = select.poll()
        for number in (self._link.fileno(), self._woken):
            listening.register(number, select.POLLIN)
        while True:
            ready = {number for number, _ in listening.poll()}
            if self._woken in ready:
                os.read(self._woken, 1)
                if self._stopping:
                    return
                continue
            asked = self._link.recv(4096)
            if not asked:
                return
            try:
                answer = numbers() | (everything() if b"all" in asked else {})
            except Exception as error:  # of another torch's tables: the program has nothing to do with it
                answer = {"error": repr(error)}
            self._link.sendall(f"{json.dumps(answer)}\n".encode())  # not a write, which would count as the program's


def begin() -> None:
    """Start the watcher of this process. What it starts itself has none."""
    watcher = Watcher(os.environ.pop(ADDRESS))
    watcher.start()
    atexit.register(watcher.stop)  # a thread that imports or runs while the interpreter is taken down can crash it
    os.register_at_fork(before=watcher.stop, after_in_parent=watcher.start, after_in_child=watcher.leave)


def recorded(entries: bool) -> list[dict[str, Any]]:
    """What torch's flight recorders hold, as JSON: gloo's, and NCCL's."""
    found = []
    if module := sys.modules.get("torch._C._distributed_c10d"):
        for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
            if dump := getattr(module, name, None):
                with suppress(RuntimeError, ValueError):
                    found.append(json.loads(dump(entries, False)))
    return found


def numbers() -> dict[str, Any]:
    """How many collectives were begun and done."""
    groups = {}
    for place, record in enumerate(recorded(entries=False)):
        for group, status in record.get("pg_status", {}).items():
            begun, done = status.get("last_enqueued_collective", -1), status.get("last_completed_collective", -1)
            groups[f"{group}/{place}"] = [int(begun), int(done)]
    return {"groups": groups}


def everything() -> dict[str, Any]:
    """The last collectives, the process groups and the stacks."""
    begun, groups = [], members()
    for place, record in enumerate(recorded(entries=True)):
        # What send and recv wait for shows in the stacks: their numbers are of another count.
        entries = [entry for entry in record.get("entries", []) if not entry["is_p2p"]]
        recent = {id(entry) for entry in entries[-COLLECTIVES:]}
        for entry in entries:
            # Of collectives that were begun as one, torch retires that alone.
            last = record.get("pg_status", {}).get(str(entry["pg_id"]), {}).get("last_completed_collective", -1)
            number, done = entry["collective_seq_id"], entry["retired"] or entry["collective_seq_id"] <= int(last)
            if not done or id(entry) in recent:
                name = entry["profiling_name"].rpartition(":")[2]
                since = entry["time_created_ns"] / 1e9
                sizes, types = entry["input_sizes"], entry["input_dtypes"]
                group = entry["process_group"][0]
                if place and group in groups:  # of two backends in one group each counts for itself
                    groups[f"{group}/{place}"] = groups[group]
                    group = f"{group}/{place}"
                begun.append([group, number, name, sizes, types, since, done])
    return {"begun": begun, "members": groups, "threads": stacks()}


def members() -> dict[str, list[int]]:
    """The ranks of each process group, by its name, from the tables of torch.distributed."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    with suppress(AttributeError, RuntimeError):  # another torch; a group is being made at this moment
        named = [(world.pg_names.get(group), ranks) for group, ranks in list(world.pg_group_ranks.items())]
        return {str(name): sorted(ranks) for name, ranks in named if name is not None}  # without a name: not a member
    return {}


def stacks() -> list[Any]:
    """Where each thread of this process stands, but for our own."""
    main, own = threading.main_thread().ident, _thread.get_ident()
    names = {ident: thread.name for ident, thread in list(threading._active.items())}  # type: ignore[attr-defined]  # without its lock
    frames = sys._current_frames()
    return [
        [names.get(ident, ""), ident == main, trace(frame)] for ident, frame in list(frames.items()) if ident != own
    ]


def trace(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """File, line and function of a frame and of those that called it."""
    found: list[tuple[str, int, str]] = []
    while frame and len(found) < FRAMES:
        found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return found
