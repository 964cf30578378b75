"""Every row of the contract at the container's door, the winners' sources, and the line of arithmetic."""

from contextlib import nullcontext, suppress

import pytest
from environments import (
    BARE_SRUN,
    CASES,
    ENROOT,
    INDEXED_JOB,
    MPICH,
    PER_PROCESS,
    PLAIN,
    PYTORCHJOB_NEW,
    STEP_OF_SBATCH,
    TRAINER,
    TWO_TASKS_PER_NODE,
    Case,
)
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import make_devices, make_host, make_sources, resolve

from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.sources import Claim
from slipway.launch.resolve.topology import Topology, resolve_topology
from slipway.protocol.errors import CONFIGURATION, LaunchError


def resolve_case(case: Case) -> Topology:
    return resolve(case.env, case.options, devices=make_devices(case.gpus), fqdn=case.fqdn)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_system_is_understood(case: Case) -> None:
    topology = resolve_case(case)
    assert {name: getattr(topology, name) for name in case.want} == case.want


def test_a_job_on_the_cpu_has_none_of_the_gpus_that_are_there() -> None:
    topology = resolve({"NPROC_PER_NODE": "cpu"}, devices=make_devices(2))
    assert (topology.device, topology.gpus) == ("cpu", ())


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
        (
            PLAIN | {"WORLD_SIZE": "64"},
            make_devices(8),
            "64 nodes × 8 GPUs = 512 processes (inside your script WORLD_SIZE is 512)",
        ),
        ({}, make_devices(0), "1 node × 2 CPU processes = 2 processes (inside your script WORLD_SIZE is 2)"),
        ({}, make_devices(0, cpus=1.0), "1 node × 1 CPU process = 1 process (inside your script WORLD_SIZE is 1)"),
        (PER_PROCESS, make_devices(2), "2 nodes × 2 GPUs = 4 processes (inside your script WORLD_SIZE is 4)"),
        (PER_PROCESS, make_devices(1), "2 nodes × 2 GPUs = 4 processes (inside your script WORLD_SIZE is 4)"),
        (
            PLAIN | {"WORLD_SIZE": "2:4"},
            make_devices(8),
            "2 to 4 nodes × 8 GPUs = at most 32 processes (inside your script WORLD_SIZE is 16 to 32)",
        ),
        (
            PLAIN | {"WORLD_SIZE": "2+1"},
            make_devices(8),
            "2 nodes × 8 GPUs = 16 processes (inside your script WORLD_SIZE is 16), and 1 spare node beside them",
        ),
        (
            {"NPROC_PER_NODE": "3", "SLIPWAY_OVERSUBSCRIBE": "1"},
            make_devices(1),
            "1 node × 3 processes sharing 1 GPU = 3 processes (inside your script WORLD_SIZE is 3)",
        ),
        (
            {"NPROC_PER_NODE": "3", "SLIPWAY_OVERSUBSCRIBE": "1"},
            make_devices(2),
            "1 node × 3 processes sharing 2 GPUs = 3 processes (inside your script WORLD_SIZE is 3)",
        ),
        ({"NPROC_PER_NODE": "1"}, make_devices(2), "1 node × 1 GPU = 1 process (inside your script WORLD_SIZE is 1)"),
    ],
)  # fmt: skip
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
    last = resolve(UNEVEN | {"SLURM_NODEID": "1", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}).arithmetic
    assert last == "2 nodes, 3 processes (inside your script WORLD_SIZE is 3)"


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
    line = "no GPU visible (no NVIDIA driver), training on CPU"
    assert (line in resolve({}, devices=make_devices(gpus)).notes) == said


@pytest.mark.parametrize(
    ("image", "runtime", "advice"),
    [
        ("0.1", "docker", "; add --gpus all to docker run"),
        (None, "docker", ""),  # a checkout in a container of somebody else's
        (None, "host", ""),
        (None, "slurm", "; ask Slurm for them with --gpus-per-node=N"),
    ],
)
def test_docker_is_spoken_of_in_the_image_alone(image: str | None, runtime: str, advice: str) -> None:
    host = make_host()._replace(image=image, runtime=runtime)
    notes = resolve_topology(make_sources({}), make_devices(0), host).notes
    assert f"no GPU visible (no NVIDIA driver), training on CPU{advice}" in notes


@pytest.mark.parametrize(
    "where", [BARE_SRUN, INDEXED_JOB | {"NNODES": "4", "MASTER_ADDR": "a"}], ids=["Slurm", "Kubernetes"]
)
@pytest.mark.parametrize(
    ("chosen", "advised"),
    [
        ({}, True),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, True),
        ({"NPROC_PER_NODE": "2"}, True),
        ({"NPROC_PER_NODE": "cpu"}, False),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, False),  # a pod of `slipway render k8s --gpus 0`
        ({"CUDA_VISIBLE_DEVICES": ""}, False),
    ],
)
def test_who_chose_the_cpu_is_not_advised_to_ask_for_gpus(
    where: dict[str, str], chosen: dict[str, str], advised: bool
) -> None:
    [note] = [note for note in resolve({**where, **chosen}).notes if "training on CPU" in note]
    assert (";" in note) == advised, note


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"JOB_COMPLETION_INDEX": "0"}, True),
        ({"JOB_COMPLETION_INDEX": "0", "NNODES": "4"}, False),
        ({"JOB_COMPLETION_INDEX": "2", "NNODES": "4"}, False),
        ({}, False),
    ],
)
def test_an_indexed_job_without_a_number_of_nodes_says_what_to_set(environ: dict[str, str], told: bool) -> None:
    notes = resolve(environ, fqdn=f"lm-{environ.get('JOB_COMPLETION_INDEX', 0)}.lm.default.svc").notes
    assert any("NNODES" in note for note in notes) == told


def test_on_slurm_gpus_are_asked_for_in_its_own_words() -> None:
    assert any("--gpus-per-node=N" in note for note in resolve(BARE_SRUN).notes)
    assert not any("no GPU" in note for note in resolve({"NPROC_PER_NODE": "cpu"}, devices=make_devices(1)).notes)


WITH_A_SPARE_NODE = BARE_SRUN | {
    "SLURM_STEP_NUM_NODES": "3", "SLURM_JOB_NODELIST": "gpu[07-09]", "SLURM_NODEID": "0", "SLIPWAY_SPARES": "1"
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[07-08]"}, "2 nodes, and only 1 of them"),  # a batch script
        (STEP_OF_SBATCH, "4 nodes, and only 2 of them"),
        (STEP_OF_SBATCH | {"NODE_RANK": "00"}, "4 nodes, and only 2 of them"),
        (STEP_OF_SBATCH | {"SLURM_NODEID": "1"}, ""),  # node 0 says it
        (STEP_OF_SBATCH | {"NODE_RANK": "+1"}, ""),
        (BARE_SRUN | {"SLURM_NODEID": "0"}, ""),
        (WITH_A_SPARE_NODE, ""),
        (WITH_A_SPARE_NODE | {"SLURM_JOB_NODELIST": "gpu[07-10]"}, "4 nodes, and only 3 of them"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu07"}, ""),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu07", **PLAIN, "RANK": "0"}, ""),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu["}, ""),
        ({"SLURM_JOB_NODELIST": "gpu[07-08]"}, ""),
    ],
    ids=[
        "a batch script",
        "a smaller step",
        "its node 0 by another spelling",
        "its node 1",
        "its node 1 by another spelling",
        "a step of all",
        "a step of all with a spare node",
        "a smaller step with a spare node",
        "one node",
        "more than the job has",
        "a damaged list",
        "no job",
    ],
)
def test_nodes_of_a_slurm_job_that_stay_idle_are_told_with_the_srun_to_type(environ: dict[str, str], told: str) -> None:
    lines = [note for note in resolve(environ).notes if "srun" in note]
    assert bool(lines) == bool(told)
    assert all(line.startswith("warning: this Slurm job has ") and told in line for line in lines)


# As Slurm 22.05 sets them in a step of the first component.
HETEROGENEOUS = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
    "SLURM_STEP_NODELIST": "node1", "SLURM_JOB_NODELIST": "node1", "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "node1", "SLURM_JOB_NODELIST_HET_GROUP_1": "node[2-3]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({}, "node2, node3"),
        ({"SLURM_STEP_NODELIST": "node[1-3]", "SLURM_STEP_NUM_NODES": "3"}, ""),  # srun --het-group=0,1
        ({"SLURM_HET_SIZE": "1"}, ""),
        ({"SLURM_HET_SIZE": "", "SLURM_JOB_NODELIST_HET_GROUP_1": "node[2-3]"}, ""),
    ],
)
def test_idle_components_of_a_heterogeneous_slurm_job_are_named(changes: dict[str, str], idle: str) -> None:
    lines = [note for note in resolve(HETEROGENEOUS | changes).notes if "heterogeneous" in note]
    assert len(lines) == bool(idle)
    assert all(f"stay idle: {idle}. " in line and "srun --het-group=0,1 " in line for line in lines)


SHELL = TWO_TASKS_PER_NODE | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_PTY_PORT": "40123"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (SHELL, True),
        (SHELL | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}, False),  # rank 0 says it
        (SHELL | {"SLURM_PTY_PORT": ""}, False),
        (BARE_SRUN | {"SLURM_NODEID": "0", "SLURM_PTY_PORT": "40123"}, False),  # one launcher per node
        (PER_PROCESS | {"RANK": "0", "LOCAL_RANK": "0", "SLURM_PTY_PORT": "40123"}, False),  # which no srun started
    ],
)
def test_a_launcher_in_a_shell_of_srun_says_what_it_takes_itself_for(environ: dict[str, str], told: bool) -> None:
    lines = [note for note in resolve(environ).notes if "srun --pty" in note]
    assert len(lines) == told
    assert all("one of 2 launchers" in line and line.endswith("add --standalone") for line in lines)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"PMIX_RANK": "1"},
            "PMIX_RANK=1 is ignored, because OMPI_COMM_WORLD_SIZE and JSM_NAMESPACE_SIZE and SLURM_STEP_ID are not set",
        ),
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0 is ignored"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE=2 is ignored, because PMI_RANK is not set"),
        ({"PMI_SIZE": "1"}, ""),
        (PLAIN | {"PMIX_RANK": "1"}, ""),
        (BARE_SRUN | {"PMIX_RANK": "1"}, ""),
    ],
    ids=str,
)
def test_half_of_what_a_starter_sets_is_ignored_with_a_line(environ: dict[str, str], told: str) -> None:
    lines = [note for note in resolve(environ).notes if "is ignored, because" in note]
    assert len(lines) == bool(told)
    assert all(told in line and "NNODES, NODE_RANK" in line for line in lines)


@pytest.mark.parametrize(
    ("environ", "ignored", "values"),
    [
        ({"MASTER_ADDR": "a:b:c"}, "MASTER_ADDR=a:b:c (from the environment): it is not an IPv6 address", ("127.0.0.1", 40_001)),
        ({"MASTER_PORT": "$PORT"}, "MASTER_PORT=$PORT (from the environment): this placeholder", ("127.0.0.1", 40_001)),
        ({"MASTER_ADDR": "other", "MASTER_PORT": "4000"}, "", ("other", 4000)),
    ],
)  # fmt: skip
def test_a_single_node_ignores_with_a_line_what_cannot_say_where_nodes_meet(
    environ: dict[str, str], ignored: str, values: tuple[str, int]
) -> None:
    topology = resolve(environ)
    assert (topology.master_addr, topology.master_port) == values
    lines = [note for note in topology.notes if note.startswith("warning: ignored")]
    assert len(lines) == bool(ignored)
    assert all(
        line.startswith(f"warning: ignored, because a single node does not need it: {ignored}") for line in lines
    )
    for several in (PLAIN | environ, PER_PROCESS | environ):  # there it counts
        with pytest.raises(LaunchError) if ignored else nullcontext():
            resolve(several)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "[::]", "::ffff:0.0.0.0"])
def test_an_address_to_listen_on_is_no_address_of_another_node(address: str) -> None:
    with pytest.raises(LaunchError, match="is an address to listen on") as caught:
        resolve(PLAIN | {"MASTER_ADDR": address, "RANK": "1"})
    assert caught.value.code == CONFIGURATION
    assert resolve(PLAIN | {"MASTER_ADDR": address, "RANK": "0"}).nodes == 2


def test_one_launcher_per_process_is_told_with_its_rank() -> None:
    notes = resolve(PER_PROCESS).notes
    assert any(note.startswith("one launcher per process (from LOCAL_RANK): this one runs rank 3") for note in notes)
    assert not any("per process" in note for note in resolve(PLAIN).notes)


@pytest.mark.parametrize(
    ("environ", "restarts", "replaces", "begun"),
    [
        ({}, 0, False, False),
        (BARE_SRUN, 0, False, False),
        (TRAINER | {"JOB_COMPLETION_INDEX": ""}, 0, False, False),
        (BARE_SRUN | {"SLURM_RESTART_COUNT": "0"}, 0, False, False),
        (BARE_SRUN | {"SLURM_RESTART_COUNT": "1"}, 1, False, True),
        (BARE_SRUN | {"SLURM_RESTART_COUNT": "12"}, 12, False, True),
        (BARE_SRUN | {"SLURM_RESTART_COUNT": "often"}, 0, False, False),
        (BARE_SRUN | {"SLURM_RESTART_COUNT": "2"} | INDEXED_JOB | {"RANK": "1"}, 2, True, True),
        (INDEXED_JOB | {"NNODES": "4"}, 0, True, True),
    ],
)
def test_whether_the_job_may_have_begun_before(
    environ: dict[str, str], restarts: int, replaces: bool, begun: bool
) -> None:
    options = {"RANK": "1"} if environ.get("JOB_COMPLETION_INDEX") else {}
    topology = resolve(environ, options, fqdn="lm-2.lm.default.svc")
    assert (topology.restarts, topology.replaces, topology.may_have_begun) == (restarts, replaces, begun)


@pytest.mark.parametrize(
    ("environ", "scheduler"),
    [
        ({}, ""),
        (BARE_SRUN, "Slurm"),
        (BARE_SRUN | INDEXED_JOB, "Slurm"),  # the first that is here decides
        (TRAINER | BARE_SRUN, ""),
        (INDEXED_JOB | {"NNODES": "4", "MASTER_ADDR": "a"}, ""),
    ],
)
def test_slurm_alone_can_only_requeue_the_whole_job(environ: dict[str, str], scheduler: str) -> None:
    assert resolve(environ, {"RANK": "1"} if environ else {}).requeues == scheduler


@pytest.mark.parametrize(
    ("environ", "rank", "world", "ports"),
    [
        ({"MASTER_PORT": "4000"}, 0, 2, (4000, 4000)),
        ({"MASTER_PORT": "0"}, 0, 2, (40_001, 40_001)),  # what this host says is free
        ({"MASTER_PORT": "00"}, 0, 2, (40_001, 40_001)),
        ({"MASTER_PORT": "+4000"}, 0, 2, (4000, 4000)),
        (PLAIN, 1, 4, (29_500, 29_501)),  # the launchers meet on the first, torchrun's store takes the next
        (PLAIN | {"MASTER_PORT": "4001"}, 1, 4, (4001, 4002)),
        (PLAIN | {"WORLD_SIZE": "2:4"}, 1, 8, (29_500, 29_501)),
        (PER_PROCESS, 3, 4, (29_500, 29_500)),
        (PER_PROCESS | {"RANK": "0", "LOCAL_RANK": "0"}, 0, 4, (29_500, 29_500)),
        (PER_PROCESS | {"RANK": "2", "LOCAL_RANK": "0"}, 2, 4, (29_500, 29_500)),
    ],
)
def test_who_decides_for_all_and_where_the_nodes_and_the_workers_meet(
    environ: dict[str, str], rank: int, world: int, ports: tuple[int, int]
) -> None:
    topology = resolve(environ)
    assert (topology.rank, topology.world_size) == (rank, world)
    assert (topology.master_port, topology.store_port) == ports


@pytest.mark.parametrize(
    ("environ", "processes", "process_rank", "ranks"),
    [
        ({}, 3, None, (0, 1, 2)),
        (PLAIN, 3, None, (3, 4, 5)),
        (PLAIN | {"NNODES": "4", "RANK": "3"}, 2, None, (6, 7)),
        (PER_PROCESS, 2, 3, (3,)),
        (PER_PROCESS | {"RANK": "0", "LOCAL_RANK": "0"}, 2, 0, (0,)),
    ],
)
def test_a_launcher_knows_the_ranks_of_its_processes(
    environ: dict[str, str], processes: int, process_rank: int | None, ranks: tuple[int, ...]
) -> None:
    topology = resolve(environ, {"NPROC_PER_NODE": str(processes)})
    assert (topology.process_rank, topology.ranks) == (process_rank, ranks)


@pytest.mark.parametrize(
    ("environ", "start"),
    [
        (PLAIN, None),
        (BARE_SRUN, "7, requeued 0 times"),
        (BARE_SRUN | {"SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "2"}, "7.3, requeued 2 times"),
    ],
)
def test_the_launchers_of_one_start_of_a_job_share_its_name(environ: dict[str, str], start: str | None) -> None:
    assert {resolve(environ | {"SLURM_NODEID": node}).start for node in "01"} == {start}


@pytest.mark.parametrize(("typed", "port", "is_free"), [({}, 40_001, True), ({"MASTER_PORT": "4000"}, 4000, False)])
def test_a_single_node_takes_any_free_port_unless_one_was_typed(
    typed: dict[str, str], port: int, is_free: bool
) -> None:
    topology = resolve({}, typed)
    assert (topology.master_port, topology.has_free_port) == (port, is_free)


@pytest.mark.parametrize(("typed", "elastic"), [("2", False), ("2:4", True), ("2+1", False)])
def test_the_number_of_nodes_is_shown_as_it_was_typed(typed: str, elastic: bool) -> None:
    topology = resolve(PLAIN | {"WORLD_SIZE": typed})
    assert (topology.size, topology.elastic) == (typed, elastic)


def test_what_the_file_says_under_the_other_name_is_kept_as_turned_down() -> None:
    overruled = resolve(PLAIN, env_file={"NODE_RANK": "7", "RANK": "8"}).values["RANK"].overruled
    assert overruled == (Claim("7", ".env (NODE_RANK)"), Claim("8", ".env (RANK)"))


def test_each_process_of_a_launcher_per_process_belongs_to_its_node() -> None:
    nodes = [resolve(PER_PROCESS | {"RANK": str(rank), "LOCAL_RANK": str(rank % 2)}).node_rank for rank in range(4)]
    assert nodes == [0, 0, 1, 1]


@pytest.mark.parametrize(("step", "port"), [("0", 31_470), ("1", 28_610)])
def test_the_port_of_a_step_is_the_same_on_all_nodes_and_in_all_versions(step: str, port: int) -> None:
    assert resolve(BARE_SRUN | {"SLURM_STEP_ID": step}).master_port == port


@given(st.integers(1, 2**31), st.integers(0, 2**20))
def test_slurms_port_is_even_and_below_the_ephemeral_ones(job: int, step: int) -> None:
    environ = BARE_SRUN | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
    port = resolve(environ).master_port
    assert port % 2 == 0
    assert 20_000 <= port < 32_768
    assert resolve(environ | {"SLURM_NODEID": "0", "SLURM_PROCID": "0"}).master_port == port


def test_two_steps_of_a_job_get_different_ports() -> None:
    ports = {resolve(BARE_SRUN | {"SLURM_STEP_ID": str(step)}).master_port for step in range(20)}
    assert len(ports) > 15


UNKNOWN = [
    {"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "0", "FLUX_JOB_NNODES": "2"},
    {"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "3"},
    {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"},
    {"GRID_NUM_NODES": "3", "GRID_NODE_INDEX": "2"},
    {"MPIRUN_NPROCS": "2", "MPIRUN_RANK": "0"},
    {"_CONDOR_NPROCS": "2", "_CONDOR_PROCNO": "1"},
    {"HOSTNAME": "4", "POOL_NUM_NODES": "2", "POOL_NODE_ID": "1"},  # after a number that counts nothing
]
TFJOB = {
    "TF_CONFIG": '{"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}}'
}
PBSDSH = [
    {"PBS_JOBID": "7.head", "PBS_NODENUM": "1", "PBS_TASKNUM": "1"},
    {"PBS_JOBID": "7.head", "PBS_NODENUM": "0", "PBS_TASKNUM": "2"},
]


@pytest.mark.parametrize("environ", [*UNKNOWN, *PBSDSH, TFJOB], ids=lambda environ: next(iter(environ)))
def test_one_of_several_that_an_unknown_starter_started_is_no_job_of_its_own(environ: dict[str, str]) -> None:
    with pytest.raises(
        LaunchError,
        match=r"(does not (know|say how many)|TF_CONFIG names 3 tasks).* set NNODES, NODE_RANK and MASTER_ADDR.* type --nnodes 1",
    ) as caught:
        resolve(environ)
    assert caught.value.code == CONFIGURATION
    assert resolve(environ, {"WORLD_SIZE": "1"}).nodes == 1
    assert resolve(environ | {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n0"}).nodes == 2


@pytest.mark.parametrize(
    "environ",
    [
        {"CI_NODE_TOTAL": "4", "CI_NODE_INDEX": "1"},
        {"TF_CONFIG": '{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}'},
        {"TF_CONFIG": '{"cluster": {"worker": ["a:2222", "b:2222"]}}'},
        {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}, "cluster": {"worker": 3}}'},
        {"TF_CONFIG": "[1]"},
        {"TF_CONFIG": "worker"},
        {"PBS_JOBID": "7.head", "PBS_NODENUM": "0", "PBS_TASKNUM": "1"},
        {"AWS_BATCH_JOB_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ID": "5e:3"},
        {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
        {"CLOUD_RUN_TASK_INDEX": "1", "CLOUD_RUN_TASK_COUNT": "4"},
        {"FLUX_JOB_SIZE": "1", "FLUX_TASK_RANK": "0"},
        {"CACHE_SIZE": "100", "BATCH_SIZE": "4"},
        {"TRAIN_BATCH_SIZE": "32", "TRAIN_LORA_RANK": "8"},
        {"LORA_GROUP_SIZE": "32", "LORA_RANK": "8"},
        {"GRPO_NUM_TASKS": "32", "GRPO_ADAPTER_RANK": "32"},
        {"POOL_CACHE_SIZE": "100", "POOL_NODE_ID": "3"},
        {"LSB_JOBID": "41", "LSB_MCPU_HOSTS": "n0 8 n1 8"},
        {"HOROVOD_SIZE": "2", "CI_RANK": "1", "RUNNER_RANK": "1"},  # whose ranks are another's
        {"POOL_NUM_NODES": "2", "POOL_NODE_ID": "7"},
        {"POOL_NUM_NODES": "2", "POOL_NODE_ID": "2"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"PMI_SIZE": "2", "PMI_LOCAL_RANK": "0"},
        {"VLLM_DP_SIZE": "2", "VLLM_DP_RANK": "0"},
        {"VLLM_WORLD_SIZE": "2", "VLLM_RANK": "0"},
        {"TP_SIZE": "4", "TP_RANK": "1"},
        {"MODEL_GROUP_SIZE": "4", "MODEL_RANK": "1"},
        {"WORLD_NUM_NODES": "4", "WORLD_RANK": "1"},
        {"DP_WORLD_SIZE": "4", "DP_RANK": "1"},
    ],
    ids=str,
)
def test_what_is_a_job_of_its_own_starts_as_one(environ: dict[str, str]) -> None:
    assert resolve(environ).nodes == 1


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "does not report how many of them are on this node"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "n0"}, "does not report how many of them are on this node"),
        ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-2"}, "SM_CURRENT_HOST=algo-2 is not among SM_HOSTS"),
        (
            {"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"},
            "SM_HOSTS=algo-1 is no JSON. Set NNODES, NODE_RANK and MASTER_ADDR, or add --standalone",
        ),
        ({"CLUSTER_SPEC": "{}"}, "CLUSTER_SPEC={} has no cluster and task"),
        ({"LSF_PM_TASKID": "2", "LSB_MCPU_HOSTS": " "}, "RANK=1 (from LSF (LSF_PM_TASKID - 1)), but WORLD_SIZE"),
        ({"JOB_COMPLETION_INDEX": "3"}, "or --standalone for a single node"),
        (BARE_SRUN | {"PMI_RANK": "2", "PMI_SIZE": "3"}, "PMI_RANK=2 of PMI_SIZE=3, but the Slurm step says SLURM_PROCID=1 of 2"),
        (MPICH | {"MASTER_ADDR": ""}, "add -genv MASTER_ADDR HOST to mpiexec"),
    ],
)  # fmt: skip
def test_what_a_starter_says_that_makes_no_sense_ends_with_78(environ: dict[str, str], said: str) -> None:
    with pytest.raises(LaunchError) as caught:
        resolve(environ)
    assert said in str(caught.value)
    assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize("digits", ["²", "1²", "①", "-1", "1.0", ""])
def test_a_number_of_a_scheduler_that_python_cannot_read_is_a_mistake_and_no_crash(digits: str) -> None:
    for case in CASES:
        for name in case.env:
            if case.env[name].isdecimal():
                with suppress(LaunchError):
                    resolve(case.env | {name: digits})


@pytest.mark.parametrize(
    ("environ", "options", "nodes", "spares", "ranks"),
    [
        (PLAIN | {"WORLD_SIZE": "2+1"}, {}, 2, 1, (2, 3)),
        (PLAIN | {"WORLD_SIZE": "2+1", "RANK": "2"}, {}, 2, 1, ()),
        (PLAIN | {"WORLD_SIZE": "3+2", "RANK": "4"}, {}, 3, 2, ()),
        (PLAIN | {"SLIPWAY_SPARES": "1", "RANK": "2"}, {}, 2, 1, ()),
        (PLAIN | {"WORLD_SIZE": "2+1", "SLIPWAY_SPARES": "1"}, {}, 2, 1, (2, 3)),
        (PLAIN | {"NNODES": "4+1"}, {}, 4, 1, (2, 3)),
        (PLAIN | {"SLIPWAY_SPARES": "0"}, {}, 2, 0, (2, 3)),
        (PLAIN | {"WORLD_SIZE": "3", "SLIPWAY_SPARES": "1"}, {}, 3, 1, (2, 3)),
        (TRAINER | {"PET_NNODES": "3+1"}, {}, 3, 1, (2, 3)),
        (BARE_SRUN | {"SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "2", "SLIPWAY_SPARES": "1"}, {}, 2, 1, ()),
        (BARE_SRUN | {"SLURM_STEP_NUM_NODES": "3"}, {"SLIPWAY_SPARES": "1"}, 2, 1, (2, 3)),
        (BARE_SRUN | {"SLURM_STEP_NUM_NODES": "3"}, {"WORLD_SIZE": "2+1"}, 2, 1, (2, 3)),
        (BARE_SRUN | {"SLURM_STEP_NUM_NODES": "3"}, {"WORLD_SIZE": "2", "SLIPWAY_SPARES": "1"}, 2, 1, (2, 3)),
    ],
)
def test_spare_nodes_wait_beside_those_of_the_job(
    environ: dict[str, str], options: dict[str, str], nodes: int, spares: int, ranks: tuple[int, ...]
) -> None:
    """What people type counts the nodes of the job, what a scheduler counts is all that it starts."""
    topology = resolve({"NPROC_PER_NODE": "2"} | environ, options, devices=make_devices(2))
    assert (topology.nodes, topology.least, topology.spares) == (nodes, nodes, spares)
    assert (topology.ranks, topology.is_spare) == (ranks, not ranks)
    assert any("is a spare node" in note for note in topology.notes) == topology.is_spare


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (PLAIN | {"WORLD_SIZE": "2+1", "RANK": "0"}, "1 spare node can take the place of any node"),
        (PLAIN | {"WORLD_SIZE": "3+2", "RANK": "0"}, "2 spare nodes can take the place of any node"),
        (
            PLAIN | {"WORLD_SIZE": "2+2", "RANK": "0"},
            "2 spare nodes can take the place of any node but node 0: it can be replaced where there are more nodes than spare nodes, "
            "else two groups of them could continue without each other",
        ),
        (
            BARE_SRUN | {"SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "0", "SLIPWAY_SPARES": "1"},
            "1 spare node can take the place of any node but node 0: when that is lost, the job has to be requeued (Slurm)",
        ),
    ],
)
def test_node_0_says_whose_places_spare_nodes_can_take(environ: dict[str, str], says: str) -> None:
    assert says in resolve({"NPROC_PER_NODE": "2"} | environ, devices=make_devices(2)).notes


def test_a_job_without_spare_nodes_speaks_of_none() -> None:
    assert not any("spare" in note for note in resolve(PLAIN | {"RANK": "0"}, devices=make_devices(2)).notes)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (
            {"WORLD_SIZE": "2+1", "RANK": "3"},
            "RANK=3 (from the environment), but WORLD_SIZE=2+1 (from the environment) allows 0 to 2",
        ),
        ({"SLIPWAY_SPARES": "1", "RANK": "3"}, "allows 0 to 2 with 1 spare node among them"),
        ({"WORLD_SIZE": "1", "RANK": "0", "SLIPWAY_SPARES": "1"}, "has at least two nodes beside them"),
        (
            {"WORLD_SIZE": "", "RANK": "", "SLIPWAY_SPARES": "1"},
            "SLIPWAY_SPARES=1 (from the environment), but WORLD_SIZE=1 (from default)",
        ),
        ({"WORLD_SIZE": "2:4", "SLIPWAY_SPARES": "1"}, "is an elastic job"),
        ({"WORLD_SIZE": "2+1", "SLIPWAY_SPARES": "2"}, "make them equal"),
        ({"WORLD_SIZE": "2+1", "SLIPWAY_SPARES": "0"}, "make them equal"),
        (BARE_SRUN | {"WORLD_SIZE": "", "RANK": "", "SLIPWAY_SPARES": "1"}, "counts 2, spare nodes among them, which leaves 1"),
        (PER_PROCESS | {"SLIPWAY_SPARES": "1"}, "one launcher per process"),
    ],
)  # fmt: skip
def test_spare_nodes_that_cannot_be_are_refused(environ: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError) as caught:
        resolve(PLAIN | environ, devices=make_devices(2))
    assert caught.value.code == CONFIGURATION
    assert says in str(caught.value)
