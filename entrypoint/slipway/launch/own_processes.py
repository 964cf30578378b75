"""The processes below this one that it started itself, as opposed to those that a container runtime keeps there.

With pyxis and squashfuse the server of the container's root file system is a child of the task, which becomes the launcher. To
kill it is to take the root file system away from the launcher and from all other tasks of the node.
"""

import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path

from slipway.launch.process_tree import read_children, reap, send_signal, start_ticks, stat_fields, trees

# Every process of an attempt has inherited this variable. What was there before the launcher, and what that starts, has not. A
# process may clear or overwrite its environment (`env -i`, setproctitle): then its session tells, or the reaper ends it.
MARK = b"SLIPWAY_NODE_DIR="


class OwnProcesses:
    """The processes below a process, without the foreign ones: those that were there before this object, and what they start."""

    def __init__(self, root: int | None = None, proc: Path = Path("/proc")) -> None:
        """Remember by process id and start what is below `root` by now; by default that is this process."""
        self._root, self._proc = root or os.getpid(), proc
        self._foreign = {pid: start_ticks(pid, proc) for pid in trees([self._root], proc)[self._root]}
        self._sessions: dict[int, int | None] = {}  # begun by our own processes: the leader's process id, and its start

    def find(self, spared: Collection[int | None] = ()) -> list[int]:
        """Return the ids of our own processes but the `spared`; those that ended while we looked may be missing.

        The sessions that they began are remembered: a member of one is our own whatever it made of its environment.
        """
        children = read_children(self._proc)
        foreign = {pid for pid, start in self._foreign.items() if start_ticks(pid, self._proc) == start}
        if self._foreign:  # else there is nobody who could leave orphans to us but our own processes
            ours = {pid for pid in children.get(self._root, []) if self._is_marked(pid) or self._is_member(pid)}
            foreign |= {*children.get(self._root, [])} - ours
        found, queue = list[int](), [self._root]
        while queue:
            below = [pid for pid in children.get(queue.pop(), []) if pid not in foreign]
            found += below
            queue += below
        self._sessions |= {pid: start_ticks(pid, self._proc) for pid in found if self._session(pid) == pid}
        return [pid for pid in found if pid not in spared]

    def end(self, spared: Collection[int | None] = ()) -> None:
        """Kill our own processes but the `spared`."""
        kill_all(lambda: self.find(spared))
        self._sessions.clear()  # in days to come their numbers may be given to foreign processes

    def end_unmarked(self) -> None:
        """Kill those of our own processes that whoever adopts them would take for foreign ones."""
        kill_all(lambda: [pid for pid in self.find() if not self._is_marked(pid) and start_ticks(pid, self._proc)])

    def _session(self, pid: int) -> int:
        """The session of a process, by its leader's process id; 0 where the process is gone."""
        fields = stat_fields(pid, self._proc)
        return int(fields[3]) if len(fields) > 3 else 0

    def _is_member(self, pid: int) -> bool:
        """Whether a process is in a session that one of ours began, since nobody can enter another's session.

        The number of a session is not given away while it has members, even if the leader has ended.
        """
        session = self._session(pid)
        return session in self._sessions and start_ticks(session, self._proc) in {None, self._sessions[session]}

    def _is_marked(self, pid: int) -> bool:
        """Whether a child of ours is our own. One that lost its foreign parent, and so became our child, is not."""
        try:
            return MARK in (self._proc / str(pid) / "environ").read_bytes()
        except OSError:  # it has ended, or has rights that we lack, and could not be signalled either
            return False


def kill_all(find: Callable[[], list[int]]) -> None:
    """Kill what it finds, again until that is nothing: a process may fork while we look."""
    for _ in range(20):
        if not (found := find()):
            return
        send_signal(found, signal.SIGKILL)
        reap()
