"""The torchrun command and environment that come out of a topology; nothing is started."""

import json
import sys
from pathlib import Path

import pytest
from environments import ENROOT_TASKS, PER_PROCESS, PLAIN, PYTORCHJOB_NEW, TRAINER, TWO_TASKS_PER_NODE
from stand_ins import make_devices, make_sources, plan_for

from slipway.launch.resolve.plan import interfaces, plan_json, plan_lines, resolved_values
from slipway.launch.resolve.settings import SETTINGS, TOPOLOGICAL
from slipway.protocol.binding import LOCAL_CORES, LOCAL_DEVICES
from slipway.protocol.memory import VARIABLE as MEMORY
from slipway.protocol.redact import redact

ALWAYS = ["--max-restarts=0", "--signals-to-handle=SIGQUIT"]
LEASHED = ["setpriv", "--pdeathsig=KILL"]  # no worker outlives torchrun
OURS = [*LEASHED, sys.executable, "-P", "-u", "-m"]
USER = [*LEASHED, "env", "--default-signal=TERM,INT,USR1,HUP", sys.executable, "-u"]


def head(nodes: int, rank: int, processes: int, addr: str, port: int) -> list[str]:
    return [
        "torchrun", f"--nnodes={nodes}", f"--node-rank={rank}", f"--nproc-per-node={processes}", f"--master-addr={addr}",
        f"--master-port={port}", *ALWAYS, "--no-python", "--",
    ]  # fmt: skip


SINGLE = head(1, 0, 2, "127.0.0.1", 40_001)


@pytest.mark.parametrize(
    ("words", "environ", "argv"),
    [
        (["linear"], {}, [*SINGLE, *OURS, "slipway.train.workloads.linear"]),
        (["linear"], {"MASTER_ADDR": "left-over"}, [*SINGLE, *OURS, "slipway.train.workloads.linear"]),
        (["gpt", "--lr", "1e-3"], {}, [*SINGLE, *OURS, "slipway.train.workloads.gpt", "--lr", "1e-3"]),
        (["linear"], PLAIN, [*head(2, 1, 2, "10.0.0.1", 29_501), *OURS, "slipway.train.workloads.linear"]),
        (["linear"], TRAINER, [*head(3, 1, 2, "mnist-node-0-0.mnist", 29_501), *OURS, "slipway.train.workloads.linear"]),
        (["linear"], {"MASTER_PORT": "4000"}, [*head(1, 0, 2, "127.0.0.1", 4000), *OURS, "slipway.train.workloads.linear"]),
        (["train.py", "--its-own", "a b"], {}, [*SINGLE, *USER, "train.py", "--its-own", "a b"]),
        (["-m", "pkg.main", "-v"], {}, [*SINGLE, *USER, "-m", "pkg.main", "-v"]),
        (["linear"], PER_PROCESS, [*OURS, "slipway.train.workloads.linear"]),
        (["train.py", "x"], PER_PROCESS, [*USER, "train.py", "x"]),
    ],
)  # fmt: skip
def test_the_command_line_of_torchrun(
    words: list[str], environ: dict[str, str], argv: list[str], tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("work")
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    assert list(plan_for(tuple(words), environ).argv) == argv


@pytest.mark.parametrize(
    ("environ", "more"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "", "SLIPWAY_DEVICE": "cpu", "SLIPWAY_BACKEND": "gloo", "OMP_NUM_THREADS": "2"}),
        ({"NPROC_PER_NODE": "1"}, {"OMP_NUM_THREADS": "4"}),
        (PER_PROCESS, {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}),
        (PER_PROCESS, {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}),
        (TWO_TASKS_PER_NODE | ENROOT_TASKS, {"RANK": "3", "WORLD_SIZE": "4", "OMP_NUM_THREADS": "2", "MASTER_ADDR": "gpu07"}),
    ],
)  # fmt: skip
def test_the_environment_of_the_workers(environ: dict[str, str], more: dict[str, str]) -> None:
    made = plan_for(environ=environ)
    assert {name: made.env[name] for name in more} == more


def test_with_gpus_their_choice_is_left_to_torch() -> None:
    made = plan_for(devices=make_devices(2))
    assert "CUDA_VISIBLE_DEVICES" not in made.env
    assert (made.env["SLIPWAY_DEVICE"], made.env["SLIPWAY_BACKEND"]) == ("cuda", "nccl")


@pytest.mark.parametrize(
    "environ", [TRAINER | {"PET_STANDALONE": "1"}, PYTORCHJOB_NEW, PLAIN | {"NNODES": "2", "NODE_RANK": "1"}]
)
def test_names_that_torchrun_would_misread_are_removed(environ: dict[str, str]) -> None:
    made = plan_for(environ=environ)
    left = made.environment(environ | {"PATH": "/bin"})
    wrong = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    assert [name for name in left if name.startswith("PET_") or name in wrong] == []
    assert left["PATH"] == "/bin"
    assert set(made.unset) <= set(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLIPWAY_TOKEN", "0123456789abcdef"),
        ("SLIPWAY_NOTIFY", "https://hooks.example/secret"),
        (LOCAL_DEVICES, "MIG-a,MIG-b"),  # of another job
        (LOCAL_CORES, "0-3:4-7"),
        (MEMORY, "/dev/shm/a"),
        ("SLIPWAY_PREVIOUS_OUTCOME", "{}"),
    ],
)
def test_what_is_the_launchers_own_or_another_jobs_does_not_reach_the_workers(name: str, value: str) -> None:
    made = plan_for(environ={name: value})
    assert made.unset == (name,)
    assert name not in made.environment({name: value})


@pytest.mark.parametrize(
    ("slices", "cores", "told"),
    [
        (False, (), (None, None)),
        (True, (), ("MIG-0,MIG-1", None)),
        (False, (0, 1, 2, 3), (None, "0-3:0-3")),
        (True, (0, 1, 2, 3), ("MIG-0,MIG-1", "0-3:0-3")),
    ],
)
def test_each_process_is_told_its_slice_and_the_cores_near_its_gpu(
    slices: bool, cores: tuple[int, ...], told: tuple[str | None, str | None]
) -> None:
    devices = make_devices(2)
    gpus = tuple(gpu._replace(uuid=f"{'MIG' if slices else 'GPU'}-{gpu.number}", cores=cores) for gpu in devices.gpus)
    env = plan_for(devices=devices._replace(gpus=gpus)).env
    assert (env.get(LOCAL_DEVICES), env.get(LOCAL_CORES)) == told


def test_the_users_own_threads_stay() -> None:
    environ = {"OMP_NUM_THREADS": "3"}
    made = plan_for(environ=environ)
    assert "OMP_NUM_THREADS" not in made.env
    assert made.environment(environ)["OMP_NUM_THREADS"] == "3"


def test_the_file_fills_names_that_are_unset_and_leaves_settings_to_the_launcher() -> None:
    file = {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB", "PYTORCH_ALLOC_CONF": "a:b", "SLIPWAY_RUNS": "/runs", "RANK": "0"}
    made = plan_for(environ={"NCCL_NET": "Socket"}, env_file=file)
    assert {name: made.env.get(name) for name in file} == {
        "NCCL_DEBUG": "INFO", "NCCL_NET": None, "PYTORCH_ALLOC_CONF": "a:b", "SLIPWAY_RUNS": None, "RANK": None,
    }  # fmt: skip


def test_what_the_host_lacks_is_added() -> None:
    assert plan_for(mended={"USER": "uid-12345"}).env["USER"] == "uid-12345"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("SLIPWAY_TOKEN", True), ("WANDB_API_KEY", True), ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True), ("PGPASSWORD", True), ("GOOGLE_APPLICATION_CREDENTIALS", True), ("hf_token", True),
        ("MASTER_ADDR", False), ("KEYBOARD", False), ("MONKEY_ISLAND", False), ("OMP_NUM_THREADS", False),
    ],
)  # fmt: skip
def test_secrets_are_known_by_their_names(name: str, secret: bool) -> None:
    assert redact(name, "value") == ("***" if secret else "value")
    assert redact(name, "") == ""


def test_no_secret_is_printed() -> None:
    environ, file = {"SLIPWAY_TOKEN": "hunter2"}, {"NCCL_TOKEN": "hunter3", "SLIPWAY_TOKEN": "hunter4"}
    made = plan_for(environ=environ, env_file=file)
    values = resolved_values(made.topology, make_sources(environ, env_file=file))
    lines = [*plan_lines(made, values, []), json.dumps(plan_json(made, values, {}))]
    assert [line for line in lines if "hunter" in line] == []
    assert [line for line in lines if "SLIPWAY_TOKEN" in line and "***" in line]
    assert made.env["NCCL_TOKEN"] == "hunter3"


def test_secrets_within_values_and_arguments_are_not_printed() -> None:
    words = (
        "linear",
        *["--password", "hunter2", "--api-key=hunter2", "db.pass=hunter2", "--url", "a://u:hunter2@h", "--tokens", "9"],
    )
    made = plan_for(words, env_file={"NCCL_PROXY": "http://me:hunter2@proxy:80"})
    values = resolved_values(made.topology, make_sources({}))
    shown = "\n".join([*plan_lines(made, values, []), json.dumps(plan_json(made, values, {}))])
    assert "hunter" not in shown
    assert "--tokens 9" in shown
    assert "http://me:***@proxy:80" in shown
    assert "hunter2" in made.argv


def test_every_setting_has_a_value_and_a_source_in_the_order_of_the_table() -> None:
    sources = make_sources({"SLIPWAY_RUNS": "/a"}, {"SLIPWAY_RUNS": "/b"}, env_file={"SLIPWAY_RUNS": "/c"})
    values = resolved_values(plan_for().topology, sources)
    assert list(values) == [setting.name for setting in SETTINGS]
    assert values["SLIPWAY_RUNS"].source == "command line (--runs)"
    assert [claim.value for claim in values["SLIPWAY_RUNS"].overruled] == ["/a", "/c"]
    assert set(TOPOLOGICAL) <= set(values)


@pytest.mark.parametrize(
    ("environ", "interface"),
    [
        ({}, "lo"),
        ({"GLOO_SOCKET_IFNAME": "eth7"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, None),  # the rendezvous knows
    ],
)
def test_a_single_node_talks_to_itself_without_asking_for_its_name(
    environ: dict[str, str], interface: str | None
) -> None:
    assert plan_for(environ=environ).env.get("GLOO_SOCKET_IFNAME") == interface


@pytest.mark.parametrize(
    ("environ", "env_file", "told"),
    [
        ({}, {}, (None, None, None, None)),
        ({"SLIPWAY_DEBUG": "1"}, {}, ("distributed", "INFO", "INFO", "/dev/stderr")),
        ({"SLIPWAY_DEBUG": "1", "NCCL_DEBUG": "WARN"}, {}, ("distributed", "INFO", None, "/dev/stderr")),
        ({"SLIPWAY_DEBUG": "1"}, {"NCCL_DEBUG": "WARN"}, ("distributed", "INFO", "WARN", "/dev/stderr")),
        ({"SLIPWAY_DEBUG": "0"}, {}, (None, None, None, None)),
    ],
)
def test_debug_lets_torch_and_nccl_speak_unless_the_user_decided_otherwise(
    environ: dict[str, str], env_file: dict[str, str], told: tuple[str | None, ...]
) -> None:
    env = plan_for(environ=environ, env_file=env_file).env
    names = ("TORCH_LOGS", "TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "NCCL_DEBUG_FILE")
    assert tuple(env.get(name) for name in names) == told


@pytest.mark.parametrize(
    ("words", "environ", "gpus", "file"),
    [
        (("linear",), {"NCCL_DEBUG": "INFO"}, 2, "/dev/stderr"),
        (("linear",), {}, 2, "/dev/stderr"),  # a site may ask in /etc/nccl.conf
        (("linear",), {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.%h"}, 2, None),
        (("linear",), {"NCCL_DEBUG": "INFO"}, 0, None),
        (("-m", "own"), {"NCCL_DEBUG": "INFO"}, 2, None),  # a script's stdout is left alone
    ],
)
def test_what_nccl_says_goes_where_nobody_silences_it(
    words: tuple[str, ...], environ: dict[str, str], gpus: int, file: str | None
) -> None:
    assert plan_for(words, environ, devices=make_devices(gpus)).env.get("NCCL_DEBUG_FILE") == file


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, {"NCCL_SOCKET_IFNAME": "=eth1", "GLOO_SOCKET_IFNAME": "eth1"}),  # NCCL would take eth10, too
        ({"NCCL_SOCKET_IFNAME": "ib0"}, {"GLOO_SOCKET_IFNAME": "eth1"}),
        ({"NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": "eth2"}, {"NCCL_SOCKET_IFNAME": "=eth1"}),
    ],
)
def test_one_interface_is_kept_to_where_the_user_named_none(environ: dict[str, str], told: dict[str, str]) -> None:
    assert interfaces("eth1", environ) == told


@pytest.mark.parametrize(
    ("environ", "env_file", "gpus", "order"),
    [
        ({}, {}, 2, "PCI_BUS_ID"),
        ({}, {}, 0, None),
        ({"NPROC_PER_NODE": "cpu"}, {}, 2, None),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}, 2, None),
        ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 2, "FASTEST_FIRST"),
    ],
)
def test_cuda_counts_gpus_as_nvml_does_unless_the_user_decided_otherwise(
    environ: dict[str, str], env_file: dict[str, str], gpus: int, order: str | None
) -> None:
    made = plan_for(environ=environ, env_file=env_file, devices=make_devices(gpus))
    assert made.env.get("CUDA_DEVICE_ORDER") == order


def test_one_launcher_per_process_leaves_the_interface_to_the_user_even_on_one_node() -> None:
    environ = PER_PROCESS | {"RANK": "1", "WORLD_SIZE": "2"}
    made = plan_for(environ=environ)
    assert (made.topology.nodes, "GLOO_SOCKET_IFNAME" in made.env) == (1, False)


@pytest.mark.parametrize(
    ("environ", "absent"),
    [
        ({}, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}),  # torchrun sets them
        (PLAIN, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}),
        (PER_PROCESS, set()),
    ],
)
def test_only_without_torchrun_the_launcher_places_the_worker(environ: dict[str, str], absent: set[str]) -> None:
    placing = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    assert placing - set(plan_for(environ=environ).env) == absent


def test_what_only_compose_reads_does_not_reach_the_workers() -> None:
    made = plan_for(env_file={"COMPOSE_FILE": "a.yaml", "NNODES": "1", "NCCL_NET": "IB"})
    assert {"COMPOSE_FILE", "NNODES", "NCCL_NET"} & set(made.env) == {"NCCL_NET"}


def test_only_what_is_misread_or_decided_changes_in_the_environment() -> None:
    made = plan_for(environ={"RANK": "0", "PET_X": "1", "HOME": "/h"})
    assert made.unset == ("PET_X", "RANK")
    assert made.environment({"RANK": "0", "PET_X": "1", "HOME": "/h"}) == {"HOME": "/h", **made.env}


def plan_of(environ: dict[str, str], options: list[str], words: tuple[str, ...] = ("linear",)) -> list[str]:
    made = plan_for(words, environ)
    return plan_lines(made, resolved_values(made.topology, make_sources(environ)), options)


def test_the_plan_for_people_is_a_table_of_values_and_a_command() -> None:
    environ = PLAIN | {"NNODES": "3", "RANK": "2", "NODE_RANK": ""}
    lines = plan_of(environ, ["lr  0.1"])
    assert lines[0].startswith("3 nodes × 2 CPU processes")
    rows = lines[lines.index("") + 1 :]
    width = len("SLIPWAY_AFTER_FAILURE_SECONDS")
    assert rows[0] == f"{'WORLD_SIZE':<{width}}  {'3':<17}  environment (NNODES)"
    assert rows[1] == f"{'':<{width}}  overrides 2 from environment (WORLD_SIZE)"
    assert rows[2] == f"{'RANK':<{width}}  {'2':<17}  environment (RANK)"
    assert f"{'SLIPWAY_RUN_DIR':<{width}}  {'-':<17}  default" in rows
    assert f"{'WORKLOAD':<{width}}  gpt --preset tiny  default" in rows
    end = rows.index("")
    assert rows[end : end + 4] == ["", "options of linear:", "lr  0.1", ""]
    assert rows[end + 4 : end + 6] == [TORCHRUN, "unset MASTER_ADDR NNODES NODE_RANK RANK WORLD_SIZE"]
    assert rows[-2].startswith("env CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=2 ")
    assert rows[-2].endswith(" \\")
    assert rows[-1].startswith("  torchrun --nnodes=3 --node-rank=2 ")


TORCHRUN = "torchrun (what the launcher starts, with more variables for the run directory; type run in place of plan to start it):"


@pytest.mark.parametrize(
    ("environ", "words", "said"),
    [
        ({}, ("linear",), TORCHRUN),
        ({}, ("train.py",), "torchrun:"),  # which can be pasted
        ({"WORLD_SIZE": "2+1", "RANK": "2", "MASTER_ADDR": "n0"}, ("train.py",), "torchrun (PLACE is what this spare node learns later):"),
        (PER_PROCESS, ("train.py",), "the workload, as one process of the job:"),
        ({}, ("train.py", "--api-key", "s3cret"), "torchrun (*** is a secret):"),
    ],
)  # fmt: skip
def test_the_plan_says_what_is_started_and_why_it_cannot_be_typed(
    environ: dict[str, str], words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    lines = plan_of(environ, [], words)
    assert said in lines
    assert not any(line.startswith("options of") for line in lines)
    assert any(line.startswith("unset ") for line in lines) is bool(environ)


def test_the_image_is_named_where_there_is_one() -> None:
    made = plan_for()
    inside = made._replace(topology=made.topology._replace(image="0.1.0-abc"))
    values = resolved_values(made.topology, make_sources({}))
    assert plan_lines(inside, values, [])[1] == "in the image 0.1.0-abc"
    assert not any("in the image" in line for line in plan_lines(made, values, []))
