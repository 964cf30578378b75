"""A `slipway` process under test, and a user's own program for it to start."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from waiting import PATIENCE, wait_until

# `make test-torch` names a Python with another PyTorch, in which the wheel is installed.
PYTHON = os.environ.get("SLIPWAY_TEST_PYTHON") or sys.executable


@dataclass
class Launcher:
    """A running `slipway` and all it has said so far, stdout and stderr together."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, words: str) -> None:
        wait_until(lambda: self.has_said(words), lambda: f"{words!r}:\n{self.text}")

    def has_said(self, words: str) -> bool:
        """Whether it said this. AssertionError where it has ended and cannot any more."""
        ended = self.process.poll() is not None
        if ended:
            self.reader.join(10)
        assert words in self.text or not ended, f"ended without {words!r}:\n{self.text}"
        return words in self.text

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = PATIENCE) -> int:
        code = self.process.wait(timeout)
        self.reader.join(10)
        return code

    @property
    def closing(self) -> list[str]:
        """What the launcher itself said."""
        return [line[9:].rstrip() for line in self.lines if line.startswith("slipway: ")]

    def read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()


def start_launcher(folder: Path, *words: str, before: tuple[str, ...] = (), **variables: str) -> Launcher:
    """Start `slipway` in a folder, with a clean environment; `before` are words in front of the command."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    return Launcher(
        subprocess.Popen(
            [*before, PYTHON, "-m", "slipway", *words],
            cwd=folder,
            env={**kept, "PYTHONWARNINGS": "ignore", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    )


OWN_SCRIPT = """
import argparse, os, signal, sys, time
import torch, torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--its-own")
parser.add_argument("--flags", action="store_true")
parser.add_argument("--then", default="finish")
args = parser.parse_args()
defaults = all(signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGUSR1))
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print(f"sum {ones.item():.0f} {args.its_own} {args.flags} default-signals {defaults}", flush=True)
last = dist.get_rank() == dist.get_world_size() - 1
if args.then.startswith("exit-") and last:
    os._exit(int(args.then[5:]))
if args.then == "raise" and last:
    dist.destroy_process_group()  # gloo may abort a process that ends with one
    raise ValueError("boom")
if args.then == "kill" and last:
    os.kill(os.getpid(), signal.SIGKILL)
if args.then == "eat" and last:
    eaten = []
    while True:
        eaten.append(os.urandom(1 << 24))
if args.then == "wait":
    print("pid", os.getpid(), flush=True)
    time.sleep(300)
if args.then == "save":
    def save(number, frame):
        open(f"saved-{dist.get_rank()}", "w").write(signal.Signals(number).name)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("waiting", flush=True)
    while True:  # A signal that comes right before a sleep is handled by Python after it.
        time.sleep(0.1)
if args.then != "finish":
    dist.barrier()
dist.destroy_process_group()
"""


# The same without torch, for an agent without it: the ranks do not meet, and one that is to wait for another waits.
PLAIN_SCRIPT = """
import os, signal, sys, time

print("begun with", *sys.argv[1:], flush=True)
then, last = sys.argv[-1], os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
if then.startswith("exit-") and last:
    os._exit(int(then[5:]))
if then == "raise" and last:
    raise ValueError("boom")
if then == "kill" and last:
    os.kill(os.getpid(), signal.SIGKILL)
if then == "wait":
    print("pid", os.getpid(), flush=True)
if then == "save":
    def save(number, frame):
        open("saved-" + os.environ["RANK"], "w").write(signal.Signals(number).name)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("waiting", flush=True)
while then != "finish":  # A signal that comes right before a sleep is handled by Python after it.
    time.sleep(0.1)
"""


# Rank 1 hangs until somebody writes to the pipe `go`.
HANGS_A_WHILE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank() == 1:
    open("go").read()
dist.all_reduce(x)
print("went on", flush=True)
dist.destroy_process_group()
"""
