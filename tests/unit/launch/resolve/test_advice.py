"""One table of advice for each runtime: nobody in a pod or a Slurm job is told what to type behind `docker run`."""

import re
from functools import partial
from pathlib import Path

import pytest
from environments import BARE_SRUN, INDEXED_JOB
from stand_ins import make_devices, make_host, resolve

from slipway.check.quick import quick_check
from slipway.launch.attempt.ending import Facts, choose_outcome
from slipway.launch.resolve.advice import ADVICE, advise
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.launch.verdict.block import what_to_do
from slipway.launch.verdict.cause import said
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.errors import LaunchError

RUNTIMES = ("docker", "kubernetes", "slurm", "host")
DOCKERS = re.compile(r"docker run|--gpus all|--shm-size|--ulimit|--pids-limit|--tmpfs|-v \"")
PODS, SLURMS = (
    {**INDEXED_JOB, "NNODES": "1", "JOB_COMPLETION_INDEX": "0"},
    {**BARE_SRUN, "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"},
)


@pytest.mark.parametrize("lacking", ADVICE)
def test_each_runtime_has_advice_of_its_own_kind(lacking: str) -> None:
    assert {*ADVICE[lacking], "host"} - {"compose"} == set(RUNTIMES)
    for runtime in ("kubernetes", "slurm"):
        assert not DOCKERS.search(advise(lacking, runtime, "/checkpoints"))


@pytest.mark.parametrize("lacking", ADVICE)
def test_under_compose_nothing_is_said_of_options_that_it_lacks(lacking: str) -> None:
    told = advise(lacking, "compose", "/checkpoints")
    assert not re.search(r"docker run|--(gpus|shm-size|ulimit|pids-limit|tmpfs|cpus|device|network)", told)


@pytest.mark.parametrize("environ", [PODS, SLURMS], ids=["kubernetes", "slurm"])
def test_what_is_said_of_missing_gpus_fits_the_runtime(environ: dict[str, str]) -> None:
    assert not DOCKERS.search("\n".join(resolve(environ).notes))
    for wish in ({"NPROC_PER_NODE": "gpu"}, {"SLIPWAY_BACKEND": "nccl"}):
        with pytest.raises(LaunchError) as caught:
            resolve({**environ, **wish})
        assert not DOCKERS.search(str(caught.value))


def test_a_pod_that_knows_no_master_is_told_of_services() -> None:
    with pytest.raises(LaunchError, match="headless Service") as caught:
        resolve({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "WORLD_SIZE": "2", "RANK": "1"})
    assert not DOCKERS.search(str(caught.value))


@pytest.mark.parametrize("runtime", ["kubernetes", "slurm"])
def test_what_a_job_ends_with_fits_the_runtime(tmp_path: Path, runtime: str) -> None:
    lines = ["RuntimeError: unable to allocate shared memory(shm) for file </torch_1>"]
    facts = Facts(
        0, "host", builtin=False, ranks=(0,), status=1, failures=[{"rank": 0, "exitcode": 1}], last={0: lines}
    )
    told = what_to_do(choose_outcome(facts, NodeDirectory(tmp_path), 1.0), partial(advise, runtime=runtime))
    assert "/dev/shm" in told
    assert not DOCKERS.search(told)


@pytest.mark.parametrize(
    ("runtime", "says"),
    [("docker", "printf 'FROM mine:1\\nUSER root\\nRUN pip install einops\\nUSER 1000:0\\n' | docker build --tag mine -; then name mine as the image to start. A package is usually called like its module;"), ("host", "(pip install einops)"),
     ("slurm", "(images/extend)"), ("kubernetes", "(images/extend)")],
)  # fmt: skip
def test_a_script_that_lacks_a_package_says_how_it_gets_it(tmp_path: Path, runtime: str, says: str) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "ModuleNotFoundError: No module named 'einops.layers'",
    ]
    facts = Facts(
        0, "host", builtin=False, ranks=(0,), status=1, failures=[{"rank": 0, "exitcode": 1}], last={0: lines}
    )
    outcome = choose_outcome(facts, NodeDirectory(tmp_path), 1.0)
    told = what_to_do(outcome, partial(advise, runtime=runtime, target="mine:1"))
    assert outcome.word == "failed"
    assert says in told
    assert told.endswith("; if the module is a file of yours, start in its folder or set PYTHONPATH")


@pytest.mark.parametrize("runtime", ["kubernetes", "slurm"])
def test_the_rows_of_a_check_fit_the_runtime(tmp_path: Path, runtime: str) -> None:
    host = make_host()._replace(runtime=runtime)
    devices = make_devices(0)._replace(driver="550.54")  # a driver that shows no GPU
    rows = quick_check({}, host, devices, tmp_path, None)
    assert any(row.what == "driver" and row.advice for row in rows)
    assert not [row for row in rows if DOCKERS.search(row.advice)]


@pytest.mark.parametrize("chosen", [{"NPROC_PER_NODE": "cpu"}, {"NVIDIA_VISIBLE_DEVICES": "void"}])
def test_the_row_of_the_driver_advises_nobody_who_chose_the_cpu(tmp_path: Path, chosen: dict[str, str]) -> None:
    devices = make_devices(0)._replace(driver="550.54")
    [row] = [row for row in quick_check(chosen, make_host(), devices, tmp_path, None) if row.what == "driver"]
    assert (row.level, row.advice) == ("ok", "")


def test_a_node_that_computed_wrongly_is_tested_before_it_is_used_again() -> None:
    cause = said("UnhealthyError: rank 1 computed wrongly: a micro-batch of rank 0 differs, first in the loss")
    told = what_to_do(Outcome(0, "host", "unhealthy", 1.0, rank=1, cause=cause), lambda lack: "")
    assert told.startswith("type `slipway check --burn 60` on this node before it is used again")
