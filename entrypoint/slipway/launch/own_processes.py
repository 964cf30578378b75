"""The processes below this one that it started itself, as opposed to those that a container runtime keeps there.

With pyxis and squashfuse the server of the container's root file system is a child of the task, which becomes the launcher. To
kill it is to take the root file system away from the launcher and from all other tasks of the node.
"""

import os
import signal
from collections.abc import Collection
from pathlib import Path

from slipway.launch.process_tree import read_children, reap, send_signal, start_ticks, trees

# Every process of an attempt has inherited this variable. What was there before the launcher, and what that starts, has not.
MARK = b"SLIPWAY_NODE_DIR="


class OwnProcesses:
    """The processes below a process, without the foreign ones: those that were there before this object, and what they start."""

    def __init__(self, root: int | None = None, proc: Path = Path("/proc")) -> None:
        """Remember by process id and start what is below `root` by now; by default that is this process."""
        self._root, self._proc = root or os.getpid(), proc
        self._foreign = {pid: start_ticks(pid, proc) for pid in trees([self._root], proc)[self._root]}

    def find(self, spared: Collection[int | None] = ()) -> list[int]:
        """Return the ids of our own processes but the `spared`; those that ended while we looked may be missing."""
        children = read_children(self._proc)
        foreign = {pid for pid, start in self._foreign.items() if start_ticks(pid, self._proc) == start}
        if self._foreign:  # else there is nobody who could leave orphans to us but our own processes
            foreign |= {pid for pid in children.get(self._root, []) if not self._is_marked(pid)}
        found, queue = list[int](), [self._root]
        while queue:
            below = [pid for pid in children.get(queue.pop(), []) if pid not in foreign]
            found += below
            queue += below
        return [pid for pid in found if pid not in spared]

    def end(self, spared: Collection[int | None] = ()) -> None:
        """Kill our own processes but the `spared`, again until nothing is left: a process may fork while we look."""
        for _ in range(20):
            found = self.find(spared)
            if not found:
                return
            send_signal(found, signal.SIGKILL)
            reap()

    def _is_marked(self, pid: int) -> bool:
        """Whether a child of ours is our own. One that lost its foreign parent, and so became our child, is not."""
        try:
            return MARK in (self._proc / str(pid) / "environ").read_bytes()
        except OSError:  # it has ended, or has rights that we lack, and could not be signalled either
            return False
