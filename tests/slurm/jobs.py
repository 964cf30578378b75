"""Jobs that the tests submit: slurm/train.sbatch from the checkout's virtual environment, and what is left of them."""

import json
from pathlib import Path
from typing import Any

from cluster import REPOSITORY, Cluster, Job

from slipway.launch.run_directory.directory import RunDirectory
from slipway.protocol.snapshots import list_snapshots
from slipway.train.snapshots.snapshot import verify_snapshot

VENV = str(REPOSITORY / ".venv")
TRAIN = str(REPOSITORY / "slurm/train.sbatch")
SLIPWAY = f"{VENV}/bin/slipway"
GPT = ("gpt", "--preset", "tiny", "--steps", "4", "--batch-size", "8", "--eval-every", "4")
PACED = str(REPOSITORY / "tests/slurm/paced.py")
LINEAR = ("linear", "--dataset-size", "256", "--batch-size", "8", "--steps", "40")
LONG = (PACED, "--batch-size", "8", "--save-every", "25", "--eval-every", "1000", "--log-every", "5")


def stand_in(folder: Path, command: str) -> str:
    """A virtual environment whose launcher is this command."""
    program = folder / "bin/slipway"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\n{command}\n")
    program.chmod(0o755)
    return str(folder)


def train(
    cluster: Cluster,
    *words: str,
    options: tuple[str, ...] = ("--nodes=2",),
    script: str = "train.sbatch",
    **variables: str,
) -> Job:
    """Submit slurm/train.sbatch with these words for `slipway run`, from the checkout's virtual environment.

    The cluster's GPUs are but device nodes, so the number of processes is said.
    """
    given = {"NPROC_PER_NODE": "2", "VENV": VENV, "PYTHONWARNINGS": "ignore", "TRAIN": TRAIN} | variables
    return cluster.sbatch(*options, str(REPOSITORY / "slurm" / script), *words, **given)


def train_long(
    cluster: Cluster, steps: int, *, pace: float = 0.05, options: tuple[str, ...] = ("--nodes=2",), **variables: str
) -> Job:
    """Submit a job whose steps take `pace` seconds, so that something can happen to it meanwhile."""
    return train(
        cluster,
        *LONG,
        "--steps",
        str(steps),
        options=options,
        PACE=str(pace),
        SLIPWAY_HEARTBEAT_TIMEOUT="5",
        NPROC_PER_NODE="1",
        **variables,
    )


def run_of(job: Job) -> Path:
    """The run directory of a job."""
    found = list((job.cluster.shared / "work/runs").glob(f"[!.]*-{job.number}"))
    assert len(found) == 1, f"{found}\n{job.text}"
    return found[0]


def wait_for_step(job: Job, step: int) -> None:
    """Wait until a job has made so many steps, by its metrics."""

    def made() -> bool:
        files = (job.cluster.shared / "work/runs").glob(f"*-{job.number}/metrics.jsonl")
        return any(json.loads(line).get("step", 0) >= step for file in files for line in whole_lines(file))

    job.cluster.wait(made, f"step {step}", job)


def whole_lines(file: Path) -> list[str]:
    """The lines of a file that is being written."""
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def newest_step(job: Job) -> int:
    """The step of a job's newest snapshot, which must verify."""
    newest = list_snapshots(run_of(job) / "snapshots")[0]
    verify_snapshot(newest)
    return int(newest.name.removeprefix("step-"))


def outcome(job: Job) -> dict[str, Any]:
    """How the job's last attempt ended, empty while it runs."""
    return RunDirectory(run_of(job)).outcome_json


def attempt(job: Job) -> int:
    """The number of the job's last attempt."""
    return int(json.loads((run_of(job) / "run.json").read_text())["attempt"])


def steps_made(job: Job) -> list[int]:
    """The steps in the metrics, in their order."""
    lines = [json.loads(line) for line in (run_of(job) / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "lr" in line]
