"""Every row of the contract at the container's door, the winners' sources, and the line of arithmetic."""

import pytest
from environments import BARE_SRUN, CASES, ENROOT, PER_PROCESS, PLAIN, PYTORCHJOB_NEW, TRAINER, TWO_TASKS_PER_NODE, Case
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import make_devices, resolve

from slipway.launch.devices import Devices
from slipway.launch.settings import Claim
from slipway.launch.topology import Topology


def resolve_case(case: Case) -> Topology:
    return resolve(case.env, case.options, devices=make_devices(case.gpus), fqdn=case.fqdn)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_system_is_understood(case: Case) -> None:
    topology = resolve_case(case)
    assert {name: getattr(topology, name) for name in case.want} == case.want


@pytest.mark.parametrize("case", [case for case in CASES if case.sources], ids=lambda case: case.name)
def test_the_source_of_a_value_is_told(case: Case) -> None:
    values = resolve_case(case).values
    assert {name: values[name].source for name in case.sources} == case.sources


@pytest.mark.parametrize(
    ("environ", "name", "overruled"),
    [
        (PYTORCHJOB_NEW, "WORLD_SIZE", [("8", "environment (WORLD_SIZE)")]),
        (BARE_SRUN | ENROOT, "MASTER_PORT", [("61007", "environment (MASTER_PORT)")]),
        (BARE_SRUN | ENROOT, "RANK", [("1", "environment (RANK)")]),
        (PLAIN | {"NNODES": "4"}, "WORLD_SIZE", [("2", "environment (WORLD_SIZE)")]),
        (TRAINER, "RANK", [("1", "Kubernetes (JOB_COMPLETION_INDEX)")]),
        (PLAIN, "RANK", []),
    ],
)
def test_candidates_that_were_turned_down_are_kept(
    environ: dict[str, str], name: str, overruled: list[tuple[str, str]]
) -> None:
    assert resolve(environ).values[name].overruled == tuple(Claim(*claim) for claim in overruled)


@pytest.mark.parametrize(
    ("environ", "options", "env_file", "name", "value"),
    [
        (BARE_SRUN, {"RANK": "0"}, {}, "RANK", "0"),
        (BARE_SRUN | {"NODE_RANK": "0"}, {}, {}, "RANK", "0"),
        (TRAINER | {"NNODES": "2"}, {}, {}, "WORLD_SIZE", "2"),
        (TRAINER | {"NPROC_PER_NODE": "1"}, {}, {}, "NPROC_PER_NODE", "1"),
        (TRAINER | BARE_SRUN, {}, {}, "WORLD_SIZE", "3"),
        (BARE_SRUN | {"MASTER_ADDR": "mine"}, {}, {}, "MASTER_ADDR", "gpu07"),
        (PLAIN | {"JOB_COMPLETION_INDEX": "1"}, {}, {}, "MASTER_ADDR", "10.0.0.1"),
        (PLAIN, {}, {"NNODES": "4", "NODE_RANK": "2"}, "WORLD_SIZE", "2"),
        (PLAIN, {}, {"WORLD_SIZE": "4", "RANK": "2"}, "RANK", "1"),
    ],
)
def test_the_first_match_of_the_order_wins(
    environ: dict[str, str], options: dict[str, str], env_file: dict[str, str], name: str, value: str
) -> None:
    assert resolve(environ, options, env_file).values[name].value == value


@pytest.mark.parametrize(
    ("environ", "devices", "line"),
    [
        ({}, make_devices(1), "1 node × 1 GPU = 1 process (inside your script WORLD_SIZE is 1)"),
        (PLAIN, make_devices(8), "2 nodes × 8 GPUs = 16 processes (inside your script WORLD_SIZE is 16)"),
        ({}, make_devices(0), "1 node × 2 CPU processes = 2 processes (inside your script WORLD_SIZE is 2)"),
        ({}, make_devices(0, cpus=1.0), "1 node × 1 CPU process = 1 process (inside your script WORLD_SIZE is 1)"),
        (PER_PROCESS, make_devices(2), "2 nodes × 2 GPUs = 4 processes (inside your script WORLD_SIZE is 4)"),
    ],
)
def test_every_start_says_the_arithmetic(environ: dict[str, str], devices: Devices, line: str) -> None:
    assert resolve(environ, devices=devices).arithmetic == line


UNEVEN = TWO_TASKS_PER_NODE | {
    "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_NODEID": "0",
    "SLURM_PROCID": "1", "SLURM_LOCALID": "1",
}  # fmt: skip


@pytest.mark.parametrize(("node", "rank", "local_rank", "tasks"), [("0", "1", "1", 2), ("1", "2", "0", 1)])
def test_uneven_tasks_per_node_keep_their_ranks(node: str, rank: str, local_rank: str, tasks: int) -> None:
    topology = resolve(UNEVEN | {"SLURM_NODEID": node, "SLURM_PROCID": rank, "SLURM_LOCALID": local_rank})
    place = topology.process
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (
        int(rank), 3, int(local_rank), tasks,
    )  # fmt: skip
    assert topology.node_rank == int(node)


def test_what_a_hook_injects_may_differ_from_the_node_where_tasks_are_placed_freely() -> None:
    environ = BARE_SRUN | ENROOT | {"SLURM_NODEID": "0", "SLURM_PROCID": "1", "RANK": "1"}  # --distribution=arbitrary
    assert resolve(environ).node_rank == 0


def test_the_arithmetic_of_uneven_tasks_per_node_is_not_wrong() -> None:
    assert "2 nodes × 2" not in resolve(UNEVEN).arithmetic
    assert "WORLD_SIZE is 3" in resolve(UNEVEN).arithmetic


def test_standalone_is_a_single_node_whatever_the_environment_says() -> None:
    standalone = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    topology = resolve(TWO_TASKS_PER_NODE, standalone)
    assert (topology.nodes, topology.node_rank, topology.level) == (1, 0, "node")


def test_rank_from_a_file_that_is_often_copied_is_warned_about() -> None:
    rank = {"RANK": "1"}
    warnings = [
        note for note in resolve(PLAIN | {"RANK": ""}, env_file=rank).notes if note.startswith("warning: RANK=1")
    ]
    assert len(warnings) == 1
    assert "--node-rank" in warnings[0]
    assert not any("RANK" in note for note in resolve({}, env_file={"RANK": "0"}).notes)
    assert not any("RANK" in note for note in resolve(PLAIN, env_file=rank).notes)


def test_a_rank_under_its_other_name_is_warned_about_too() -> None:
    notes = resolve({"MASTER_ADDR": "a", "WORLD_SIZE": "2"}, env_file={"NODE_RANK": "1"}).notes
    assert any(note.startswith("warning:") for note in notes)


@pytest.mark.parametrize(("gpus", "said"), [(0, True), (1, False)])
def test_training_on_the_cpu_is_told_in_a_plain_line(gpus: int, said: bool) -> None:
    line = "no GPU visible, training on CPU; in a container add --gpus all"
    assert (line in resolve({}, devices=make_devices(gpus)).notes) == said


def test_an_indexed_job_without_a_number_of_nodes_says_what_to_set() -> None:
    notes = resolve({"JOB_COMPLETION_INDEX": "0"}, fqdn="lm-0.lm.default.svc").notes
    assert any("NNODES" in note for note in notes)


@given(st.integers(1, 2**31), st.integers(0, 2**20))
def test_slurms_port_is_even_and_below_the_ephemeral_ones(job: int, step: int) -> None:
    environ = BARE_SRUN | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
    port = resolve(environ).master_port
    assert port % 2 == 0
    assert 1024 < port < 32_768
    assert resolve(environ | {"SLURM_NODEID": "0", "SLURM_PROCID": "0"}).master_port == port


def test_two_steps_of_a_job_get_different_ports() -> None:
    ports = {resolve(BARE_SRUN | {"SLURM_STEP_ID": str(step)}).master_port for step in range(20)}
    assert len(ports) > 15
