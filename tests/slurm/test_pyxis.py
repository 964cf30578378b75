"""The image on Slurm through `srun --container-image`: with the stand-in for pyxis, or with pyxis itself (pyxis/site.py)."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cluster import UID, USER, Cluster
from hosts import NODES
from jobs import GPT, LINEAR
from needs import reason
from next_lines import next_commands

sys.path.insert(0, str(Path(__file__).parents[1] / "image"))

from containers import LOUD
from pyxis.images import prepared
from pyxis.site import ForeignCluster, Site

SLIPWAY = "/opt/slipway/bin/slipway"  # where it always is; a bare name needs the PATH of the image
FOREIGN = bool(os.environ.get("SLIPWAY_TEST_PYXIS"))
pytestmark = [] if FOREIGN else pytest.mark.needs("engine")
PROCESS_MODE = "one launcher per process (from Slurm): this one runs rank"
# What a task finds, one `name=value` a line.
PROBE = r"""
writable() { [ -w "$1" ] && echo yes || echo no; }
cat <<END
uid=$(id -u)
capabilities=$(sed -n 's/^CapEff:\s*//p' /proc/self/status)
parent=$(cat /proc/$PPID/comm)
container=$(readlink /proc/self/ns/mnt)
root=$(writable /)
home=$(writable "$HOME")
here=$(pwd), writable: $(writable .)
tmp=$(writable /tmp), type: $(stat --file-system --format %T /tmp)
shm=$(writable /dev/shm)
slipway=$(command -v slipway)
image=$SLIPWAY_IMAGE
mine=$MINE
END
"""


@pytest.fixture(scope="module")
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Site]]:
    """Where to run: the test's clusters by their process tracking, with the stand-in; else the one that there is."""
    if FOREIGN:
        site = Site(
            ForeignCluster(Path(os.environ["SLIPWAY_TEST_PYXIS_SHARED"])), os.environ["SLIPWAY_TEST_PYXIS_IMAGE"]
        )
        yield lambda tracking: site
        return
    image, clusters = request.getfixturevalue("image"), request.getfixturevalue("clusters")
    made: dict[str, Site] = {}
    with ExitStack() as stack:

        def make(tracking: str) -> Site:
            if tracking not in made:
                cluster: Cluster = clusters(tracking)
                hosts = [partial(cluster.on, node) for node in NODES[:2]]
                found = stack.enter_context(prepared(image, cluster.shared / "pyxis", hosts))
                variables = {"HOME": f"/home/{USER}"} | found
                made[tracking] = Site(cluster, str(cluster.shared / "pyxis/image.sqsh"), UID, variables)
                made[tracking].team.mkdir()
                os.chown(made[tracking].team, UID, UID)
            return made[tracking]

        yield make
        for site in made.values():
            assert not list((site.cluster.shared / "pyxis/steps").iterdir()), "a container was left behind"


@pytest.fixture(scope="module")
def site(sites: Callable[[str], Site]) -> Site:
    """Where a task's first process alone gets signals, as in production; on a host without that way of tracking, all get them."""
    return sites("linuxproc" if reason("freezer") else "cgroup")


@pytest.fixture
def stand_in(site: Site) -> Site:
    """The same, for what only the stand-in can be told or shows."""
    if site.real:
        pytest.skip("the stand-in alone has a switch for this")
    return site


def by_task(text: str) -> dict[int, str]:
    """What each task wrote, by the numbers that `srun --label` puts before each line."""
    lines = re.findall(r"^(\d+): ?(.*)$", text, re.MULTILINE)
    return {int(task): "\n".join(line for of, line in lines if of == task) for task in {task for task, _ in lines}}


def probe(site: Site, *words: str, **variables: str) -> list[dict[str, str]]:
    """What the tasks find, in the order of their numbers."""
    told = by_task(site.srun("--label", "--no-container-mount-home", *words, "bash", "-c", PROBE, **variables).stdout)
    return [dict(line.split("=", 1) for line in text.splitlines()) for _, text in sorted(told.items())]


@pytest.mark.timeout(900)  # what is told to type starts torch several times
def test_two_nodes_train_in_the_image_which_does_not_know_their_user_and_what_they_tell_can_be_pasted(
    site: Site,
) -> None:
    job = site.train(*GPT, SLIPWAY_TEST_HOOKS="stranger")
    assert job.end() == "COMPLETED", job.text
    assert re.search(r"2 nodes × \d+ CPU processes", job.text), job.text
    assert "finished on 2 nodes" in job.text
    assert not LOUD.search(job.text), job.text
    [run] = site.team.glob(f"runs/[!.]*-{job.number}")
    assert (run / "snapshots/step-00000004/manifest.json").exists()
    assert run.stat().st_uid == (site.user or os.getuid())
    report, sample, longer = (site.type_in(command) for command in next_commands(job.text.splitlines()))
    assert "report.html" in report
    assert "def " in sample
    assert "finished on 2 nodes" in longer
    assert (run / "snapshots/step-00000008/manifest.json").exists()


@pytest.mark.parametrize("hooks", ["none", "pyxis", "enroot"])
def test_two_nodes_are_two_and_two_tasks_on_each_are_processes_whatever_a_site_injects(site: Site, hooks: str) -> None:
    if site.real and hooks == "enroot":
        pytest.skip("whether a site has enroot's hook for PyTorch is its own affair")
    # pyxis asks for this variable wherever it comes from; enroot's hook asks the image, and has a switch in the stand-in.
    switch = {"pyxis": {"PYTORCH_VERSION": "2.10.0"}, "enroot": {"SLIPWAY_TEST_HOOKS": "enroot"}}.get(hooks, {})
    injected = {
        "none": set(),
        "pyxis": {"RANK"},
        "enroot": {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
    }[hooks]
    for tasks in (1, 2):
        options = ("--nodes=2", f"--ntasks-per-node={tasks}", "--label")
        told = by_task(site.srun(*options, SLIPWAY, "plan", "--json", "linear", **switch).stdout)
        assert len(told) == 2 * tasks
        for task, text in told.items():
            plan = json.loads(text)
            said = {name: (value["value"], value["source"]) for name, value in plan["values"].items()}
            assert said["WORLD_SIZE"] == ("2", "Slurm (SLURM_STEP_NUM_NODES)")
            assert said["RANK"] == (str(task // tasks), "Slurm (SLURM_NODEID)")
            assert said["MASTER_ADDR"][1] == "Slurm (SLURM_STEP_NODELIST)"
            assert said["MASTER_PORT"][1].startswith("Slurm (hash of step ")
            assert {name for name, value in plan["values"].items() if value["overruled"]} == injected
            assert plan["topology"]["level"] == ("node" if tasks == 1 else "process")
            assert "OMP_NUM_THREADS" in plan["torchrun"]["env"]  # ours: a hook's is not the user's
            if tasks == 2:
                assert (plan["torchrun"]["env"]["RANK"], plan["torchrun"]["env"]["WORLD_SIZE"]) == (str(task), "4")


def test_two_tasks_on_each_node_train_as_four_processes_where_a_hook_says_four_nodes(stand_in: Site) -> None:
    tasks = ("--nodes=2", "--ntasks-per-node=2")
    done = stand_in.srun(*tasks, SLIPWAY, "run", *LINEAR, SLIPWAY_TEST_HOOKS="enroot")
    assert done.stderr.count(PROCESS_MODE) == 4
    assert "2 nodes × 2 CPU processes = 4 processes" in done.stderr


def test_a_task_finds_what_pyxis_leaves_it(site: Site) -> None:
    tasks = probe(site, "--nodes=2", "--ntasks-per-node=2", SLIPWAY_IMAGE="the job's", MINE="mine")
    assert len(tasks) == 4
    assert len({task["container"] for task in tasks}) == 2  # one for all tasks of a node
    for task in tasks:
        assert task["uid"] == str(site.user or os.getuid())
        assert task["capabilities"] == "0" * 16
        assert task["parent"] == "slurmstepd"  # nothing between them: signals may reach the first process alone
        assert (task["root"], task["home"], task["here"]) == ("no", "no", "/workspace, writable: no")
        assert (task["tmp"], task["shm"]) == ("yes, type: tmpfs", "yes")
        assert task["slipway"] == SLIPWAY  # the login shell has made PATH anew, and /etc/profile.d adds us
        assert task["image"] not in ("", "the job's")
        assert task["mine"] == "mine"


def test_a_variable_named_in_container_env_is_the_jobs_again(site: Site) -> None:
    [task] = probe(site, "--container-env", "SLIPWAY_IMAGE,PATH", SLIPWAY_IMAGE="the job's")
    assert task["image"] == "the job's"
    assert task["slipway"] == ""  # and so is PATH


def test_without_our_file_in_profile_d_only_the_absolute_path_is_left(site: Site) -> None:
    empty = site.team / "empty"
    empty.mkdir(exist_ok=True)
    hidden = f"--container-mounts={empty}:/etc/profile.d"
    assert "slipway: No such file" in site.try_srun(hidden, "slipway", "--version").stderr
    assert site.srun(hidden, SLIPWAY, "--version").stdout.startswith("slipway")


def test_the_entrypoint_becomes_what_pyxis_puts_behind_it_and_the_job_runs(site: Site) -> None:
    done = site.srun("--container-entrypoint", "--container-workdir=/tmp", "sh", "-c", f"pwd; exec {SLIPWAY} --version")
    assert re.fullmatch(r"/tmp\nslipway[^\n]*\n", done.stdout)


@pytest.mark.parametrize("tracking", ["linuxproc", "cgroup"])
def test_a_cancelled_job_saves_before_its_container_goes(sites: Callable[[str], Site], tracking: str) -> None:
    """With linuxproc the signal reaches every process of the step, with cgroup the launcher alone."""
    site = sites(tracking)
    job = site.train("linear", "--steps", "10000000", "--log-every", "100", options=("--nodes=1",))
    job.wait_for("step 100/")
    site.cluster.command("scancel", job.number)
    assert job.end() == "CANCELLED"
    [run] = site.team.glob(f"runs/[!.]*-{job.number}")
    outcome = json.loads((run / "outcome.json").read_text())  # `srun` may be gone before it can print that
    assert outcome["code"] == 75
    assert "snapshot saved" in outcome["first"]["evidence"]


def test_an_image_has_references_of_all_three_kinds(stand_in: Site) -> None:
    known = json.loads((stand_in.cluster.shared / "pyxis/images.json").read_text())
    assert len(known) == 3
    for reference in known:
        assert replace(stand_in, image=reference).srun("cat", "/etc/debian_version").stdout.startswith("13")
