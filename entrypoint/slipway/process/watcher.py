"""In every worker, whatever program it runs: answers the launcher's questions about where the process stands.

`slipway.pth` in site-packages imports this when a Python begins to which the launcher left an address in SLIPWAY_WATCHER, unless
Python is to ignore such variables (`-E`, `-I`). A
thread listens on a socket. The program keeps its own signals, streams, import path, exit code and modules: what is imported here
is built into Python or let go again, so that a `json.py` of the program's is found as without us. torch is not imported: what the
program imported of it is asked. To a line `numbers` or `all` the answer is a JSON object in a line
(launch/hangs/flight_recorder.py):

    records    what torch's flight recorders say, gloo's and NCCL's: of `numbers` without their entries
    members    of `all`: {process group: its ranks, in the order that the group numbers them}
    threads    of `all`: [[name, whether it is the main one, [[file, line, function], …]], …]; the innermost frame first
    store      of `all`: address and port of a store that is not torchrun's at which the main thread waits, then torchrun's; else
               empty

When the program ends by itself, a last line says whether an exception ended it that nobody caught (protocol/tracebacks.py):

    uncaught   [its type, its message and notes, [[file, line, function], …]], the innermost frame last; null: there was none
"""

import _signal  # type: ignore[import-not-found]  # it has no types
import _thread
import atexit
import os
import sys
import time

from slipway.process.imports import Observer, import_aside

TYPE_CHECKING = False  # `typing` takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

ADDRESS = "SLIPWAY_WATCHER"  # the name of the launcher's socket
STANDBY = "standby:"  # in its place if a process is to wait for attempts (script_standby.py)
FRAMES = 60  # of a thread, at most
LONGEST_MESSAGE = 8_000  # characters of an exception's, which a socket takes at once
FORK_SECONDS = 0.5  # that a fork waits until the thread has sent its answer and ended; after that Python may warn of it
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1  # linux/prctl.h


_json, _socket, _select = map(import_aside, ("_json", "_socket", "select"))


class Watcher:
    """The thread, and what wakes it before a fork: a process with one thread stays one where it forks."""

    def __init__(self, address: str) -> None:
        """To be called by the main thread."""
        self._address, self._owner, self._main = address, os.getpid(), _thread.get_ident()
        self._rank = int(os.environ["RANK"])
        self._store = torchrun_store(os.environ)  # now: the program may set these variables itself
        self._ended, self._thread, self._stopping, self._allowed = _thread.allocate_lock(), 0, False, False
        self._link: Any = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._connected, self._reports = False, list[bytes]()
        self._woken, self._wake = os.pipe()
        # All are opened here, before the program can close one: what the thread opens could have the number of another.
        self._files = {number: identity(number) for number in (self._link.fileno(), self._woken, self._wake)}

    def start(self) -> None:
        """Begin to listen."""
        if os.getpid() != self._owner:  # a child that forks: what it has open is its own
            return
        self._stopping = False
        if self._ended.acquire(blocking=False):  # else the one before is busy with an answer, and goes on after it
            mask = _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())  # they are the program's
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:  # the interpreter is about to end
                self._ended.release()
            finally:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def stop(self) -> None:
        """Let the thread end, and wait for that: Python 3.12 and later warn of a fork beside a thread, by the kernel's count."""
        if os.getpid() != self._owner:
            return
        self._stopping = True
        if self._is_ours(self._wake):
            os.write(self._wake, b"\n")
        if self._ended.acquire(timeout=FORK_SECONDS):
            self._ended.release()
            until = time.monotonic() + FORK_SECONDS
            while os.path.exists(f"/proc/self/task/{self._thread}") and time.monotonic() < until:  # noqa: PTH110  # no more imports
                time.sleep(0)

    def report(self, what: "Mapping[str, object]") -> None:
        """Let the thread say what the program's imports are like (imports.py)."""
        self._reports.append(f'{{"imports":{dump(what)}}}\n'.encode())
        if self._is_ours(self._wake):
            os.write(self._wake, b"\n")

    def end(self) -> None:
        """At the end of the program: say how it ends. A launcher that does not listen is not waited for."""
        self.stop()  # a thread that imports or runs while the interpreter is taken down can crash it
        if os.getpid() == self._owner and self._ended.acquire(blocking=False) and self._are_ours():
            line = f'{{"uncaught":{dump(uncaught())}}}\n'
            try:
                self._link.send(line.encode(), _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
            except OSError:
                pass

    def leave(self) -> None:
        """In a child: the connection is its parent's. Only once: its own children may have other files of these numbers."""
        if self._owner < 0:
            return
        self._owner = -1
        self._link.detach()
        for number in self._files:
            if self._is_ours(number):
                os.close(number)

    def _is_ours(self, number: int) -> bool:
        """Whether a file is still what we opened: programs close what they did not open, and get its number for their own."""
        return identity(number) == self._files[number] is not None

    def _are_ours(self) -> bool:
        return all(map(self._is_ours, self._files))

    def _run(self) -> None:
        self._thread = _thread.get_native_id()
        try:
            self._listen()
        except Exception:  # the launcher is gone, or the program closed what it did not open
            pass
        finally:
            if self._link.fileno() >= 0 and not self._is_ours(self._link.fileno()):
                self._link.detach()  # to close it would close what has its number now
            self._ended.release()

    def _listen(self) -> None:
        if not self._are_ours():
            return
        if not self._connected:
            self._connected = True
            self._link.connect(f"\0{self._address}")
            peer = self._link.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
            if int.from_bytes(peer[4:8], sys.byteorder) != os.geteuid():  # such a name has no permissions
                self._link.close()
                return
            self._link.sendall(f'{{"pid":{os.getpid()},"rank":{self._rank}}}\n'.encode())
        listening = _select.poll()
        for number in (self._link.fileno(), self._woken):
            listening.register(number, _select.POLLIN)
        while True:
            ready = {number for number, _ in listening.poll()}
            if not self._are_ours():
                return
            if self._woken in ready:
                os.read(self._woken, 1)
                while self._reports:
                    self._link.sendall(self._reports.pop(0))
                if self._stopping:
                    return
                continue
            asked = self._link.recv(4096)
            if not asked:
                return
            self._allowed = self._allowed or allow_debuggers()
            answer = f'{{"records":[{",".join(recorded(entries=b"all" in asked))}]'
            if b"all" in asked:
                answer += f',"members":{dump(members())},"threads":{dump(stacks(self._main))}'
                answer += f',"store":{dump(other_store(self._main, self._store))}'
            answer += "}"
            self._link.sendall(f"{answer}\n".encode())  # not a write, which would count as the program's


def identity(number: int) -> "tuple[int, int] | None":
    """What tells an open file from another that has its number later; None where none is open."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def begin(*, observed: bool = True) -> None:
    """Start the watcher of this process. What it starts itself has none. `observed`: it reports how torch is imported."""
    watcher = Watcher(os.environ.pop(ADDRESS))
    watcher.start()
    if observed:
        Observer(watcher.report).start()
    atexit.register(watcher.end)
    os.register_at_fork(before=watcher.stop, after_in_parent=watcher.start, after_in_child=watcher.leave)


def allow_debuggers() -> bool:
    """Let py-spy look at this process, also where Yama (kernel.yama.ptrace_scope) keeps that to parents; whether that is done.

    Through `ctypes`, which torch imports: a program that did not do so yet is asked again.
    """
    try:
        with open(YAMA) as file:  # noqa: PTH123
            if file.read(1) != "1":
                return True
        ctypes = sys.modules["ctypes"]
        return not ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_long(PR_SET_PTRACER_ANY), 0, 0, 0)
    except OSError:  # a kernel without it
        return True
    except (KeyError, AttributeError):  # nobody imported it yet, or it is just being imported
        return False


def recorded(entries: bool) -> list[str]:
    """What torch's flight recorders hold, gloo's and NCCL's, as JSON: as they give it, since it may be a megabyte."""
    found = []
    if module := sys.modules.get("torch._C._distributed_c10d"):
        for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
            if dump_trace := getattr(module, name, None):
                try:
                    text = dump_trace(entries, False)
                except (RuntimeError, ValueError, TypeError):  # another torch's
                    continue
                found.append(text.decode() if isinstance(text, bytes) else str(text))
    return found


def members() -> dict[str, list[int]]:
    """The ranks of each process group, by its name, from the tables of torch.distributed."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    try:
        named = [(world.pg_names.get(group), ranks) for group, ranks in list(world.pg_group_ranks.items())]  # type: ignore[union-attr]
        # Without a name: not a member.
        return {str(name): sorted(ranks, key=ranks.__getitem__) for name, ranks in named if name is not None}
    except (AttributeError, RuntimeError, TypeError):  # another torch; a group is being made at this moment
        return {}


def stacks(main: int) -> list[object]:
    """Where each thread of this process stands, but for our own."""
    own, threading = _thread.get_ident(), sys.modules.get("threading")
    known = list(getattr(threading, "_active", {}).items())  # without its lock
    names = {ident: thread.name for ident, thread in known}
    frames = sys._current_frames()
    return [
        [names.get(ident, "MainThread" if ident == main else ""), ident == main, trace(frame)]
        for ident, frame in list(frames.items())
        if ident != own
    ]


def torchrun_store(environ: "Mapping[str, str]") -> "list[str] | None":
    """Address and port of the store that torchrun keeps for its workers; None where rank 0 has to start one."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return [environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")]


def other_store(main: int, own: "list[str] | None") -> list[str]:
    """The address and port at which the main thread waits for a store, and torchrun's; empty where they are the same."""
    frame = sys._current_frames().get(main)
    if (
        own is None or frame is None or frame.f_code.co_name != "_create_c10d_store"
    ):  # of torch/distributed/rendezvous.py
        return []
    wanted = [str(frame.f_locals.get(name, "")) for name in ("hostname", "port")]
    return [] if wanted == own else wanted + own


def uncaught() -> "list[object] | None":
    """The exception that ends the program: its type, its message and notes, and its frames; None where it ends without one."""
    error = getattr(sys, "last_value", None)  # set where Python prints it, before sys.excepthook
    if not isinstance(error, BaseException):
        return None
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        text = "\n".join(map(str, (error, *getattr(error, "__notes__", ()))))
    except Exception:  # the program's own __str__
        text = ""
    frames, entry = [], error.__traceback__
    while entry:
        code = entry.tb_frame.f_code
        frames.append((code.co_filename, entry.tb_lineno, code.co_name))
        entry = entry.tb_next
    return [name, text[:LONGEST_MESSAGE], frames[-FRAMES:]]


def trace(frame: "FrameType | None") -> list[tuple[str, int, str]]:
    """File, line and function of a frame and of those that called it."""
    found: list[tuple[str, int, str]] = []
    while frame and len(found) < FRAMES:
        found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return found


def dump(value: object) -> str:
    """JSON of what we say ourselves: `json` is imported by nobody yet, perhaps."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{dump(str(name))}:{dump(one)}' for name, one in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(dump, value))}]"
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value).lower()
    return str(_json.encode_basestring_ascii(str(value)))
