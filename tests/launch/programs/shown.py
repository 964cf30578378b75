"""What a process finds at the first line of a program, and what the program computes: each as a file beside the program.

The programs in this folder import this first. `keep` is the last that they do.
"""

import atexit
import json
import os
import resource
import signal
import sys
import threading

FOLDER, RANK = os.path.dirname(os.path.abspath(__file__)), int(os.environ["RANK"])


def read_mask(mask: int = 0) -> int:
    mask = os.umask(mask)
    os.umask(mask)
    return mask


FOUND = {
    "arguments": sys.argv,
    "command": sys.orig_argv,
    "warnings": sys.warnoptions,
    "folder": os.getcwd(),
    "path": sys.path,
    "flags": str(sys.flags),
    "input": sys.stdin.read() if RANK == 0 else os.path.samefile("/dev/null", 0),
    "encodings": [stream.encoding for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "environ": dict(os.environ),
    "threads": [thread.name for thread in threading.enumerate()],
    "signals": {number.name: str(signal.getsignal(number)) for number in signal.Signals},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": {
        name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
    },
    "umask": read_mask(),
    "nice": os.nice(0),
    "cores": sorted(os.sched_getaffinity(0)),
    "terminals": [os.isatty(number) for number in (0, 1, 2)],
    "own session": os.getsid(0) == os.getpid(),
    "modules": sorted(sys.modules),
    "files": len(os.listdir("/proc/self/fd")),
}


def write(name: str, values: dict[str, object]) -> None:
    path = f"{FOLDER}/{name}-{RANK}.json"
    with open(f"{path}.new", "w") as file:
        json.dump(values, file)
    os.replace(file.name, path)


def keep(model=None, **numbers: object) -> None:
    """What was computed: numbers as they are, and of a model's weights all bits."""
    import hashlib

    weights = hashlib.sha256()
    for tensor in model.state_dict().values() if model else ():
        weights.update(tensor.detach().contiguous().numpy().tobytes())
    write("computed", {**numbers, "weights": weights.hexdigest()})


def end_without_destructors() -> None:
    """The last that a process does. gloo's threads may abort one that still has them when C++'s destructors run."""
    if "torch.distributed" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(len(FAILED))


FAILED: list[object] = []


def note(*failure) -> None:
    FAILED.append(failure)
    sys.__excepthook__(*failure)


write("found", FOUND)
sys.excepthook = note
atexit.register(end_without_destructors)  # the first one, which Python calls last
