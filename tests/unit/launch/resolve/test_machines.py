"""Machines that nobody here has, as a driver and a kernel describe them: devices, cores, memory, the image that fits, check's rows.

The facts are from public records of real ones: NVML and MIG profiles of DGX A100, H100, H200 and B200 (NVIDIA/go-nvml,
pkg/nvml/mock), NUMA of p4d, p5en, P6-B200, P6-B300 and P6e-GB200 (aws/aws-ofi-nccl, tests/unit/fixtures/topology), Azure NC A100 v4 and
ND H100 v5 (NVIDIA/nccl, src/test), nvidia-smi of an A100 with MIG, an A10G, a T4 and an RTX PRO 6000 (influxdata/telegraf,
plugins/inputs/nvidia_smi/testdata), InfiniBand ports of a DGX A100 (facebookresearch/gcm, gcm/tests/data).
Where such a record does not say which GPU is on which socket, each socket has half of them.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from stand_ins import FakeNvml, make_card, plan_for, write_files

from slipway.check.devices import judge_driver, look_at_gpus, look_at_infiniband
from slipway.launch.resolve.devices import Devices, read_devices
from slipway.launch.resolve.plan import Plan
from slipway.protocol.binding import near_memory, read_cores
from slipway.protocol.errors import UNHEALTHY
from slipway.protocol.variants import ARM, X86, fitting


@dataclass(frozen=True)
class Facts:
    """`nodes`: the cores of each NUMA node, nothing for one that has memory alone; `near`: for each GPU the number of its node;
    `slices`: the MIG profiles of each GPU; `images`: those that run there.
    """

    gpu: str
    capability: tuple[int, int]
    driver: str
    nodes: tuple[str, ...]
    near: tuple[int, ...]
    images: tuple[str, ...]
    slices: tuple[tuple[str, ...], ...] = ()
    machine: str = X86

    @property
    def cores(self) -> set[int]:
        return read_cores(",".join(filter(None, self.nodes)))


# Two sockets of 48 cores each with two threads, as Amazon counts them, and of 56 as a DGX H100 has them.
AMAZON, XEON = ("0-47,96-143", "48-95,144-191"), ("0-55,112-167", "56-111,168-223")
ROME = tuple(f"{16 * node}-{16 * node + 15},{128 + 16 * node}-{143 + 16 * node}" for node in range(8))
HALVES, ALL_OLD, BOTH = (0, 0, 0, 0, 1, 1, 1, 1), ("cuda12",), ("cuda12", "cuda13")
MACHINES = {
    "DGX A100": Facts("NVIDIA A100-SXM4-40GB", (8, 0), "550.54.15", ROME, (3, 3, 1, 1, 7, 7, 5, 5), ALL_OLD),
    "DGX H100": Facts("NVIDIA H100 80GB HBM3", (9, 0), "550.54.15", XEON, HALVES, ALL_OLD),
    "DGX H200": Facts("NVIDIA H200 141GB HBM3e", (9, 0), "550.54.15", XEON, HALVES, ALL_OLD),
    "DGX B200, a driver before Blackwell's": Facts("NVIDIA B200 180GB HBM3e", (10, 0), "560.28.03", XEON, HALVES, ()),
    "p4d": Facts("NVIDIA A100-SXM4-40GB", (8, 0), "580.95.05", ("0-23,48-71", "24-47,72-95"), HALVES, BOTH),
    "p5en": Facts("NVIDIA H200", (9, 0), "580.95.05", AMAZON, HALVES, BOTH),
    "P6-B200": Facts("NVIDIA B200", (10, 0), "570.133.20", AMAZON, HALVES, ALL_OLD),
    "P6-B300": Facts("NVIDIA B300 SXM6 AC", (10, 3), "580.95.05", AMAZON, HALVES, BOTH),
    "P6e-GB200": Facts(
        "NVIDIA GB200", (10, 0), "580.95.05", ("0-71", "72-143", *[""] * 32), (0, 0, 1, 1), ("cuda13",), (), ARM
    ),
    "GH200, one Grace": Facts(
        "NVIDIA GH200 480GB", (9, 0), "580.95.05", ("0-71", *[""] * 8), (0,), ("cuda13",), (), ARM
    ),
    "NC A100 v4": Facts(
        "NVIDIA A100 80GB PCIe", (8, 0), "535.161.08", ("0-23", "24-47", "48-71", "72-95"), (0, 1, 2, 3), ALL_OLD
    ),
    "ND H100 v5": Facts(
        "NVIDIA H100 80GB HBM3", (9, 0), "535.161.08", ("48-95", "0-47"), HALVES, ALL_OLD
    ),  # as it counts
    "A100 with MIG": Facts(
        "NVIDIA A100-SXM4-80GB", (8, 0), "535.54.03", XEON, (0, 0, 1, 1), ALL_OLD, (("1g.20gb",) * 4, (), (), ())
    ),
    "B200 with MIG": Facts(
        "NVIDIA B200", (10, 0), "570.133.20", XEON, HALVES, ALL_OLD, (("3g.90gb",) * 2, ("1g.23gb",) * 7, *[()] * 6)
    ),
    "H100 with MIG": Facts("NVIDIA H100 80GB HBM3", (9, 0), "580.95.05", XEON, (0,), BOTH, (("1g.10gb",) * 7,)),
    "A10G": Facts("NVIDIA A10G", (8, 6), "515.105.01", ("0-3",), (0,), ()),
    "T4": Facts("Tesla T4", (7, 5), "515.105.01", ("0-3",), (0,), ()),
    "RTX PRO 6000": Facts(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), "590.44.01", ("0-31",), (0,), BOTH
    ),
}
each = pytest.mark.parametrize("name", MACHINES)


class Machine(FakeNvml):
    """A machine's NVML, and its /sys. MIG devices are called `MIG-PROFILE-NUMBER` here."""

    def __init__(self, facts: Facts) -> None:
        self.facts, slices = facts, facts.slices or [()] * len(facts.near)
        super().__init__(
            *(
                make_card(
                    number,
                    facts.capability,
                    [f"MIG-{profile}-{number}{at}" for at, profile in enumerate(slices[number])] or None,
                    read_cores(facts.nodes[near]),
                    name=facts.gpu,
                )
                for number, near in enumerate(facts.near)
            )
        )

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self.facts.driver

    def nvmlDeviceGetName(self, handle: object) -> str:  # noqa: N802
        return f"{self.facts.gpu} MIG {handle.split('-')[1]}" if isinstance(handle, str) else self.facts.gpu

    def sys(self, folder: Path) -> Path:
        return write_files(folder, {f"node{at}/cpulist": f"{text}\n" for at, text in enumerate(self.facts.nodes)})


def look(name: str, monkeypatch: pytest.MonkeyPatch, wanted: str | None = None, cores: str = "") -> Devices:
    """What the launcher finds on a machine, where it may use these `cores`."""
    facts = MACHINES[name]
    allowed = read_cores(cores) or facts.cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    return read_devices(environ, Machine(facts), Path("/nowhere"))._replace(cpus=float(len(allowed)))


def bound(plan: Plan) -> list[str]:
    return plan.env.get("SLIPWAY_LOCAL_CORES", "").split(":")


@each
def test_each_process_has_its_device_the_cores_near_it_and_their_memory(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts, found = MACHINES[name], look(name, monkeypatch)
    assert found.problem == ""
    slices = [len(profiles) or 1 for profiles in facts.slices or [()] * len(facts.near)]
    assert [gpu.number for gpu in found.gpus] == [at for at, count in enumerate(slices) for _ in range(count)]
    plan, several = plan_for(devices=found), sum(map(bool, facts.nodes)) > 1
    assert plan.topology.processes_per_node == sum(slices)
    assert plan.topology.backend == ("gloo" if max(slices) > 1 else "nccl")
    near = [facts.near[gpu.number] for gpu in found.gpus]
    assert bound(plan) == ([facts.nodes[node] for node in near] if several else [""])
    nodes = Machine(facts).sys(tmp_path)
    assert [near_memory(read_cores(text), nodes) for text in bound(plan)] == (near if several else [None])
    assert near_memory(facts.cores, nodes) is None, "of several nodes, or of the only one"
    shown = plan.env.get("SLIPWAY_LOCAL_DEVICES")
    assert shown == (",".join(gpu.uuid for gpu in found.gpus) if max(slices) > 1 else None)


@each
def test_the_image_that_fits_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, found = MACHINES[name], look(name, monkeypatch)
    gpus = [(gpu.name, gpu.capability) for gpu in found.gpus]
    assert tuple(map(str, fitting(facts.driver, gpus, facts.machine))) == facts.images
    row = judge_driver(found, {}, "host", "12.8" if facts.machine == X86 else "13.0", facts.machine)
    if facts.images:
        assert (row.level, row.found) == (
            "ok",
            f"{facts.driver}, {len(gpus)} GPU{'s' * (len(gpus) > 1)} visible; images that fit: {' or '.join(facts.images)}",
        )
    else:
        needed = "570" if facts.capability >= (10, 0) else "525.60.13"
        assert (row.code, row.found) == (
            UNHEALTHY,
            f"the driver {facts.driver} is too old for CUDA 12, which needs {needed} or newer",
        )
        assert row.advice.startswith(
            f"update the driver on the host and reboot: {needed} or newer for the image cuda12"
        )


@each
def test_checks_rows_name_each_gpu_once_and_find_nothing_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, found = MACHINES[name], look(name, monkeypatch)
    driver, *rows = look_at_gpus(found, {}, Machine(facts))
    assert driver.what == "driver"
    assert [(row.what, row.level, row.found) for row in rows] == [
        (f"GPU {number}", "ok", facts.gpu) for number in range(len(facts.near))
    ]


@pytest.mark.parametrize(
    ("name", "environ", "cores", "expected", "threads"),
    [
        # Three of eight, two of them on one socket: the least share is a third of the cores that there are.
        ("p4d", {"CUDA_VISIBLE_DEVICES": "0,1,4"}, "", ["0-23,48-71", "0-23,48-71", "24-47,72-95"], "24"),
        ("p4d", {"CUDA_VISIBLE_DEVICES": "7,0"}, "", ["24-47,72-95", "0-23,48-71"], "48"),
        ("p4d", {"CUDA_VISIBLE_DEVICES": "5"}, "", ["24-47,72-95"], "48"),
        # GPUs to spare may be used by any process.
        ("p4d", {"NPROC_PER_NODE": "4"}, "", [""], "24"),
        ("P6e-GB200", {"NPROC_PER_NODE": "3"}, "", [""], "48"),
        # A job with the cores of one socket: those near the GPUs are all that it has, or none.
        ("p5en", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "0-47,96-143", [""], "24"),
        ("p5en", {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "0-47,96-143", [""], "24"),
        # Cores of one socket and one of the other: whoever had that alone would make all others wait.
        ("p5en", {}, "0-47,48", [""], "6"),
        ("p5en", {}, "0-15,48-63", ["0-15"] * 4 + ["48-63"] * 4, "4"),
        ("DGX A100", {"CUDA_VISIBLE_DEVICES": "0,2,4,6"}, "", [ROME[3], ROME[1], ROME[7], ROME[5]], "32"),
        ("DGX A100", {}, "", [ROME[node] for node in (3, 3, 1, 1, 7, 7, 5, 5)], "16"),
        ("P6e-GB200", {}, "0-7,72-79", ["0-7", "0-7", "72-79", "72-79"], "4"),
        ("NC A100 v4", {"SLIPWAY_CPU_BINDING": "none"}, "", [""], "24"),
        ("H100 with MIG", {}, "", [XEON[0]] * 7, "16"),
        ("H100 with MIG", {"NPROC_PER_NODE": "2"}, "", [""], "112"),
    ],
)
def test_uneven_jobs(
    name: str,
    environ: dict[str, str],
    cores: str,
    expected: list[str],
    threads: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_for(environ=environ, devices=look(name, monkeypatch, environ.get("CUDA_VISIBLE_DEVICES"), cores))
    assert (bound(plan), plan.env["OMP_NUM_THREADS"]) == (expected, threads)


def test_what_plan_says_of_a_grace_blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = plan_for(devices=look("P6e-GB200", monkeypatch)).topology
    assert topology.arithmetic.startswith("1 node × 4 GPUs")
    assert [note for note in topology.notes if "binding" in note] == [
        "CPU binding: local rank 0, 1 on cores 0-71; 2, 3 on cores 72-143, near their GPUs (--cpu-binding none leaves it to the system)"
    ]


HDR, EDR, UP = "200 Gb/sec (4X HDR)\n", "100 Gb/sec (4X EDR)\n", "4: ACTIVE\n"


@pytest.mark.parametrize(
    ("states", "rates", "level", "found"),
    [
        ([UP] * 8, [HDR] * 8, "ok", "available; ports: 8 at 200 Gb/sec"),
        ([UP] * 8, [HDR] * 7 + [EDR], "ok", "ports: 7 at 200 Gb/sec, 1 at 100 Gb/sec"),
        ([UP] * 6 + ["2: INIT\n", "1: DOWN\n"], [HDR] * 8, "ok", "ports: 6 at 200 Gb/sec, not active: mlx5_6 mlx5_7"),
        (["1: DOWN\n"] * 8, [HDR] * 8, "warning", "no port is active: NCCL uses TCP"),
        (["2: INIT\n"] * 8, [HDR] * 8, "warning", "no port is active: NCCL uses TCP"),
        ([UP], [""], "ok", "device files and library are available"),
    ],
)
def test_ports_of_infiniband(states: list[str], rates: list[str], level: str, found: str, tmp_path: Path) -> None:
    ports = [f"sys/class/infiniband/mlx5_{number}/ports/1" for number in range(len(states))]
    files = {f"{port}/state": state for port, state in zip(ports, states, strict=True)}
    files |= {f"{port}/rate": rate for port, rate in zip(ports, rates, strict=True)}
    (row,) = look_at_infiniband("host", write_files(tmp_path, files | {"dev/infiniband/uverbs0": ""}), str)
    assert row.level == level
    assert row.found.endswith(found)
