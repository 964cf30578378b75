"""What slurm/train.sbatch makes of each exit code, with programs in the place of Slurm's that only write down how they were called."""

import os
import subprocess
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1

import pytest

from slipway.protocol.errors import EXITS, FAILED, PEER, STOPPED, UNHEALTHY

SBATCH = Path(__file__).parents[3] / "slurm/train.sbatch"
# What srun makes of a task that was ended by one of these.
KILLED, *UNHEARD = (128 + number for number in (SIGKILL, SIGUSR1, SIGTERM))
# "requeue" and "retry" of the table; a failed workload was retried by the launcher already.
REQUEUED = {STOPPED, PEER, KILLED, *UNHEARD}


# A task that starts does what is in front of the launcher, on its node.
SRUN = r"""
[[ "$1" != --help ]] || { echo --container-image; exit; }
echo "$@" >>"$CALLS.srun"
while [[ "$1" == --* ]]; do shift; done
words=("$@")
for number in "${!words[@]}"; do
    case "${words[number]}" in /usr/bin/env | */bin/slipway) words[number]=true; break ;; esac
done
for SLURMD_NODENAME in $STARTS; do export SLURMD_NODENAME; "${words[@]//\/checkpoints/$RUNS_HERE}"; done
eval "${TRAINS:-}"
exit "$CODE"
"""
SCONTROL = """
case "$*" in
    *'hostnames node[1-3]') printf '%s\n' node1 node2 node3 ;;
    *hostnames*) tr , '\n' <<<"$3" ;;
    *show*) echo "$RECORD" ;;
    *) echo "$@" >>"$CALLS.scontrol"; exit "${REFUSED:-0}" ;;
esac
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder with `srun` and `scontrol`, and a virtual environment with a launcher."""
    for name, body in {
        "srun": SRUN,
        "scontrol": SCONTROL,
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
        "STARTS": "node1 node2 node3",
        "RUNS_HERE": str(cluster / "runs"),
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


SNAPSHOT = 'mkdir --parents "$RUN/snapshots/step-0000000$STEP"'
SCRIPT = """mkdir --parents "$RUN/node-0" && echo '{"running": '$SECONDS_RUN'.5}' >"$RUN/node-0/ledger.json" """


@pytest.mark.parametrize("code", [PEER, KILLED, *UNHEARD])
@pytest.mark.parametrize("found", ["nothing", "the snapshot of before"])
def test_the_fourth_start_in_a_row_without_progress_is_the_last(cluster: Path, code: int, found: str) -> None:
    trains = {} if found == "nothing" else {"TRAINS": SNAPSHOT, "RUN": f"{cluster}/runs/gpt-7", "STEP": "5"}
    if trains:
        submitted(cluster, code=code, **trains)
    told = [submitted(cluster, code=code, **trains).stderr for _ in range(4)]
    assert [text.startswith("train.sbatch: requeueing: ") for text in told] == [True, True, True, False]
    assert "3 requeues in a row brought no new snapshot" in told[-1]
    assert not list((cluster / "runs").glob(".slipway-job-*")), "nothing is left of a job that is over"


@pytest.mark.parametrize("place", ["runs/gpt-7", "runs/named"])
def test_a_new_snapshot_renews_the_requeues(cluster: Path, place: str) -> None:
    words = ("gpt", "--run-dir", f"{cluster}/{place}") if place == "runs/named" else ("gpt",)
    for step in range(1, 9):
        told = submitted(cluster, *words, code=PEER, TRAINS=SNAPSHOT, RUN=f"{cluster}/{place}", STEP=str(step)).stderr
        assert told.startswith("train.sbatch: requeueing: "), told


@pytest.mark.parametrize(("seconds", "requeued"), [(700, True), (7, False)])
def test_ten_minutes_of_a_script_are_progress(cluster: Path, seconds: int, requeued: bool) -> None:
    run = {"TRAINS": SCRIPT, "RUN": f"{cluster}/runs/train-7"}
    for start in range(1, 5):
        told = submitted(cluster, code=PEER, SECONDS_RUN=str(start * seconds), **run).stderr
    assert told.startswith("train.sbatch: requeueing: ") == requeued, told


def test_a_job_that_saves_when_it_is_told_to_stop_is_requeued_as_often_as_that_happens(cluster: Path) -> None:
    for _ in range(6):
        assert submitted(cluster, code=STOPPED).stderr == "train.sbatch: requeueing: the job was stopped\n"
    saved = {"TRAINS": SNAPSHOT, "RUN": f"{cluster}/runs/gpt-7", "STEP": "5"}
    assert "the job was stopped and its snapshot is saved" in submitted(cluster, code=STOPPED, **saved).stderr
    again = submitted(cluster, code=STOPPED, RECORD="JobId=7 Restarts=1 TimeLimit=00:02:00 JOB_GRES=(null)", **saved)
    assert "Is --time=00:02:00 long enough?" in again.stderr


@pytest.mark.parametrize("code", [FAILED, PEER])
@pytest.mark.parametrize(("starts", "named"), [("node1 node3", "node2"), ("node3", "node1,node2")])
@pytest.mark.parametrize("container", [True, False])
def test_nodes_whose_task_ended_before_its_launcher_spoke_are_named(
    cluster: Path, code: int, starts: str, named: str, container: bool
) -> None:
    where = {"VENV": "", "IMAGE": "registry#slipway:1"} if container else {}
    done = submitted(cluster, code=code, STARTS=starts, SLURM_JOB_NODELIST="node[1-3]", **where)
    assert f"no launcher started on {named}; " in done.stderr
    assert f"sbatch --exclude={named} " in done.stderr


@pytest.mark.parametrize(("nodes", "named"), [("node[1-3]", "node1,node2,node3"), ("node1", "node1")])
def test_nodes_that_all_failed_are_not_to_blame(cluster: Path, nodes: str, named: str) -> None:
    done = submitted(cluster, code=FAILED, STARTS="", SLURM_JOB_NODELIST=nodes, VENV="", IMAGE="registry#slipway:1")
    assert f"no launcher started on {named}; " in done.stderr
    assert "the cause is most likely IMAGE, MOUNTS or what the site has set up" in done.stderr
    assert "exclude" not in done.stderr
    assert not calls(cluster, "scontrol")


# What srun and pyxis print, and srun then waits until the step is ended.
LOST = r"""
mkfifo "$CALLS.step"
echo 'the first line of a launcher' >&2
echo 'slurmstepd: error: pyxis: source path does not exist' >&2
echo 'srun: error: node2: task 1: Exited with exit code 1' >&2
read -r <"$CALLS.step"
echo 'srun: error: node1: task 0: Exited with exit code 75' >&2
"""
SCANCEL = """
echo "$@" >>"$CALLS.scancel"
echo >"$CALLS.step"
"""


@pytest.fixture
def losing(cluster: Path) -> Path:
    """The same cluster, where a step can be ended, and the partition has four nodes."""
    for name, body in {"scancel": SCANCEL, "sinfo": 'printf "%s\\n" ${PARTITION:-node1 node2 node3 node4}'}.items():
        (cluster / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (cluster / "bin" / name).chmod(0o755)
    return cluster


NODE2 = {"STARTS": "node1 node3", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_JOB_NUM_NODES": "3"}


@pytest.mark.parametrize("container", [True, False])
def test_a_node_that_cannot_start_a_launcher_ends_the_step_at_once_and_is_left_out(
    losing: Path, container: bool
) -> None:
    where = {"VENV": "", "IMAGE": "registry#slipway:1"} if container else {}
    done = submitted(losing, code=STOPPED, TRAINS=LOST, **NODE2, **where)
    assert done.returncode == PEER
    assert calls(losing, "scancel") == "--signal=TERM 7.0"
    assert "no launcher started on node2, without which the others cannot begin" in done.stderr
    reported = done.stderr.partition("It was reported:")[2]
    assert "source path does not exist" in reported, "the lines are repeated below the node"
    assert done.stderr.index("the first line of a launcher") < done.stderr.index("no launcher started")
    assert (losing / "calls.scontrol").read_text() == "requeue 7\nupdate JobId=7 ExcNodeList=node2\n"
    assert "this job will not use node2 again" in done.stderr
    assert submitted(losing, **NODE2 | {"STARTS": "node1 node3 node4"}).returncode == 0, (
        "the next start has nothing to do with it"
    )


@pytest.mark.parametrize(
    ("variables", "words"), [({"SLIPWAY_SPARES": "1"}, ()), ({}, ("--nnodes", "2:3")), ({"STARTS": ""}, ())]
)
def test_a_step_that_can_begin_or_whose_other_nodes_may_fail_alike_is_not_ended(
    losing: Path, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    short = LOST.replace('read -r <"$CALLS.step"', 'read -r -t 7 <>"$CALLS.step"')  # longer than the script waits for
    submitted(losing, *words, code=PEER, TRAINS=short, **NODE2 | variables)
    assert not calls(losing, "scancel")


@pytest.mark.parametrize("end", ["User defined signal 1", "Terminated", "Exited with exit code 143"])
def test_a_node_that_was_stopped_before_its_container_came_up_is_not_left_out(losing: Path, end: str) -> None:
    short = LOST.replace('read -r <"$CALLS.step"', 'read -r -t 7 <>"$CALLS.step"').replace(
        "Exited with exit code 1'", f"{end}'"
    )
    submitted(losing, code=STOPPED, TRAINS=short, **NODE2)
    assert (calls(losing, "scancel"), calls(losing, "scontrol")) == ("", "requeue 7")


@pytest.mark.parametrize(
    ("record", "partition", "excluded"),
    [
        ("ReqNodeList=(null) ExcNodeList=(null)", "", "node2"),
        ("ReqNodeList=(null) ExcNodeList=node[7-8]", "node1 node3 node4 node5", "node2,node[7-8]"),
        ("ReqNodeList=(null) ExcNodeList=node4", "node1 node2 node3 node4", ""),  # too few are left
        ("ReqNodeList=(null) ExcNodeList=(null)", "node1 node2 node3", ""),
        ("ReqNodeList=node[1-3] ExcNodeList=(null)", "", ""),  # --nodelist
    ],
)
def test_a_node_is_left_out_where_the_job_can_do_without(
    losing: Path, record: str, partition: str, excluded: str
) -> None:
    asked = {"RECORD": f"JobId=7 Restarts=0 {record} JOB_GRES=(null)", "PARTITION": partition}
    done = submitted(losing, code=PEER, **NODE2, **asked)
    assert calls(losing, "scontrol") == (f"update JobId=7 ExcNodeList={excluded}" if excluded else "requeue 7")
    assert ("node2 may be used again" in done.stderr) == (not excluded)


@pytest.mark.parametrize(
    ("code", "starts"),
    [*((code, "node1 node2 node3") for code in (0, FAILED, PEER)), *((code, "") for code in (STOPPED, *UNHEARD))],
)
def test_no_node_is_named_where_all_launchers_started_or_were_stopped_before(
    cluster: Path, code: int, starts: str
) -> None:
    done = submitted(cluster, code=code, STARTS=starts, SLURM_JOB_NODELIST="node[1-3]")
    assert "--exclude" not in done.stderr


def test_what_an_earlier_start_noted_of_a_node_does_not_count(cluster: Path) -> None:
    submitted(cluster, code=PEER, SLURM_JOB_NODELIST="node[1-3]")
    done = submitted(cluster, code=PEER, SLURM_JOB_NODELIST="node[1-3]", STARTS="node1 node2")
    assert "no launcher started on node3; " in done.stderr


@pytest.mark.parametrize(("restarts", "left"), [("0", False), ("1", True)], ids=["cancelled", "requeued by Slurm"])
def test_what_is_remembered_of_a_job_goes_when_it_is_cancelled(cluster: Path, restarts: str, left: bool) -> None:
    record = f"${{RECORD/Restarts=0/Restarts={restarts}}}"
    ends = f"""sed -i 's|[$]RECORD|{record}|' {cluster}/bin/scontrol; kill -TERM "$PPID" """
    done = submitted(cluster, code=STOPPED, TRAINS=ends)
    assert done.returncode == 128 + SIGTERM
    assert not calls(cluster, "scontrol")
    assert bool(list((cluster / "runs").glob(".slipway-job-*"))) == left


@pytest.mark.parametrize("name", ["IMAGE", "NAME"])
@pytest.mark.parametrize("venv", [True, False])
def test_a_batch_script_that_pyxis_put_into_a_container_says_so(cluster: Path, name: str, venv: bool) -> None:
    inherited = {f"PYXIS_CONTAINER_{name}": "x", "PYXIS_CONTAINER_MOUNTS": "/a:/a", **({} if venv else {"VENV": ""})}
    done = submitted(cluster, **inherited)
    assert done.returncode == 78
    assert f"PYXIS_CONTAINER_{name}" in done.stderr
    assert f"unset {' '.join(sorted(inherited.keys() - {'VENV'}))}," in done.stderr
    assert not (cluster / "runs").exists()


def test_what_pyxis_passes_on_without_a_container_is_no_mistake(cluster: Path) -> None:
    assert submitted(cluster, PYXIS_CONTAINER_MOUNTS="/a:/a", PYXIS_CONTAINER_IMAGE="").returncode == 0


@pytest.mark.parametrize("given", [{}, {"SHARED": "/proc/nowhere"}, {"IMAGE": "/no.sqsh"}])
def test_a_missing_image_may_be_in_another_place(cluster: Path, given: dict[str, str]) -> None:
    done = submitted(cluster, VENV="", **given)
    assert done.returncode == 78
    assert "Set SHARED or IMAGE" in done.stderr
    assert not {path.name for path in cluster.iterdir()} & {"runs", "cache"}, "nothing was made"


def test_a_refused_requeue_is_told(cluster: Path) -> None:
    done = submitted(cluster, code=STOPPED, REFUSED="1")
    assert done.returncode == STOPPED
    assert "submit again with --run-dir RUN --resume auto" in done.stderr


def test_the_words_of_the_command_line_are_those_of_the_launcher(cluster: Path) -> None:
    submitted(cluster, "gpt", "--data", "a b")
    called = calls(cluster, "srun")
    assert called.startswith("--export=ALL --kill-on-bad-exit=0 --wait=0 --cpu-bind=none /bin/sh -c ")
    assert called.endswith(f"/nodes {cluster}/bin/slipway run gpt --data a b")


@pytest.mark.parametrize(
    ("spares", "written", "code", "returned"),
    [
        ("1", "now", 0, 0),
        ("1", "now", PEER, KILLED),
        ("1", "before", 0, KILLED),  # by an earlier job, in the same run directory
        ("1", "never", 0, KILLED),
        ("0", "now", 0, KILLED),
        ("", "now", 0, KILLED),
    ],
)
def test_a_job_that_finished_on_a_spare_node_is_not_requeued_for_the_node_that_it_lost(
    cluster: Path, spares: str, written: str, code: int, returned: int
) -> None:
    outcome = cluster / "runs/gpt-7/outcome.json"
    outcome.parent.mkdir(parents=True)
    write = f"""printf '{{\n "code": {code},\n "word": "finished"\n}}\n' > {outcome}; touch --date=+1second {outcome}"""
    if written == "before":
        outcome.write_text(f'{{\n "code": {code}\n}}\n')
        os.utime(outcome, (1e9, 1e9))
    done = submitted(cluster, code=KILLED, SLIPWAY_SPARES=spares, TRAINS=write if written == "now" else "")
    assert done.returncode == returned, done.stderr
    assert ("--no-kill" in calls(cluster, "srun")) == (spares == "1")
    assert (calls(cluster, "scontrol") == "") == (returned == 0)
    assert ("finished, without a node that ended with 137" in done.stderr) == (returned == 0)


def test_the_container_has_explicit_flags(cluster: Path) -> None:
    done = submitted(cluster, "gpt", VENV="", IMAGE="registry#slipway:1", MOUNTS="/scratch:/scratch")
    assert done.returncode == 0, done.stderr
    called = calls(cluster, "srun").split()
    assert called[4:9] == [
        "--container-image=registry#slipway:1",
        f"--container-mounts={cluster}:/workspace,{cluster}/runs:/checkpoints,{cluster}/cache:/data,/scratch:/scratch",
        "--container-workdir=/workspace",
        "--no-container-mount-home",
        "--no-container-entrypoint",
    ]
    note = "/checkpoints/.slipway-job-7/nodes"
    assert called[-5:] == [note, "/usr/bin/env", "/opt/slipway/bin/slipway", "run", "gpt"]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"VENV": "/nowhere"}, "there is no /nowhere/bin/slipway"),
        ({"VENV": "", "IMAGE": "/nowhere.sqsh"}, "make it: slurm/import.sh"),
        ({"VENV": ""}, "/images/slipway.sqsh"),
        ({"VENV": "", "IMAGE": "images/slipway.sqsh"}, "the absolute path of a .sqsh file"),
        ({"RUNS": "/proc/runs"}, "Type: slurm/setup.sh /"),
        ({"RUNS": "/proc/runs", "SHARED": "/"}, "Set SHARED to a folder"),
    ],
    ids=["no environment", "no image", "no default image", "a relative path", "no folder", "the root"],
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


@pytest.mark.parametrize("reason", ["98-nvidia.sh exited with return code 1", "source path does not exist"])
def test_where_enroots_hook_for_gpus_failed_the_end_says_how_to_do_without(cluster: Path, reason: str) -> None:
    report = f"echo 'slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/{reason}' >&2"
    where = {"VENV": "", "IMAGE": "registry#slipway:1", "STARTS": "", "SLURM_JOB_NODELIST": "node1"}
    done = submitted(cluster, code=1, TRAINS=report, **where)
    assert done.returncode == 1
    assert ("NVIDIA_VISIBLE_DEVICES=void sbatch" in done.stderr) == reason.startswith("98")


def test_what_the_shell_of_the_submission_says_about_ranks_does_not_count(cluster: Path) -> None:
    left = dict.fromkeys(("NNODES", "NODE_RANK", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), "3")
    (cluster / "bin/srun").write_text('#!/bin/bash\nenv >"$CALLS.env"\n')
    submitted(cluster, **left)
    kept = {line.partition("=")[0] for line in (cluster / "calls.env").read_text().splitlines()}
    assert not kept & set(left)
    assert "SLIPWAY_RUNS" in kept


ENROOT = """
echo "$@" >>"$CALLS.enroot"
case "$1" in
    digest) [[ -z "${NO_DIGEST:-}" ]] && echo sha256:0a1b ;;
    import) [[ -z "${NO_IMPORT:-}" && "$2" == --output ]] && echo "$4" >"$3" ;;
esac
"""


@pytest.fixture
def registry(cluster: Path) -> Path:
    """The same cluster with a stand-in for enroot, and the folder for images."""
    (cluster / "bin/enroot").write_text(f"#!/bin/bash\n{ENROOT}\n")
    (cluster / "bin/enroot").chmod(0o755)
    (cluster / "images").mkdir()
    return cluster


def test_an_image_of_a_registry_is_imported_by_the_first_job_alone(registry: Path) -> None:
    for _ in range(2):
        done = submitted(registry, VENV="", IMAGE="registry.example#team/slipway:1")
        assert done.returncode == 0, done.stderr
        assert f"--container-image={registry}/images/sha256-0a1b.sqsh " in calls(registry, "srun")
    assert (registry / "calls.enroot").read_text().count("import ") == 1
    assert [path.name for path in (registry / "images").iterdir()] == ["sha256-0a1b.sqsh"]
    assert (registry / "images/sha256-0a1b.sqsh").read_text() == "docker://registry.example#team/slipway:1\n"


@pytest.mark.parametrize("lacking", ["NO_DIGEST", "NO_IMPORT", "folder", "enroot"])
def test_an_image_that_cannot_be_imported_once_is_left_to_the_nodes(registry: Path, lacking: str) -> None:
    if lacking == "folder":
        (registry / "images").rmdir()
    if lacking == "enroot":
        (registry / "bin/enroot").unlink()
    done = submitted(registry, VENV="", IMAGE="registry.example#team/slipway:1", **{lacking: "1"})
    assert done.returncode == 0, done.stderr
    assert "--container-image=registry.example#team/slipway:1 " in calls(registry, "srun")
    assert "each node imports IMAGE=registry.example#team/slipway:1 itself" in done.stderr
    assert lacking == "folder" or not list((registry / "images").iterdir())


def test_a_job_that_is_cancelled_while_it_imports_ends_after_the_half_file_is_gone(registry: Path) -> None:
    """The signal reaches the shell of the batch script alone; what that leaves behind is killed."""
    program = registry / "bin/enroot"
    cancelled = 'import) echo part >"$3"; kill -TERM "$(ps -o ppid= "$PPID")"; sleep 0.5 ;;'
    program.write_text(program.read_text().replace("import)", f"{cancelled}\n never)"))
    done = submitted(registry, VENV="", IMAGE="registry.example#team/slipway:1")
    assert done.returncode == 128 + SIGTERM
    assert not list((registry / "images").iterdir())
    assert not calls(registry, "srun")


@pytest.mark.parametrize("image", ["dockerd://slipway:dev", "{here}/images/own.sqsh"])
def test_another_image_is_not_imported(registry: Path, image: str) -> None:
    (registry / "images/own.sqsh").touch()
    named = image.format(here=registry)
    submitted(registry, VENV="", IMAGE=named)
    assert f"--container-image={named} " in calls(registry, "srun")
    assert not calls(registry, "enroot")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/lib:/opt/torch", ""),
        ("/workspace/src:lib", "/workspace/src:lib"),
        ("{here}/src:/home/me/lib", "/workspace/src"),
        ("/text/lib:/textile:/scratch/text/lib", "/text/lib"),
        ("", ""),
    ],
)
def test_python_in_the_container_gets_only_folders_that_it_has(cluster: Path, given: str, kept: str) -> None:
    image = {"VENV": "", "IMAGE": "registry#slipway:1", "MOUNTS": "/scratch/text:/text:ro"}
    path = given.format(here=cluster)
    ours = {"PYTHONPATH": path} if path else {}
    done = submitted(cluster, TRAINS='env >"$CALLS.env"', PYTHONHOME="/opt/python", **ours, **image)
    seen = dict(line.split("=", 1) for line in (cluster / "calls.env").read_text().splitlines() if "=" in line)
    assert (seen.get("PYTHONPATH", ""), "PYTHONHOME" in seen) == (kept, False)
    assert "PYTHONHOME=/opt/python does not count" in done.stderr
    assert (f"PYTHONPATH={path} is '{kept}' in the container" in done.stderr) == (path != kept)
    submitted(cluster, TRAINS='env >"$CALLS.env"', PYTHONHOME="/opt/python", **ours)
    assert "PYTHONHOME=/opt/python" in (cluster / "calls.env").read_text(), (
        "a virtual environment is on the node itself"
    )


@pytest.mark.parametrize(
    ("tracking", "plugin", "warned"),
    [
        ("linuxproc", "required pyxis.so use_squashfuse=1", True),
        ("linuxproc", "required pyxis.so", False),
        ("cgroup", "required pyxis.so use_squashfuse=1", False),
    ],
)
def test_a_job_whose_snapshot_scancel_would_lose_is_warned(
    cluster: Path, tracking: str, plugin: str, warned: bool
) -> None:
    (cluster / "plugstack.conf").write_text(f"include {cluster}/plugstack.conf.d/*.conf\n")
    (cluster / "plugstack.conf.d").mkdir()
    (cluster / "plugstack.conf.d/pyxis.conf").write_text(f"{plugin}\n")
    told = f"PlugStackConfig         = {cluster}/plugstack.conf\nProctrackType           = proctrack/{tracking}"
    record = "JobId=7 Restarts=0 JOB_GRES=(null)"
    done = submitted(cluster, VENV="", IMAGE="registry#slipway:1", RECORD=f"{told}\n{record}")
    assert ("scancel --signal=INT 7" in done.stderr) == warned


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
