"""The run directory as launcher and workers both know it: names of files and folders, and how JSON in it is read and written.

`runs/NAME/` holds what is the job's: the files named here, and `snapshots/` (snapshots.py). `node-RANK/` in it holds what is one
node's.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from slipway.protocol.durable import write_whole

# Of the whole job:
RUN_FILE, OUTCOME_FILE = "run.json", "outcome.json"  # what was started; the verdict with every attempt
OPTIONS_FILE, METRICS_FILE = "options.json", "metrics.jsonl"  # the workload's options as resolved; its numbers by step
# Results of `allreduce`, `linear --compare` and `check`:
ALLREDUCE_FILE, COMPARISON_FILE, CHECK_FILE = "allreduce.json", "comparison.json", "check.json"
REPLICAS_FILE = "replicas.json"  # when the replicas of a model were found to differ
SNAPSHOTS, CHARTS, TRACES = "snapshots", "tensorboard", "traces"  # folders
# In each trace's folder: its steps and the ranks' clocks; the ranks' files in one.
CLOCKS_FILE, MERGED_FILE = "clocks.json", "trace.json.gz"
STOP_FILE = "stop"  # for the launchers of all nodes; in a node's folder, of the same form, the flag for its workers
# In a node's folder:
PLAN_FILE = "plan.json"  # what its launcher decided
WAITING_FILE = "waiting.json"  # between two attempts
SPARES_FILE = "spares.json"  # on node 0
STACKS_WANTED, STACKS_FILE = "stacks-wanted", "stacks.json"  # a request for where its workers stand, and the answer
# Whether steps are traced where somebody asks; who asks, and what has become of it:
TRACEABLE, TRACE_WANTED, TRACE_FILE = "traceable", "trace-wanted", "trace.json"
LEDGER_FILE = "ledger.json"  # how the time of the job was spent, so far
HANG_FILE = "hang.json"  # what is told of a hang, while it lasts
LAUNCHER_FILE = "launcher.json"  # who holds the folder
RANKS_FILE = "ranks.json"  # how far the ranks of a script are, as its launcher sees it
HONOURS_STOP = "honours-stop"  # its workers look at the flag
LOGS = "logs"  # a folder with a file per rank, and torchrun's
OUTCOMES, HEARTBEATS = "outcome", "heartbeat"  # folders with a file per rank that tells about one attempt

NODE, RANK = "node-", "rank-"  # what stands before the number in a name
# More than any job has: what a damaged or forged file says beyond is nobody's.
ATTEMPTS, NODES, RANKS, STEPS = 1_000_000, 65_536, 2**26, 10**15
SECONDS = 1e11
# Bytes of a JSON file that is read; ours are smaller, but whoever may write there may write anything:
LARGEST = 16 << 20
METRICS_LARGEST, LONGEST = 1 << 30, 1 << 20  # of metrics.jsonl, some ten million steps, and of a line in it
LINK = "is a link, which is not followed within a run directory or a store"
NOT_REGULAR = "is not a regular file"
NO_FILE = (
    errno.ELOOP,
    errno.EINVAL,
    errno.EFBIG,
)  # what is no file that we wrote: a link, a pipe or device, a huge one


def node_folder(run: Path, node_rank: int) -> Path:
    """The folder with what belongs to one node: logs, outcomes, the stop flag."""
    return run / f"{NODE}{node_rank}"


def own_file(node: Path, name: str, process: int | None) -> Path:
    """The path of a launcher's file in its node's folder. With one launcher per process its name has the `process`."""
    stem, dot, kind = name.partition(".")
    return node / (name if process is None else f"{stem}-{process}{dot}{kind}")


def process_file(rank: int) -> str:
    """The name of what the launcher of one process tells those of the others, in node 0's folder."""
    return f"process-{rank}.json"


def rank_file(node: Path, folder: str, rank: int) -> Path:
    """Where a rank writes what it says: OUTCOMES or HEARTBEATS in its node's folder."""
    return node / folder / f"{RANK}{rank}.json"


def error_file(rank: int | str) -> str:
    """The name of what `torch.distributed.elastic`'s @record writes of a rank's exception, in OUTCOMES."""
    return f"error-{rank}.json"


def rank_log(rank: int | str) -> str:
    """The name of a rank's log; `*` makes a pattern."""
    return f"{RANK}{rank}.log"


def rank_trace(rank: int) -> str:
    """The name of what a rank's profiler recorded, in a trace's folder."""
    return f"{RANK}{rank}.json.gz"


def number_in(name: str, before: str) -> int | None:
    """The number in a name, behind what stands before it; None where the name is another one."""
    digits = name.removeprefix(before)
    return whole_number(digits) if digits != name else None


def whole_number(digits: str) -> int | None:
    """The number that a text is, of at most fifteen ASCII digits; None where it is none."""
    return int(digits) if re.fullmatch("[0-9]{1,15}", digits) else None


def attempt_in(record: Mapping[str, Any]) -> int:
    """The number of the newest attempt that the content of run.json tells of; 0 where it makes no sense."""
    number = record.get("attempt")
    return number if type(number) is int and 0 < number <= ATTEMPTS else 0


def newest_attempt(run: Path) -> int:
    """The number of the newest attempt on a run; 0 where nothing says."""
    return attempt_in(read_json(run / RUN_FILE))


def levels_below_run(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The run directory that a folder lies in, or is, and the names from there, by what folders of a run are called."""
    above, name = ("", "", *folder.parts)[-2:]
    depth = int(name in (SNAPSHOTS, CHARTS, TRACES) or number_in(name, NODE) is not None)
    if above in (SNAPSHOTS, TRACES) or (number_in(above, NODE) is not None and name in (LOGS, OUTCOMES, HEARTBEATS)):
        depth = 2
    return Path(*folder.parts[: len(folder.parts) - depth]), folder.parts[len(folder.parts) - depth :]


@contextmanager
def held_folder(folder: Path) -> Iterator[Path]:
    """Another path to a folder of a run, which stays the same folder whatever is put in its place meanwhile. Raises OSError.

    On the way to a run directory links are followed (`runs -> /scratch` is common), within one they are not: see `held_below`.
    """
    with held_below(*levels_below_run(folder)) as held:
        yield held


@contextmanager
def held_below(root: Path, names: Sequence[str], *, make: bool = False) -> Iterator[Path]:
    """The same for the folder that these `names` lead to from `root`. `make`: a level that is missing is created.

    Below `root` no link is followed: whoever may write there could lead what we write, or delete, to the files of others. So
    each level is opened through the one above it.
    """
    holding = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    number = os.open(root, holding)
    try:
        for depth, name in enumerate(names, 1):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=number)
            try:
                below = os.open(name, holding | os.O_NOFOLLOW, dir_fd=number)
            except OSError as error:
                level = root.joinpath(*names[:depth])
                if level.is_symlink():
                    raise OSError(errno.ELOOP, LINK, str(level)) from None
                raise OSError(error.errno, error.strerror, str(level)) from None
            os.close(number)
            number = below
        held = f"/proc/self/fd/{number}"
        try:
            yield Path(held)
        except OSError as error:  # the name that people know
            if isinstance(error.filename, str | Path):
                error.filename = str(error.filename).replace(held, str(root.joinpath(*names)), 1)
            raise
    finally:
        os.close(number)


def open_run_file(path: Path) -> BufferedReader:
    """Open a file of a run for reading. OSError unless it is a regular one: in a folder that others may write to there may be a
    pipe, which would hold whoever reads it for ever, a device, or a link to somebody else's file.
    """
    return os.fdopen(_open_regular(path, os.O_RDONLY), "rb")


def append_to_run_file(path: Path) -> int:
    """A descriptor to add to a file of a run, made where there is none. OSError unless it is a regular one."""
    return _open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def touch_run_file(path: Path) -> None:
    """Make a file of a run that says something by being there. Raises OSError."""
    os.close(append_to_run_file(path))


def _open_regular(path: Path, how: int) -> int:
    with held_folder(path.parent) as folder:
        return open_regular(folder / path.name, how)


def open_regular(path: Path, how: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file in a folder that is held. Raises OSError for anything else that has its name."""
    try:
        number = os.open(path, how | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, LINK, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    return number


def read_run_bytes(path: Path, most: int = LARGEST) -> bytes:
    """The content of a file of a run. OSError if none can be read, or it has more bytes than `most`."""
    with held_folder(path.parent) as folder:
        return read_regular(folder / path.name, most)


def read_regular(path: Path, most: int) -> bytes:
    """The same for a file in a folder that is held."""
    with os.fdopen(open_regular(path), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"has more than {most >> 20} MiB", str(path))
        return file.read(size)


def read_run_text(path: Path) -> str:
    """The text of a file of a run. Raises OSError."""
    with open_run_file(path) as file:
        return file.read().decode(errors="replace")


def read_metrics_lines(path: Path) -> Iterator[str]:
    """Yield each line of a metrics file; one that is longer than any of ours in pieces. Raises OSError, also for a huge file."""
    with open_run_file(path) as file:
        if os.fstat(file.fileno()).st_size > METRICS_LARGEST:
            raise OSError(errno.EFBIG, f"has more than {METRICS_LARGEST >> 20} MiB", str(path))
        while line := file.readline(LONGEST):
            yield line.decode(errors="replace").rstrip("\r\n")


def read_metrics(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line of a metrics file and its values, without what a crash left incomplete. Raises OSError."""
    for line in read_metrics_lines(path):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and type(values.get("step")) is int:
            yield line, values


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run; an empty one where there is none that can be read. Numbers in it are finite."""
    try:
        return _read_object(path)
    except (OSError, ValueError, RecursionError):
        return {}


def why_unreadable(path: Path) -> str:
    """Why `read_json` passes over a file that is there; empty where it does not."""
    try:
        _read_object(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return LINK if error.errno == errno.ELOOP else error.strerror or str(error)
    except (ValueError, RecursionError):
        return f"is not a JSON object of at most {LARGEST >> 20} MiB"
    return ""


def _read_object(path: Path) -> dict[str, Any]:
    with open_run_file(path) as file:
        text = file.read(LARGEST + 1)
    value = parse_json(text) if len(text) <= LARGEST else None
    if not isinstance(value, dict):
        raise ValueError("no object, or too large a one")
    return value


def parse_json(text: bytes) -> Any:
    """JSON, with None for numbers that nobody can count with (NaN, 1e999, 64 bits or more). Raises ValueError, RecursionError."""
    return json.loads(
        text,
        parse_constant=lambda _: None,
        parse_float=lambda digits: number if math.isfinite(number := float(digits)) else None,
        parse_int=lambda digits: int(digits) if len(digits) < 19 else None,
    )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file that is either the old one or the new one, never half of it. Raises OSError."""
    with held_folder(path.parent) as folder:
        write_whole(folder / path.name, json.dumps(value, indent=1) + "\n")


def write_passing_json(path: Path, value: Mapping[str, Any]) -> None:
    """The same for what is old in seconds: nobody waits until it is on the disk. Raises OSError."""
    with held_folder(path.parent) as folder:
        write_whole(folder / path.name, json.dumps(value, indent=1) + "\n", durable=False)
