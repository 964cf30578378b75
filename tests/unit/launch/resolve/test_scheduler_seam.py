"""Everything that the code asks about a scheduler is in its record: a made-up one, given here in full, is treated as the real ones."""

from collections.abc import Iterator, Mapping

import pytest
from stand_ins import make_devices, make_host

from slipway.launch.resolve import host, placement, schedulers, topology
from slipway.launch.resolve.scheduler import JobShape, Scheduler
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import Topology, resolve_topology
from slipway.protocol.errors import LaunchError

ENVIRON = {
    "BERTH_NODES": "2", "BERTH_INDEX": "1", "BERTH_FIRST_HOST": "10.0.0.7", "BERTH_JOB": "lm-4", "BERTH_TRY": "3", "RANK": "9",
    "BERTH_SLOT": "9", "BERTH_GPUS": "0", "BERTH_CORES": "6",
}  # fmt: skip


def note(environ: Mapping[str, str], place: JobShape) -> Iterator[str]:
    if environ.get("BERTH_INDEX") and place.nodes > 1:
        yield f"Berth gave {place.nodes} nodes"


BERTH = Scheduler(
    "Berth",
    ("BERTH_INDEX",),
    {
        "WORLD_SIZE": ("BERTH_NODES",),
        "RANK": ("BERTH_INDEX",),
        "MASTER_ADDR": ("BERTH_FIRST_HOST",),
        "JOB": ("BERTH_JOB",),
        "RESTARTS": ("BERTH_TRY",),
    },
    strict=True,
    before_plain=True,
    full_name=True,
    replaces_nodes=True,
    restarts_tasks=False,
    hook={"RANK": "BERTH_SLOT"},
    gpus="BERTH_GPUS",
    cores="BERTH_CORES",
    address_advice=lambda environ: "ask Berth for a first host",
    notes=note,
)


@pytest.fixture(autouse=True)
def berth(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (schedulers, placement, topology):
        monkeypatch.setattr(module, "SCHEDULERS", (*schedulers.SCHEDULERS, BERTH))


def resolve(environ: Mapping[str, str]) -> Topology:
    return resolve_topology(Sources({}, environ, {}), make_devices(), make_host())


def test_its_place_is_read_and_what_it_does_is_known() -> None:
    made = resolve(ENVIRON)
    assert (made.nodes, made.node_rank, made.master_addr, made.job, made.restarts) == (2, 1, "10.0.0.7", "lm-4", 3)
    assert (made.scheduler, made.replaces, made.requeues) == ("Berth", True, "Berth")
    assert host.needs_full_name(ENVIRON)
    assert host.granted_cores(ENVIRON) == 6


def test_a_variable_that_its_hook_does_not_explain_is_a_contradiction() -> None:
    with pytest.raises(LaunchError, match=r"RANK=5.*Berth \(BERTH_INDEX\) says 1.*BERTH_SLOT.*9"):
        resolve(ENVIRON | {"RANK": "5"})


def test_its_advice_and_its_notes_are_printed() -> None:
    first = ENVIRON | {"BERTH_INDEX": "0"}
    assert "Berth gave 2 nodes" in resolve(first).notes
    with pytest.raises(LaunchError, match="but it is not set: ask Berth for a first host"):
        resolve({name: value for name, value in first.items() if name != "BERTH_FIRST_HOST"})


def test_gpus_that_it_granted_and_nobody_sees_are_a_sick_node() -> None:
    with pytest.raises(LaunchError, match=r"Berth gave this job 4 of this node's GPUs \(BERTH_GPUS\)") as raised:
        resolve(ENVIRON | {"BERTH_GPUS": "4"})
    assert raised.value.code == 77
