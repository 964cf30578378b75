"""The image under every lock that a cluster puts on it, and what it says where too little was given."""

import os
from pathlib import Path

import pytest
from containers import IN_MEMORY, NOEXEC, SMALL_SHM, WELL, Containers

LOCKED = (
    "--user 12345:0 --read-only --tmpfs /tmp:exec,mode=1777 --cap-drop ALL --security-opt no-new-privileges "
    "--network none"
)


@pytest.mark.core
def test_any_user_trains_read_only_without_capabilities_and_network(container: Containers) -> None:
    job = container(f"{LOCKED} IMG gpt --steps 4 --eval-samples 64 --sample-tokens 8", warns=(IN_MEMORY, SMALL_SHM))
    assert any(line.startswith("finished on 1 node") for line in job.closing), job.text
    assert "results are in /tmp/slipway-12345/runs/" in job.text


@pytest.mark.parametrize(
    ("options", "warns", "remedy"),
    [
        ("--volume /checkpoints", (SMALL_SHM,), "add --shm-size 1g to docker run"),
        (f"{WELL} --tmpfs /tmp", (NOEXEC,), "add --tmpfs /tmp:exec,mode=1777 to docker run"),
        (f"{WELL} --tmpfs /tmp:exec,mode=1777", (), ""),
    ],
    ids=["64 MB of /dev/shm", "noexec /tmp", "enough of both"],
)
def test_too_little_is_a_warning_with_the_flag_to_add(
    container: Containers, options: str, warns: tuple[str, ...], remedy: str
) -> None:
    assert remedy in container(f"{options} IMG plan", warns=warns).text


def test_too_little_does_not_keep_our_workloads_from_training(container: Containers) -> None:
    job = container("--volume /checkpoints --tmpfs /tmp IMG linear --epochs 1", warns=(SMALL_SHM, NOEXEC))
    assert any(line.startswith("finished on 1 node") for line in job.closing), job.text


def test_a_mounted_folder_gets_files_of_the_caller_who_can_go_on_with_the_commands_to_try_next(
    container: Containers, runs: Path
) -> None:
    runs.chmod(0o755)
    quick = "--eval-samples 16 --sample-tokens 0"
    job = container(f"--shm-size 1g --user {os.getuid()}:0 --volume {runs}:/checkpoints IMG gpt --steps 2 {quick}")
    assert {path.stat().st_uid for path in runs.rglob("*")} == {os.getuid()}
    said = [line.partition("next: docker run --rm ")[2] for line in job.closing if "next: docker run --rm " in line]
    report, sample, resume = (line.replace("$PWD/runs", str(runs)).replace(" slipway:dev ", " IMG ") for line in said)
    assert "with your image's name, or pass -e IMAGE=NAME to docker run." in job.text
    container(report)
    assert list(runs.glob("*/report.html"))
    assert container(f"{sample} --tokens 4").stdout.startswith("def ")
    assert "step 3/3" in container(f"{resume} --steps 3 {quick}").text


@pytest.mark.parametrize(
    ("volume", "said"),
    [("{}:/checkpoints", 'add --user "$(id -u):0" to docker run'), ("{}:/checkpoints:ro", "mount it without :ro")],
    ids=["another's", "read-only"],
)
def test_a_mounted_folder_that_cannot_be_written_is_said_before_training(
    container: Containers, tmp_path: Path, volume: str, said: str
) -> None:
    job = container(f"--shm-size 1g --user 4711:0 --volume {volume.format(tmp_path)} IMG linear", code=78)
    assert said in job.text
    assert "run directory" not in job.text


def test_compile_on_the_cpu_is_refused_with_what_is_missing(container: Containers) -> None:
    job = container(f"{WELL} IMG linear --compile --epochs 1", code=78)
    assert "g++ is not installed. Add it in an image of your own (images/extend/Dockerfile" in job.text
