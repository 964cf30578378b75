"""All probes of this node that need no torch, in a few seconds: what `slipway run --check` does first.

To add a row: a function that returns rows (`check/finding.py`) in `check/machine.py` (CPUs, memory, limits, host names,
interruption notices), `check/devices.py` (hardware) or `check/disk.py` (folders), called here, or in `check/examination.py` if
it takes longer. For each GPU: a field of `GpuReading` and a row in `judge_gpu` in `check/devices.py`; with torch in
`train/measure/health.py` and `train/measure/burn.py`, started by `check/products.py`. Between nodes `train/workloads/check.py`
measures and `check/nodes.py` judges; what must be equal on all nodes is compared in `launch/rendezvous/membership.py`. Advice
that depends on the runtime is in `launch/resolve/advice.py`. Tests: the file of its subject in tests/unit, and in
`tests/unit/check/test_health_reports.py` the functions that are replaced, the number of skipped rows and the set of row names.
Documentation: docs/check.md.
"""

from collections.abc import Mapping
from pathlib import Path

from slipway.check.devices import look_at_gpus, look_at_infiniband, look_at_kernel_log
from slipway.check.disk import look_at_disks
from slipway.check.finding import probe
from slipway.check.machine import SHM, look_at_cpus, look_at_limits, look_at_memory, look_at_names, look_at_shm
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.topology import Topology


def quick_check(
    environ: Mapping[str, str], host: Host, devices: Devices, results: Path, topology: Topology | None
) -> tuple[Finding, ...]:
    """Look at this node. Raises nothing; every probe that fails says so in its own row.

    `results` is the folder that a run would be written to (container_checks.results_folder). Without a `topology` the names
    that only several nodes need are left out. May take up to half a minute where a name server or a
    file server does not answer.
    """
    found = (
        probe("driver", lambda: look_at_gpus(devices, environ, runtime=host.shell)),
        probe("Xid errors", look_at_kernel_log) if devices.driver or devices.problem else (),
        probe(str(SHM), lambda: look_at_shm(host.runtime)),
        probe("memory", look_at_memory),
        probe("CPUs", lambda: look_at_cpus(devices, host.runtime)),
        probe("limits", lambda: look_at_limits(host.runtime)),
        probe("InfiniBand", lambda: look_at_infiniband(host.runtime)),
        probe("disks", lambda: look_at_disks(host, environ, results)),
        probe("names", lambda: look_at_names(topology)),
    )
    return tuple(finding for rows in found for finding in rows)
