"""What follows the image's name: nothing, a command, a workload, a script, any program."""

import json
from pathlib import Path

import pytest
from containers import IMAGE, NO_VOLUME, SMALL_SHM, WELL, Containers, docker

# Sums a one over all processes, without any import of ours.
MY_SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print(f"sum {ones.item():.0f} with {sys.argv[1:]}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""
ROOT = Path(__file__).parents[2]
SHORT = '--env WORKLOAD="gpt --preset tiny --steps 60"'  # the default, but for 1000 steps


def test_the_image_alone_trains_a_gpt_and_says_what_to_try_next(container: Containers) -> None:
    job = container(f"{SHORT} IMG", warns=(NO_VOLUME, SMALL_SHM))
    assert "1 node × 2 CPU processes = 2 processes" in job.text
    assert "step 60/60" in job.text
    assert "a sample of what it writes" in job.text
    following = [line.partition("next: ")[2] for line in job.closing if "next: " in line]
    assert ["mkdir -p runs && docker run --rm " in line for line in following] == [True, False, False]
    assert all("docker run --rm " in line for line in following)
    # Nothing is mounted here: that the results go is said before the training and after it.
    told = [line for line in job.closing if NO_VOLUME in line or line.startswith("finished on 1 node")]
    assert [NO_VOLUME in line for line in told] == [True, False, True], job.closing
    assert '-v "$PWD/runs:/checkpoints" to docker run' in told[0]


@pytest.mark.core
def test_a_script_of_ones_own_is_found_in_the_working_directory(container: Containers, tmp_path: Path) -> None:
    (tmp_path / "my_script.py").write_text(MY_SCRIPT)
    tmp_path.chmod(0o755)
    warns = ("the working directory /workspace cannot be written",)
    job = container(f"{WELL} --volume {tmp_path}:/workspace:ro IMG my_script.py --its-own", warns=warns)
    assert job.stdout.count("sum 2 with ['--its-own']") == 2


@pytest.mark.core
def test_help_lists_the_commands_the_workloads_and_the_exit_codes(container: Containers) -> None:
    shown = " ".join(container("IMG --help").stdout.split())
    for words in ("run", "plan", "sample", "gpt", "linear", "75 stopped by a signal"):
        assert words in shown


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ("", "/checkpoints"),
        ("--user 4711:0 --read-only --tmpfs /tmp:exec", "/tmp/slipway-4711/runs"),
        ("--user 4711:0 --read-only --tmpfs /tmp:exec --volume /checkpoints", "/checkpoints"),
    ],
    ids=["as it is", "any user, read-only", "any user, read-only, with a volume"],
)
def test_plan_without_gpus_has_processes_on_the_cpu(container: Containers, options: str, where: str) -> None:
    plan = json.loads(container(f"{options} IMG plan --json").stdout)
    assert plan["topology"]["processes_per_node"] >= 1
    assert plan["topology"]["backend"] == "gloo"
    assert plan["values"]["SLIPWAY_RUNS"]["value"] == where


def test_plan_names_what_this_container_lacks(container: Containers) -> None:
    shown = container("IMG plan", warns=(NO_VOLUME, SMALL_SHM)).stdout
    assert "1 node × 2 CPU processes" in shown
    assert "torchrun --nnodes=1" in shown
    assert "add --shm-size 1g" in shown
    container(f"{WELL} IMG plan")


@pytest.mark.core
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("IMG bash -c 'echo $((6 * 7))'", "42"),
        ("IMG bash -c 'command -v slipway pip'", "/opt/slipway/bin/slipway\n/opt/slipway/bin/pip"),
        ("IMG bash --login -c 'command -v slipway pip'", "/opt/slipway/bin/slipway\n/opt/slipway/bin/pip"),
        ("IMG sh -lc 'command -v slipway; command -v pip'", "/opt/slipway/bin/slipway\n/opt/slipway/bin/pip"),
        ("IMG bash -c 'id --user --name; pwd; cat /proc/1/comm'", "slipway\n/workspace\ntini"),
        ("--user 4711:0 IMG bash -c 'touch /data/x /checkpoints/x /workspace/x && echo written'", "written"),
    ],
    ids=["bash", "PATH", "login bash", "login sh", "user and pid 1", "any user writes"],
)
def test_any_program_is_started_as_it_is(container: Containers, line: str, said: str) -> None:
    assert container(line).stdout.strip() == said


@pytest.mark.core
def test_its_python_has_the_torch_of_its_label(container: Containers) -> None:
    torch = docker("image", "inspect", "--format", '{{index .Config.Labels "slipway.torch"}}', IMAGE).strip()
    shown = container("IMG python -c 'import sys, torch; print(sys.prefix, torch.__version__)'").stdout
    assert shown.split() == ["/opt/slipway", torch]


def test_under_an_init_of_somebody_elses_there_is_no_second_one(container: Containers) -> None:
    """As under pyxis, which waits for the process that it started to stop."""
    assert container("--init IMG bash -c 'cat /proc/1/comm /proc/$PPID/comm'").stdout == "docker-init\ndocker-init\n"


@pytest.mark.parametrize(
    ("words", "file"),
    [("slurm", "slurm/train.sbatch"), ("k8s", "k8s/job.yaml"), ("trainer --nodes 2", "k8s/trainer/trainer.yaml")],
)
def test_job_files_can_be_rendered_from_the_image(container: Containers, words: str, file: str) -> None:
    assert container(f"IMG render {words}").stdout == (ROOT / file).read_text()


def test_a_compose_file_can_be_rendered_from_the_image(container: Containers) -> None:
    assert "\nservices:\n" in container("IMG render compose gpt --steps 20").stdout


def test_zombies_are_reaped(container: Containers) -> None:
    orphans = "import subprocess, time; subprocess.run(['sh', '-c', 'sleep 0.1 & sleep 0.1 &']); time.sleep(1.5)"
    states = (
        "import glob; print([open(p).read().rpartition(')')[2].split()[0] for p in glob.glob('/proc/[0-9]*/stat')])"
    )
    shown = container(f'IMG python -c "{orphans}; {states}"').stdout
    assert "R" in shown
    assert "Z" not in shown


def test_a_run_in_the_image_is_found_from_another_container(container: Containers, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    volume = f"{WELL} --volume {tmp_path}:/checkpoints"
    container(f"{volume} IMG linear --steps 3")
    assert "linear, attempt 1" in container(f"{volume} IMG status").stdout
    (name,) = (path.name for path in tmp_path.iterdir() if path.name.startswith("linear-"))
    assert "step 3/3" in container(f"{volume} IMG logs {name} --rank 0").stdout
