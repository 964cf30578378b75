"""The buffers for snapshots in memory, which outlive the workers of an attempt: the launcher holds them to the job's end."""

import os

from slipway.launch.resolve.job_spec import Job
from slipway.protocol.memory import BUFFERS, VARIABLE, newest_in


class SnapshotMemory:
    """The buffers for snapshots in memory, which this launcher holds for its node and which outlive the workers; empty at first.

    They count in the memory of the container or job, not in /dev/shm, and are freed when this process ends. Workers open them
    through /proc, so neither torchrun nor whatever else starts workers has to pass descriptors on.
    """

    def __init__(self, job: Job) -> None:
        """Make the buffers, where there may be another attempt that could use what is in them."""
        self._buffers: list[int] = []
        workload = job.plan.workload
        if workload.resumes and not workload.spawned and not job.plan.topology.process and job.restarts:
            self._make(job.plan.topology.processes_per_node)

    def _make(self, processes: int) -> None:
        try:
            for number in range(BUFFERS * processes):
                self._buffers.append(os.memfd_create(f"slipway-memory-{number + 1}"))
        except OSError:  # a sandbox without; there is the disk
            self.close()

    @property
    def variables(self) -> dict[str, str]:
        """Where the workers find the buffers."""
        paths = [f"/proc/{os.getpid()}/fd/{buffer}" for buffer in self._buffers]
        return {VARIABLE: " ".join(paths)} if paths else {}

    @property
    def version(self) -> tuple[int, int]:
        """Attempt and step of the newest snapshot in them from which workers would resume; -1 twice without one."""
        newest = newest_in(self._buffers)
        return (newest.attempt, newest.step) if newest else (-1, -1)

    def close(self) -> None:
        """Free the memory."""
        while self._buffers:
            os.close(self._buffers.pop())
