"""What slurm/train.sbatch makes of each exit code, with programs in the place of Slurm's that only write down how they were called."""

import subprocess
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1

import pytest

from slipway.protocol.errors import EXITS, FAILED, PEER, STOPPED, UNHEALTHY

SBATCH = Path(__file__).parents[2] / "slurm/train.sbatch"
# What srun makes of a task that was ended by one of these.
KILLED, *UNHEARD = (128 + number for number in (SIGKILL, SIGUSR1, SIGTERM))
# "requeue" and "retry" of the table; a failed workload was retried by the launcher already.
REQUEUED = {STOPPED, PEER, KILLED, *UNHEARD}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder with `srun` and `scontrol`, and a virtual environment with a launcher."""
    for name, body in {
        "srun": 'echo "$@" >>"$CALLS.srun"; [[ "$1" != --help ]] || { echo --container-image; exit; }; exit "$CODE"',
        "scontrol": 'if [[ "$*" == *show* ]]; then echo "$RECORD"; else echo "$@" >>"$CALLS.scontrol"; exit "${REFUSED:-0}"; fi',
        "slipway": "exit 1",
    }.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    return tmp_path


def submitted(cluster: Path, *words: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """The batch script, as Slurm starts it."""
    environ = {
        "PATH": f"{cluster}/bin:/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(cluster),
        "SLURM_JOB_ID": "7",
        "CALLS": str(cluster / "calls"),
        "CODE": str(code),
        "RECORD": "JobId=7 JobName=slipway Restarts=0 JOB_GRES=(null) Network=(null)",
        "VENV": str(cluster),
        **variables,
    }
    return subprocess.run(["bash", SBATCH, *words], env=environ, capture_output=True, text=True)


def calls(cluster: Path, program: str) -> str:
    """The last call of a program."""
    file = cluster / f"calls.{program}"
    return file.read_text().splitlines()[-1] if file.exists() else ""


@pytest.mark.parametrize("code", [*EXITS, KILLED, *UNHEARD, 3])
def test_a_job_is_requeued_where_the_table_says_so(cluster: Path, code: int) -> None:
    done = submitted(cluster, code=code)
    assert done.returncode == code
    assert calls(cluster, "scontrol") == ("requeue 7" if code in REQUEUED else "")
    said = (
        "requeueing: "
        if code in REQUEUED
        else "a node is unhealthy"
        if code == UNHEALTHY
        else "not requeued: "
        if code
        else "done; "
    )
    assert done.stderr.startswith(f"train.sbatch: {said}")


def test_the_table_of_exit_codes_agrees() -> None:
    asked = {code for code, row in EXITS.items() if row.then in ("requeue", "retry")}
    assert asked == {code for code in REQUEUED if code < 128}
    assert EXITS[FAILED].then == "retry within its limit"


def test_a_job_is_not_requeued_for_ever(cluster: Path) -> None:
    done = submitted(cluster, code=STOPPED, MAX_REQUEUES="3", RECORD="JobId=7 Restarts=3 JOB_GRES=(null)")
    assert done.returncode == STOPPED
    assert not calls(cluster, "scontrol")
    assert "MAX_REQUEUES=3" in done.stderr


def test_a_refused_requeue_is_told(cluster: Path) -> None:
    done = submitted(cluster, code=STOPPED, REFUSED="1")
    assert done.returncode == STOPPED
    assert "submit again with --run-dir RUN --resume auto" in done.stderr


def test_the_words_of_the_command_line_are_those_of_the_launcher(cluster: Path) -> None:
    submitted(cluster, "gpt", "--data", "a b")
    assert (
        calls(cluster, "srun")
        == f"--export=ALL --kill-on-bad-exit=0 --wait=0 --cpu-bind=none {cluster}/bin/slipway run gpt --data a b"
    )


def test_the_container_has_explicit_flags(cluster: Path) -> None:
    done = submitted(cluster, "gpt", VENV="", IMAGE="registry#slipway:1", MOUNTS="/scratch:/scratch")
    assert done.returncode == 0, done.stderr
    assert calls(cluster, "srun").split()[4:] == [
        "--container-image=registry#slipway:1",
        f"--container-mounts={cluster}:/workspace,{cluster}/runs:/checkpoints,{cluster}/cache:/data,/scratch:/scratch",
        "--container-workdir=/workspace",
        "--no-container-mount-home",
        "--no-container-entrypoint",
        "/usr/bin/env",
        "/opt/slipway/bin/slipway",
        "run",
        "gpt",
    ]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"VENV": "/nowhere"}, "there is no /nowhere/bin/slipway"),
        ({"VENV": "", "IMAGE": "/nowhere.sqsh"}, "Make it: slurm/import.sh"),
        ({"VENV": ""}, "/images/slipway.sqsh"),
        ({"VENV": "", "IMAGE": "images/slipway.sqsh"}, "the absolute path of a .sqsh file"),
        ({"RUNS": "/proc/runs"}, "slurm/setup.sh"),
    ],
    ids=["no environment", "no image", "no default image", "a relative path", "no folder"],
)
def test_what_is_missing_is_told_before_anything_starts(cluster: Path, variables: dict[str, str], told: str) -> None:
    done = submitted(cluster, **variables)
    assert done.returncode == 78
    assert told in done.stderr
    assert not calls(cluster, "srun")


def test_a_cluster_without_pyxis_is_told_what_to_do(cluster: Path) -> None:
    (cluster / "bin/srun").write_text("#!/bin/bash\necho usage\n")
    done = submitted(cluster, VENV="", IMAGE="registry#slipway:1")
    assert done.returncode == 78
    assert "pyxis is not installed. Set VENV" in done.stderr


@pytest.mark.parametrize(
    ("variables", "code", "told"),
    [
        ({"VENV": "", "IMAGE": "registry#slipway:1"}, 1, True),
        ({"VENV": "", "IMAGE": "registry#slipway:1", "NVIDIA_VISIBLE_DEVICES": "void"}, 1, False),
        ({"VENV": "", "IMAGE": "registry#slipway:1"}, 78, False),
        ({}, 1, False),
    ],
    ids=["pyxis", "void", "another code", "no container"],
)
def test_where_nvidias_tools_are_missing_the_end_says_how_to_do_without(
    cluster: Path, variables: dict[str, str], code: int, told: bool
) -> None:
    done = submitted(cluster, code=code, **variables)
    assert done.returncode == code
    assert ("NVIDIA_VISIBLE_DEVICES=void sbatch" in done.stderr) == told


def test_a_node_with_nvidias_tools_is_not_told_to_do_without(cluster: Path) -> None:
    (cluster / "bin/nvidia-container-cli").symlink_to("/bin/true")
    done = submitted(cluster, code=1, VENV="", IMAGE="registry#slipway:1")
    assert "void" not in done.stderr


def test_what_the_shell_of_the_submission_says_about_ranks_does_not_count(cluster: Path) -> None:
    left = dict.fromkeys(("NNODES", "NODE_RANK", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), "3")
    (cluster / "bin/srun").write_text('#!/bin/bash\nenv >"$CALLS.env"\n')
    submitted(cluster, **left)
    kept = {line.partition("=")[0] for line in (cluster / "calls.env").read_text().splitlines()}
    assert not kept & set(left)
    assert "SLIPWAY_RUNS" in kept


OUTER = {"SLURM_ARRAY_JOB_ID": "99", "SLURM_ARRAY_TASK_ID": "7", "SLURM_RESTART_COUNT": "3", "SLURM_GPUS_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("record", "given", "gpus", "requeued"),
    [
        ("JobId=7 Restarts=0 JOB_GRES=gpu:8", {"SLURM_GPUS_ON_NODE": "4"}, "4", "7"),
        ("JobId=7 Restarts=0 JOB_GRES=(null)", {"SLURM_GPUS_ON_NODE": "4"}, "", "7"),
        ("JobId=7 Restarts=0", {}, "", "7"),
        ("JobId=7 Restarts=0 JOB_GRES=gpu:8 TresPerNode=gres:gpu:2", {"SLURM_GPUS_ON_NODE": "4"}, "2", "7"),
        ("JobId=7 Restarts=0 JOB_GRES=gpu:8 TresPerJob=gres/gpu:4", {"SLURM_GPUS_ON_NODE": "4"}, "2", "7"),
        ("JobId=8 ArrayJobId=7 ArrayTaskId=0\nJobId=7 ArrayJobId=7 ArrayTaskId=1 Restarts=0 A=b", {}, "", "7_1"),
    ],
    ids=["whole nodes", "without GPUs", "an old Slurm", "GPUs per node", "GPUs in all", "the last task of an array"],
)
def test_what_an_outer_job_left_behind_does_not_count(
    cluster: Path, record: str, given: dict[str, str], gpus: str, requeued: str
) -> None:
    (cluster / "bin/srun").write_text(
        '#!/bin/bash\necho "${SLURM_GPUS_PER_NODE-},$SLURM_RESTART_COUNT" >"$CALLS.srun"; exit 75\n'
    )
    submitted(cluster, RECORD=record, **OUTER, **given)
    assert calls(cluster, "srun") == f"{gpus},0"
    assert calls(cluster, "scontrol") == f"requeue {requeued}"
