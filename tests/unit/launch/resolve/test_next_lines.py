"""What a finished run tells to type next can be pasted, wherever the run was."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from stand_ins import make_devices, make_host, make_sources, plan_for

from slipway.launch import closing
from slipway.launch.closing import find_here, in_place, typed_program
from slipway.launch.resolve.catalog import WORKLOADS, find_workload, words_of
from slipway.launch.resolve.container_checks import fleeting_results
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.next_lines import (
    IMAGE_USER,
    Invocation,
    as_typed,
    fill_in,
    fold_command,
    name_store,
    next_commands,
)
from slipway.launch.resolve.settings import SETTINGS
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.protocol.outcomes import Word

TRAIN, READ = "slipway gpt --run-dir /checkpoints/mine --resume auto --steps 80", "slipway report /checkpoints/mine"
ROOM = "--shm-size 1g --stop-timeout 120"
VOLUME = '-v "$PWD/runs:/checkpoints"'
SRUN = "srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=4"
OWN = "--no-container-mount-home --no-container-entrypoint /opt/slipway/bin/slipway"
PYXIS = f'--container-image=/shared/slipway.sqsh --container-mounts="/shared/runs:/checkpoints" {OWN}'
OTHERS = (("/home/me/project", "/workspace"), ("./cache", "/data"))
MOUNTS = '"/shared/runs:/checkpoints,/home/me/project:/workspace,$PWD/cache:/data" --container-workdir=/workspace'

CASES = [
    (Invocation("host"), "slipway gpt --run-dir /checkpoints/mine --resume auto --steps 80", READ),
    (
        Invocation("host", ".venv/bin/slipway"),
        TRAIN.replace("slipway", ".venv/bin/slipway"),
        READ.replace("slipway", ".venv/bin/slipway"),
    ),
    (
        Invocation("docker", "", "team/slipway:2", gpus=1),
        f"docker run --rm --gpus all {ROOM} -e IMAGE=team/slipway:2 {VOLUME} team/slipway:2 {TRAIN[8:]}",
        f"docker run --rm {VOLUME} team/slipway:2 {READ[8:]}",
    ),
    (
        Invocation("docker", "", usual="slipway:dev-cpu"),
        f"docker run --rm {ROOM} {VOLUME} slipway:dev-cpu {TRAIN[8:]}",
        f"docker run --rm {VOLUME} slipway:dev-cpu {READ[8:]}",
    ),
    (
        Invocation("docker", "", user=4711),
        f"docker run --rm --user 4711:0 {ROOM} {VOLUME} slipway:dev {TRAIN[8:]}",
        f"docker run --rm --user 4711:0 {VOLUME} slipway:dev {READ[8:]}",
    ),
    (
        Invocation("docker", "", user=4711, source=""),
        f'mkdir -p runs && docker run --rm --user "$(id -u):0" {ROOM} {VOLUME} slipway:dev {TRAIN[8:]}',
        f"docker run --rm --user 4711:0 slipway:dev {READ[8:]}",
    ),
    (
        Invocation("docker", "", source="my-volume"),
        f'docker run --rm {ROOM} -v "my-volume:/checkpoints" slipway:dev {TRAIN[8:]}',
        f'docker run --rm -v "my-volume:/checkpoints" slipway:dev {READ[8:]}',
    ),
    (
        Invocation("docker", "", source="./my runs"),
        f'docker run --rm {ROOM} -v "$PWD/my runs:/checkpoints" slipway:dev {TRAIN[8:]}',
        f'docker run --rm -v "$PWD/my runs:/checkpoints" slipway:dev {READ[8:]}',
    ),
    (
        Invocation("docker", "", source="/elsewhere/my $results"),
        f'docker run --rm {ROOM} -v "/elsewhere/my \\$results:/checkpoints" slipway:dev {TRAIN[8:]}',
        f'docker run --rm -v "/elsewhere/my \\$results:/checkpoints" slipway:dev {READ[8:]}',
    ),
    (
        Invocation("compose", "", service="train"),
        f"docker compose run --rm train {TRAIN[8:]}",
        f"docker compose run --rm train {READ[8:]}",
    ),
    (
        Invocation("compose", "", nodes=2, service="node0"),
        f"docker compose run --rm node0 {TRAIN[8:]} --standalone",
        f"docker compose run --rm node0 {READ[8:]}",
    ),
    (
        Invocation("slurm", "", "/shared/slipway.sqsh", gpus=4, nodes=2, source="/shared/runs"),
        f"{SRUN} {PYXIS} {TRAIN[8:]}",
        f"srun {PYXIS} {READ[8:]}",
    ),
    (
        Invocation("slurm", "", gpus=4, nodes=2, source="/shared/runs", others=OTHERS),
        f"{SRUN} --container-image=/shared/images/slipway.sqsh --container-mounts={MOUNTS} {OWN} {TRAIN[8:]}",
        f"srun --container-image=/shared/images/slipway.sqsh --container-mounts={MOUNTS} {OWN} {READ[8:]}",
    ),
    (
        Invocation("slurm", "", "/shared/slipway.sqsh", gpus=4, nodes=2, source=""),
        f"mkdir -p runs && {SRUN} {PYXIS.replace('/shared/runs', '$PWD/runs')} {TRAIN[8:]}",
        f"srun --container-image=/shared/slipway.sqsh {OWN} {READ[8:]}",
    ),
    (
        Invocation("slurm", "/shared/venv/bin/slipway", gpus=4, nodes=2),
        f"{SRUN} /shared/venv/bin/{TRAIN}",
        f"/shared/venv/bin/{READ}",
    ),
    (
        Invocation("kubernetes", "", "registry.example/slipway:2", gpus=4, nodes=2),
        "slipway render k8s --gpus 4 --nodes 2 --image registry.example/slipway:2 --name slipway-next --with pvc "
        f"{TRAIN[8:]} | kubectl apply -f -",
        None,
    ),
]


@pytest.mark.parametrize(("here", "train", "read"), CASES)
def test_each_runtime_has_its_own_form(here: Invocation, train: str, read: str | None) -> None:
    assert as_typed(TRAIN, here) == train
    assert read is None or as_typed(READ, here) == read


def test_a_new_run_of_a_compose_project_does_not_go_on_with_the_last_one() -> None:
    assert (
        as_typed("slipway linear --compare", Invocation("compose", ""))
        == "docker compose run --rm train linear --compare --resume none"
    )


def test_a_pod_reads_a_run_from_the_claim() -> None:
    words = shlex.split(
        as_typed('slipway sample /checkpoints/mine --prompt "def "', Invocation("kubernetes", "", "slipway:2"))
    )
    pod = json.loads(words[-1].removeprefix("--overrides="))["spec"]
    assert words[:3] == ["kubectl", "run", "slipway-next"]
    assert "--image=slipway:2" in words
    assert pod["containers"][0]["args"] == ["sample", "/checkpoints/mine", "--prompt", "def "]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] in Path("k8s/claims.yaml").read_text()


COMMANDS = sorted({command for workload in WORKLOADS.values() for command in workload.next})


@pytest.mark.parametrize("here", [case[0] for case in CASES])
@pytest.mark.parametrize("columns", [60, 80])
def test_a_command_in_rows_is_the_same_to_a_shell(here: Invocation, columns: int) -> None:
    for command in COMMANDS:
        filled = fill_in(command, "/checkpoints/a run", 40, ["--dataset", "file:it's.txt"])
        whole = as_typed(filled, here)
        before = "slipway:   next: "
        folded = fold_command(before, whole, columns)
        rows = folded.split("\n")
        longest = max(map(len, shlex.split(whole)))
        assert all(len(row) <= max(columns, len(before) + longest + 4) for row in rows), folded
        assert shell_words(folded.removeprefix(before)) == shell_words(whole)


def shell_words(command: str) -> list[str]:
    """What bash makes of a command: the words of each program in it."""
    programs = {shlex.split(part)[0] for part in re.split(r" \| | && ", command)}
    stand_ins = "".join(f"function {name} {{ printf '%s\\n' {name} \"$@\" >&2; }}\n" for name in programs)
    done = subprocess.run(["bash", "-uc", stand_ins + command], capture_output=True, text=True, check=True)
    return sorted(done.stderr.splitlines())


@pytest.mark.parametrize(
    ("runtime", "image", "environ", "expected"),
    [
        ("docker", None, {}, ("host", "")),
        ("docker", "0.1.0", {}, ("docker", "")),
        ("docker", "0.1.0", {"IMAGE": "slipway:2"}, ("docker", "slipway:2")),
        ("compose", "0.1.0", {"COMPOSE_SERVICE": "train"}, ("compose", "")),
        ("slurm", None, {}, ("slurm", "")),
        ("slurm", "0.1.0", {"IMAGE": "/x.sqsh", "RUNS": "/runs"}, ("slurm", "/x.sqsh")),
        ("slurm", "0.1.0", {"PYXIS_CONTAINER_IMAGE": "/x.sqsh"}, ("slurm", "/x.sqsh")),
    ],
)
def test_where_a_run_was_is_seen(
    monkeypatch: pytest.MonkeyPatch, runtime: str, image: str | None, environ: dict[str, str], expected: tuple[str, str]
) -> None:
    monkeypatch.setattr("os.getuid", lambda: IMAGE_USER)
    host = make_host()._replace(image=image, runtime=runtime)
    here = find_here(
        Job(plan_for(devices=make_devices(2)), make_sources(environ), make_devices(2), environ, None, host), False
    )
    assert (here.runtime, here.image) == expected
    assert bool(here.program) is (image is None)
    assert (here.gpus, here.nodes, here.results) == (2, 1, "/checkpoints")


@pytest.mark.parametrize(
    ("runtime", "environ", "options", "repeated"),
    [
        ("docker", {"NPROC_PER_NODE": "1"}, {}, True),
        ("docker", {}, {"NPROC_PER_NODE": "1"}, True),
        ("docker", {}, {}, False),
        (
            "compose",
            {"NPROC_PER_NODE": "1", "COMPOSE_SERVICE": "train"},
            {},
            True,
        ),  # the shell may have had it, not .env
        ("host", {}, {"NPROC_PER_NODE": "1"}, True),
        ("host", {"NPROC_PER_NODE": "1"}, {}, False),  # this shell has it still
        ("slurm", {"NPROC_PER_NODE": "1"}, {}, False),
    ],
)
def test_a_command_that_resumes_repeats_the_number_of_processes(
    runtime: str, environ: dict[str, str], options: dict[str, str], repeated: bool
) -> None:
    host = make_host()._replace(image=None if runtime == "host" else "0.1.0", runtime=runtime)
    plan, sources = plan_for(environ=environ, options=options), make_sources(environ, options)
    here = find_here(Job(plan, sources, make_devices(), environ, None, host), False)
    resumes = as_typed("slipway linear --run-dir runs/a --resume auto --steps 9", here)
    assert (" --resume auto --steps 9 --nproc-per-node 1" in resumes) is repeated
    assert "--nproc-per-node" not in as_typed("slipway report runs/a", here)


def test_a_command_that_trains_repeats_what_else_was_set_with_e_and_no_secret() -> None:
    environ = {"SLIPWAY_GRACE_SECONDS": "60", "SLIPWAY_TOKEN": "hunter2hunter2", "RANK": "0", "SLIPWAY_RESUME": "auto"}
    host = make_host()._replace(image="0.1.0", runtime="docker")
    here = find_here(Job(plan_for(), make_sources(environ), make_devices(), environ, None, host), False)
    assert " 120 -e SLIPWAY_GRACE_SECONDS=60 -e SLIPWAY_TOKEN -v " in as_typed("slipway linear --resume auto", here)
    assert " -e " not in as_typed("slipway report runs/a", here)
    assert {setting.name for setting in SETTINGS} >= closing.NOT_REPEATED


@pytest.mark.parametrize(
    ("runtime", "image", "typed"),
    [
        ("docker", "0.1.0", "docker exec 0123456789ab slipway stop runs/a"),
        ("compose", "0.1.0", "docker exec 0123456789ab slipway stop runs/a"),
        ("kubernetes", "0.1.0", "kubectl exec node0 -- slipway stop runs/a"),
        ("slurm", "0.1.0", "slipway stop runs/a"),
        ("docker", None, "slipway stop runs/a"),
    ],
)
def test_while_a_container_runs_commands_are_typed_into_it(runtime: str, image: str | None, typed: str) -> None:
    host = make_host("node0.example")._replace(image=image, runtime=runtime, container="0123456789ab" + 52 * "c")
    assert in_place("type `slipway stop runs/a`", host) == f"type `{typed}`"


def test_what_was_mounted_for_reading_is_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "is_read_only", lambda place: place == Path("/workspace"))
    here = find_here(job_under_srun({"SLURM_SUBMIT_DIR": "/home/me"}, "/checkpoints", "/workspace"), False)
    typed = as_typed("slipway gpt", here)
    assert '/runs:/checkpoints,/home/me:/workspace:ro" --container-workdir=/workspace ' in typed


def job_under_srun(environ: dict[str, str], *mounts: str) -> Job:
    """A job in the image under a user's own srun, with these folders mounted."""
    host = make_host()._replace(image="0.1.0", runtime="slurm")
    host = host._replace(
        mounts={Path(place): "ext4" for place in mounts} | {Path("/"): "overlay", Path("/tmp"): "tmpfs"}
    )
    sources = make_sources(
        {"SLIPWAY_RUNS": "/checkpoints" if "/checkpoints" in mounts else "/tmp/slipway-7/runs"} | environ
    )
    return Job(plan_for(devices=make_devices()), sources, make_devices(), environ, None, host)


def test_what_srun_mounted_is_mounted_again() -> None:
    batch = {"RUNS": "/shared/runs", "DATA": "/shared/cache", "SLURM_SUBMIT_DIR": "/home/me/project"}
    here = find_here(job_under_srun(batch, "/checkpoints", "/data", "/workspace"), False)
    assert (here.source, here.results) == ("/shared/runs", "/checkpoints")
    assert here.others == (("/home/me/project", "/workspace"), ("/shared/cache", "/data"))
    assert not here.unknown_folders
    own = find_here(job_under_srun({}, "/checkpoints"), False)
    assert (own.source, own.results, own.others) == ("./runs", "/checkpoints", ())
    assert own.unknown_folders == [("runs", "/checkpoints")]


@pytest.mark.parametrize(
    ("arguments", "others", "workdir"),
    [
        ("", ["/data"], "/workspace"),
        ("--dataset file:src/a.txt", ["/data", "/workspace"], "/workspace"),
        ("--export out", ["/data", "/workspace"], "/workspace"),  # which is not there yet
        ("--dataset=tokens:/mnt/disk/tokens --lr 1", ["/data", "/mnt/disk"], "/workspace"),
        ("--dataset hub:owner/name", ["/data", "/mnt/disk"], "/mnt/disk/here"),
        ("--dataset file:/etc/passwd", ["/data"], "/workspace"),  # the image's own
    ],
)
def test_a_container_mounts_what_the_arguments_name_and_starts_in_the_same_folder(
    monkeypatch: pytest.MonkeyPatch, arguments: str, others: list[str], workdir: str
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: workdir)
    monkeypatch.setattr(closing, "mounted_from", lambda place: f"/home/me{place}")
    mounts = {Path(place): "ext4" for place in ("/checkpoints", "/data", "/workspace", "/mnt/disk", "/mnt/other")}
    host = make_host()._replace(image="0.1.0", runtime="docker", mounts={**mounts, Path("/"): "overlay"})
    plan = plan_for(("gpt", *arguments.split()))
    here = find_here(Job(plan, make_sources({"SLIPWAY_RUNS": "/checkpoints"}), make_devices(), {}, None, host), False)
    assert here.others == tuple((f"/home/me{place}", place) for place in others)
    trains = as_typed("slipway gpt --run-dir /checkpoints/a --resume auto", here)
    assert all(f'-v "/home/me{place}:{place}"' in trains for place in others)
    assert (f" -w {workdir} " in trains) is (workdir != "/workspace")
    assert as_typed("slipway report /checkpoints/a", here).count(" -v ") == 1


def test_a_container_of_a_script_mounts_the_folder_that_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/workspace")
    monkeypatch.setattr(closing, "mounted_from", lambda place: f"/home/me{place}")
    mounts = {Path(place): "ext4" for place in ("/", "/checkpoints", "/workspace", "/mnt/other")}
    host = make_host()._replace(image="0.1.0", runtime="docker", mounts=mounts)
    plan, sources = plan_for(("-m", "json.tool")), make_sources({"SLIPWAY_RUNS": "/checkpoints"})
    here = find_here(Job(plan, sources, make_devices(), {}, None, host), False)
    assert here.others == (("/home/me/workspace", "/workspace"),)


@pytest.mark.parametrize(
    ("runtime", "mounts", "volume", "said"),
    [
        ("docker", {"/": "overlay"}, "", " of this container alone: gone now if it was started with --rm, else to be copied by docker cp "
         "0123456789ab:/checkpoints/gpt ."),
        ("docker", {"/": "overlay", "/checkpoints": "ext4"}, "", " of this container alone: gone now if it was started with --rm"),
        ("docker", {"/": "overlay", "/checkpoints": "ext4"}, "runs", ""),
        ("docker", {"/": "overlay", "/checkpoints": "tmpfs"}, "", " in memory, until this container or the machine ends"),
        ("kubernetes", {"/": "overlay"}, "", " until this container or pod is removed"),
        ("host", {"/": "ext4"}, "", ""),
    ],
)  # fmt: skip
def test_where_results_are_is_not_said_without_how_long(
    runtime: str, mounts: dict[str, str], volume: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "mounted_from", lambda place: volume)
    environ = {"SLIPWAY_RUNS": "/checkpoints"}
    host = make_host()._replace(
        runtime=runtime,
        image=None if runtime == "host" else "0.1.0",
        mounts={Path(place): kind for place, kind in mounts.items()},
        container="0123456789abcdef",
    )
    job = Job(plan_for(("gpt",), {}), make_sources(environ), make_devices(), environ, None, host)
    fleeting = fleeting_results(host, Path("/checkpoints"))
    told = closing.alone_there(job, Path("/checkpoints/gpt"), fleeting)
    assert told.startswith(said) if said else not told


def test_results_in_the_containers_memory_are_kept_the_next_time() -> None:
    here = find_here(job_under_srun({}), fleeting=True)
    assert "mkdir -p runs && srun --nodes=1 --ntasks-per-node=1" in as_typed("slipway gpt", here)
    assert '--container-mounts="$PWD/runs:/checkpoints"' in as_typed("slipway gpt", here)


def test_slipway_is_typed_by_its_path_where_no_shell_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / ".venv/bin/slipway"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", "/usr/bin")
    assert closing.typed_program() == ".venv/bin/slipway"
    monkeypatch.setenv("PATH", str(program.parent))
    assert closing.typed_program() == "slipway"
    program.unlink()
    assert closing.typed_program() == f"{program.with_name('python')} -m slipway"


def test_where_the_run_vanishes_no_command_to_try_next_needs_it() -> None:
    for workload in WORKLOADS.values():
        assert next_commands(workload, fleeting=False) == workload.next
        commands = next_commands(workload, fleeting=True)
        assert len(commands) == 3
        assert not any("{run}" in command for command in commands)
    assert next_commands(plan_for(("-m", "own")).workload, fleeting=True) == ()


def test_a_command_that_resumes_names_the_store_of_the_run() -> None:
    resumes = "slipway gpt --run-dir mine --resume auto --steps 80"
    assert name_store(resumes, "s3://b/x") == "slipway gpt --run-dir mine --resume auto --store s3://b/x --steps 80"
    assert name_store(resumes, "") == resumes
    assert name_store("slipway report mine", "s3://b/x") == "slipway report mine"


def test_a_run_that_was_stopped_goes_on_with_the_first_command_to_try_next() -> None:
    for workload in WORKLOADS.values():
        first, *others = next_commands(workload, fleeting=False, stopped=True)
        assert (first == f"slipway {workload.name} --run-dir {{run}} --resume auto{{same}}") == workload.resumes
        assert not any("--resume" in command for command in others)


@pytest.mark.parametrize(("step", "stopped"), [(41, True), (None, True), (41, False)])
def test_a_script_that_was_stopped_with_a_snapshot_is_resumed_by_the_command_that_is_shown(
    tmp_path: Path, step: int | None, stopped: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_for(("-m", "own", "--lr", "1", "--token", "hf_abcdefghijklmnopqrstuvwxyz0123"))
    job = Job(plan, make_sources({}), make_devices(), {}, None, make_host())
    run = SimpleNamespace(path=tmp_path / "my run", newest_step=step)
    closing.show_next(job, run, fleeting=False, stopped=stopped)  # type: ignore[arg-type]
    shown = capfd.readouterr().err.replace(typed_program(), "slipway")
    words = f"run --run-dir '{tmp_path / 'my run'}' --resume auto -m own --lr 1 --token '***'"
    assert shown == (f"slipway:   next: slipway {words}\n" if step and stopped else "")


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("train.py", "--lr", "1"), ("train.py",)),
        (("-m", "package.train", "x"), ("-m", "package.train")),
        (("--no-python", "true", "x"), ("--no-python", "true")),
    ],
)
def test_the_words_of_a_program_are_those_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], typed: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert words_of(find_workload(words)[0]) == typed


def test_in_a_container_a_script_is_resumed_with_all_that_it_had() -> None:
    here = Invocation("docker", image="mine", others=(("/home/me", "/workspace"),), options=("--nproc-per-node", "2"))
    assert as_typed("slipway run --run-dir R --resume auto own.py", here, trains=True) == (
        'docker run --rm --shm-size 1g --stop-timeout 120 -e IMAGE=mine -v "$PWD/runs:/checkpoints" -v "/home/me:/workspace" mine '
        "run --run-dir R --resume auto --nproc-per-node 2 own.py"
    )


def test_under_compose_a_script_is_resumed_with_its_folder_and_its_user() -> None:
    others = (("/home/me", "/workspace"), ("slipway_data", "/data"))
    here = Invocation("compose", user=4711, others=others, options=("--debug", "--notify", "a b"))
    assert as_typed("slipway run --run-dir R --resume auto own.py", here, trains=True) == (
        'docker compose run --rm --user 4711:0 -v "/home/me:/workspace" train run --run-dir R --resume auto '
        "--debug --notify 'a b' own.py"
    )
    assert as_typed("slipway report R", here) == "docker compose run --rm --user 4711:0 train report R"


def test_a_command_that_resumes_repeats_the_launchers_options() -> None:
    options = {
        "SLIPWAY_MAX_RESTARTS": "7",
        "SLIPWAY_DEBUG": "1",
        "SLIPWAY_RUN_DIR": "old",
        "NPROC_PER_NODE": "2",
        "WORLD_SIZE": "1",
    }
    plan = plan_for(("-m", "own"), options=options)
    job = Job(plan, make_sources({}, options), make_devices(), {}, None, make_host())
    assert sorted(find_here(job, fleeting=False).options) == ["--debug", "--max-restarts", "--nproc-per-node", "2", "7"]


@pytest.mark.parametrize(
    ("words", "restarts", "step", "word", "said"),
    [
        (
            ("-m", "own"),
            "0",
            353,
            Word.FAILED,
            "step 353. To resume from it; with --max-restarts N it restarts by itself:",
        ),
        (("-m", "own"), "3", 353, Word.PEER, "step 353. To resume from it:"),
        (("-m", "own"), "0", None, Word.FAILED, ""),
        (("-m", "own"), "0", 353, Word.CONFIGURATION, ""),
        (("gpt",), "3", 353, Word.FAILED, ""),
    ],
)
def test_a_script_that_failed_is_resumed_from_its_snapshot(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    restarts: str,
    step: int | None,
    word: Word,
    said: str,
) -> None:
    options = {"SLIPWAY_MAX_RESTARTS": restarts}
    job = Job(plan_for(words, options=options), make_sources({}, options), make_devices(), {}, None, make_host())
    run = SimpleNamespace(path=tmp_path / "run", newest_step=step)
    closing.say_results(judge([Outcome(0, "host", word, 0.0)]), job, run)  # type: ignore[arg-type]
    shown = capfd.readouterr().err
    assert (f"the newest snapshot is that of {said}" in shown) == bool(said)
    assert (f"--resume auto --max-restarts {restarts} -m own" in shown) == bool(said)


def test_the_variables_that_no_command_repeats_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environ = {
        "HF_TOKEN": "hf_x",
        "MY_DATA": "x",
        "SLIPWAY_MAX_RESTARTS": "4",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PATH": "/bin",
    }
    for image, said in (("0.1.0-cpu", True), ("0.1.0-own", False)):  # what a foreign image itself sets is not known
        host = make_host()._replace(image=image, runtime="docker", mounts={Path("/checkpoints"): "ext4"})
        job = Job(plan_for(("-m", "own"), environ), make_sources(environ), make_devices(), environ, None, host)
        run = SimpleNamespace(path=Path("/checkpoints/own-1"), newest_step=41)
        closing.show_next(job, run, fleeting=False, stopped=True)  # type: ignore[arg-type]
        assert ("do not repeat other variables of -e: HF_TOKEN, MY_DATA." in capfd.readouterr().err) == said


@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        (
            ("/checkpoints",),
            "to resume, type the same command on each node, with --run-dir /checkpoints/gpt-1 --resume auto",
        ),
        ((), "to resume, start the containers of all nodes again, unless --rm removed them: docker start CONTAINER"),
    ],
)
def test_no_command_for_one_node_resumes_a_job_of_two(
    mounts: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "node0"}
    host = make_host()._replace(image="0.1.0", runtime="docker", mounts=dict.fromkeys(map(Path, mounts), "ext4"))
    job = Job(plan_for(("gpt",), environ), make_sources(environ), make_devices(), environ, None, host)
    run = SimpleNamespace(path=Path("/checkpoints/gpt-1"), newest_step=41)
    closing.show_next(job, run, fleeting=not mounts, stopped=True)  # type: ignore[arg-type]
    shown = capfd.readouterr().err
    assert said in shown
    assert "gpt --run-dir" not in shown
    assert ("next: docker run" in shown) == bool(mounts)  # what reads the run is one command


@pytest.mark.parametrize(
    ("arguments", "same", "longer"),
    [
        ("", "", " --steps 80"),
        ("--epochs 3 --lr 1", " --epochs 3 --lr 1", " --lr 1 --steps 80"),
        ("--lr 1 --steps=40", " --lr 1 --steps=40", " --lr 1 --steps 80"),
        ("--dataset 'folder:my pictures'", " --dataset 'folder:my pictures'", " --dataset 'folder:my pictures' --steps 80"),
        ("--export there --model small", " --export there --model small", " --model small --steps 80"),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_the_arguments_that_it_had(arguments: str, same: str, longer: str) -> None:
    words = shlex.split(arguments)
    assert fill_in("slipway gpt --run-dir {run}{same}", "mine", 40, words) == f"slipway gpt --run-dir mine{same}"
    assert fill_in("slipway gpt --run-dir {run}{longer}", "mine", 40, words) == f"slipway gpt --run-dir mine{longer}"
