"""What outlives the workers of an attempt: the buffers for snapshots in memory, which this launcher holds for its node.

They count in the memory of the container or job, not in /dev/shm, and are gone with this process. Workers open them through
/proc, so neither torchrun nor whoever else starts workers has to hand descriptors on.
"""

import os

from slipway.launch.resolve.job_spec import Job
from slipway.protocol.memory import VARIABLE, newest_in


class Memory:
    """The buffers of a node, empty at first."""

    def __init__(self, job: Job) -> None:
        """Make the buffers, where there may be another attempt that could use what is in them."""
        self._buffers: list[int] = []
        workload = job.plan.workload
        if (
            workload.own
            and workload.resumes
            and not workload.spawned
            and not job.plan.topology.process
            and job.restarts
        ):
            self._make()

    def _make(self) -> None:
        try:
            for name in ("slipway-memory-1", "slipway-memory-2"):
                self._buffers.append(os.memfd_create(name))
        except OSError:  # a sandbox without; there is the disk
            self.close()

    @property
    def variables(self) -> dict[str, str]:
        """What the workers are told."""
        paths = [f"/proc/{os.getpid()}/fd/{buffer}" for buffer in self._buffers]
        return {VARIABLE: " ".join(paths)} if paths else {}

    @property
    def step(self) -> int:
        """The step of the newest snapshot in it, -1 without one."""
        newest = newest_in(self._buffers)
        return newest.step if newest else -1

    def close(self) -> None:
        """Give the memory back."""
        while self._buffers:
            os.close(self._buffers.pop())
