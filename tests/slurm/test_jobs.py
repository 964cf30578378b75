"""Jobs on a real Slurm to which nothing happens."""

import json
import re
from pathlib import Path

import pytest
from cluster import Cluster
from jobs import GPT, LINEAR, SLIPWAY, VENV, newest_step, run_of, stand_in, train
from next_lines import next_commands

from slipway.launch.run_directory.directory import RunDirectory

PROCESS_MODE = "one launcher per process (from Slurm): this one runs rank"


@pytest.mark.pull
def test_two_nodes_train_linear(cluster: Cluster) -> None:
    job = train(cluster, *LINEAR)
    assert job.end() == "COMPLETED", job.text
    assert "2 nodes × 2 CPU processes = 4 processes" in job.text
    assert "finished on 2 nodes" in job.text
    assert newest_step(job) == 40


@pytest.mark.timeout(900)  # what is told to type starts torch several times
def test_two_nodes_train_gpt_with_a_process_per_gpu_and_what_they_tell_can_be_pasted(cluster: Cluster) -> None:
    options = ("--nodes=2", "--gpus-per-node=2")
    job = train(cluster, *GPT, options=options, NPROC_PER_NODE="gpu", **cluster.driver)
    assert job.end() == "COMPLETED", job.text
    assert "2 nodes × 2 GPUs = 4 processes" in job.text
    assert newest_step(job) == 4
    shell = {"PYTHONWARNINGS": "ignore", **cluster.driver}
    report, sample, longer = (cluster.type_in(command, **shell) for command in next_commands(job.text.splitlines()))
    assert "report.html" in report
    assert "def " in sample
    assert "2 nodes × 2 GPUs = 4 processes" in longer
    assert newest_step(job) == 8


def test_whole_nodes_come_with_all_their_gpus(cluster: Cluster, tmp_path: Path) -> None:
    venv = stand_in(tmp_path, 'echo "$(hostname) sees $CUDA_VISIBLE_DEVICES: $*"')
    job = train(cluster, "gpt", "--steps", "7", VENV=venv)
    assert job.end() == "COMPLETED", job.text
    assert sorted(re.findall(r".* sees .*", job.text)) == [
        f"node{number} sees 0,1,2,3: run gpt --steps 7" for number in (1, 2)
    ]


def test_a_rendered_file_trains(cluster: Cluster) -> None:
    each = ("--gpus", "1", "--cpus-per-gpu", "2", "--mem-per-gpu", "100M")
    told = cluster.command(SLIPWAY, "render", "slurm", "--nodes", "2", *each, "--venv", VENV, *LINEAR).stdout
    file = cluster.shared / "work/rendered.sbatch"
    file.write_text(told)
    job = cluster.sbatch(str(file), PYTHONWARNINGS="ignore", **cluster.driver)
    assert job.end() == "COMPLETED", job.text
    assert "2 nodes × 1 GPU = 2 processes" in job.text


def test_srun_needs_no_sbatch(cluster: Cluster) -> None:
    done = cluster.command("srun", "--nodes=2", SLIPWAY, "run", *LINEAR)
    assert "2 nodes × 2 CPU processes = 4 processes" in done.stderr
    assert "finished on 2 nodes" in done.stderr


@pytest.mark.pull
def test_the_plan_says_that_slurm_said_it(cluster: Cluster) -> None:
    done = cluster.command("srun", "--nodes=2", "--label", SLIPWAY, "plan", "--json", "linear")
    node1 = json.loads("".join(re.findall(r"^1: (.*)$", done.stdout, re.MULTILINE)))
    said = {name: (value["value"], value["source"]) for name, value in node1["values"].items()}
    assert said["WORLD_SIZE"] == ("2", "Slurm (SLURM_STEP_NUM_NODES)")
    assert said["RANK"] == ("1", "Slurm (SLURM_NODEID)")
    assert said["MASTER_ADDR"] == ("node1", "Slurm (SLURM_STEP_NODELIST)")
    assert said["MASTER_PORT"][1].startswith("Slurm (hash of step ")


def test_nodes_of_a_job_that_stay_idle_are_told(cluster: Cluster) -> None:
    plan, step = f"{SLIPWAY} plan linear", "--ntasks-per-node=1"
    file = cluster.shared / "work/without-srun.sbatch"
    file.write_text(f"#!/bin/bash\n{plan}\nsrun --nodes=1 {step} {plan}\nsrun --nodes=2 {step} {plan}\n")
    job = cluster.sbatch("--nodes=2", str(file))
    assert job.end() == "COMPLETED", job.text
    assert job.text.count("this Slurm job has 2 nodes, and only 1 of them will be used") == 2, job.text
    assert "srun --nodes=2 --ntasks-per-node=1" in job.text


@pytest.mark.parametrize("hooks", [False, True], ids=["as Slurm sets it", "and a container's hook"])
def test_two_tasks_on_each_node_are_four_processes_and_not_four_nodes(cluster: Cluster, hooks: bool) -> None:
    injected = (
        "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS OMP_NUM_THREADS=1 MASTER_PORT=61007"
    )
    # What rank 0 wrote down by then must not be taken for an earlier start's.
    begun = "((SLURM_PROCID == 0)) || compgen -G runs/linear-$SLURM_JOB_ID*/run.json >/dev/null"
    late = f"until {begun}; do sleep 0.1; done;"
    command = f"{late} {injected if hooks else ''} exec {SLIPWAY} run {' '.join(LINEAR)}"
    tasks = ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1")
    done = cluster.command("srun", *tasks, "bash", "-c", command, **cluster.driver)
    assert done.stderr.count(PROCESS_MODE) == 4
    assert "2 nodes × 2 GPUs = 4 processes" in done.stderr
    assert "OMP_NUM_THREADS" not in done.stderr
    assert "attempt 2" not in done.stderr
    assert sorted(re.findall(r"finished on rank (\d)", done.stderr)) == list("0123")
    [name] = set(re.findall(r"run directory (runs/linear-\d+)", done.stderr))
    assert RunDirectory(cluster.shared / "work" / name).outcome_json["word"] == "finished"


def test_the_tasks_of_an_array_are_jobs_of_their_own(cluster: Cluster) -> None:
    sweep = cluster.shared / "work/sweep.txt"
    words = " ".join(LINEAR)
    sweep.write_text(f"# learning rates\n{words} --lr 0.1\n\n{words} --lr 0.2\n")
    job = train(cluster, "sweep.txt", script="array.sbatch", options=("--nodes=1", "--array=0-1"))
    for number in range(2):
        task = job.task(number)
        assert task.end() == "COMPLETED", task.text
        arguments = json.loads((run_of(task) / "run.json").read_text())["arguments"]
        assert arguments[-2:] == ["--lr", f"0.{number + 1}"]


def test_only_the_task_of_an_array_that_was_stopped_is_requeued(cluster: Cluster, tmp_path: Path) -> None:
    sweep = cluster.shared / "work/stopped.txt"
    sweep.write_text("first\nlast\n")
    venv = stand_in(tmp_path, "[[ $2 == first || $SLURM_RESTART_COUNT != 0 ]] || exit 75")
    job = train(cluster, "stopped.txt", script="array.sbatch", options=("--nodes=1", "--array=0-1"), VENV=venv)
    first, last = (job.task(number) for number in range(2))
    assert last.end() == "COMPLETED", last.text
    assert (first.state, first.fact("Restarts"), last.fact("Restarts")) == ("COMPLETED", "0", "1")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("linear", "--lerning-rate", "1"), 2, "No such option '--lerning-rate'"),
        (("lineer",), 78, "lineer"),
        (("linear", "--resume", "/nowhere"), 78, "there is no such run or snapshot"),
    ],
    ids=["a wrong option", "a wrong name", "nothing to resume from"],
)
def test_a_mistake_is_told_once_and_not_requeued(
    cluster: Cluster, words: tuple[str, ...], code: int, told: str
) -> None:
    job = train(cluster, *words)
    assert job.end() == "FAILED"
    assert job.fact("ExitCode") == f"{code}:0"
    assert told in job.text
    assert "train.sbatch: not requeued" in job.text
    assert not list((cluster.shared / "work/runs").glob(f"[!.]*-{job.number}"))


def test_what_is_missing_is_told_before_anything_starts(cluster: Cluster) -> None:
    job = train(cluster, VENV="/nowhere")
    assert job.end() == "FAILED"
    assert job.fact("ExitCode") == "78:0"
    assert "there is no /nowhere/bin/slipway" in job.text
