"""A companion of your own: a line in a file whenever something happens to the job, written by the launcher of each node.

SLIPWAY_COMPANIONS=companion:open_diary PYTHONPATH=examples slipway linear
"""

import time

from slipway.launch.companions.companion import Companion


class Diary(Companion):
    """Writes `diary.txt` into the run directory."""

    def begin(self, run, topology):
        """Before each attempt."""
        self.write(run, f"attempt {run.attempt} begins on node {topology.node_rank}")

    def hang(self, run, text):
        """Once nothing moves any more."""
        self.write(run, text)

    def end(self, run, verdict):
        """Before the verdict is printed."""
        self.write(run, f"ended: {verdict.word}")

    def write(self, run, text):
        """Add a line."""
        with (run.path / "diary.txt").open("a") as file:
            print(time.strftime("%H:%M:%S"), text, file=file)


def open_diary(job, stops, say):
    """Slipway calls this once per launcher: `say` prints a line as Slipway does."""
    return Diary()
