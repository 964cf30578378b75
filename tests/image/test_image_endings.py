"""How a container ends: the exit codes of the one table arrive outside, and a stopped job keeps its snapshot."""

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from containers import PATIENCE, WELL, Containers, command_line, docker, fresh_name
from old_kernel import write_profile

ENDLESS = "linear --epochs 100000"


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        (0, f"{WELL} IMG linear --epochs 1", "finished on 1 node: 128 steps"),
        (1, f"{WELL} --volume {{folder}}:/workspace:ro IMG exits.py", "exit code 3"),
        (2, "IMG run --no-such-option", "No such option"),
        (
            76,
            f"{WELL} -e RANK=0 -e WORLD_SIZE=2 -e MASTER_ADDR=127.0.0.1 -e SLIPWAY_RENDEZVOUS_TIMEOUT=1 IMG linear",
            "missing node rank 1",
        ),
        (78, "-e RANK=2 -e WORLD_SIZE=2 IMG linear", "RANK counts nodes"),
        (78, "IMG liner", "linear"),
        (93, f"{WELL} IMG linear --epochs 1 --lr 1e38 --nonfinite-budget 0", "not finite"),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_the_exit_code_arrives_outside(container: Containers, tmp_path: Path, code: int, line: str, said: str) -> None:
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    tmp_path.chmod(0o755)
    warns = ("the working directory /workspace cannot be written",) if ":ro" in line else ()
    assert said in container(line.format(folder=tmp_path), code=code, warns=warns).text


@pytest.mark.parametrize("most", [3, 8])
def test_a_limit_of_processes_is_an_unhealthy_node_that_says_which_limit(container: Containers, most: int) -> None:
    user = 4800 + most  # the limit counts all processes of a user, so no other test runs as this one
    options = f"--user {user}:0 --ulimit nproc={most}:{most} {WELL}"
    job = container(f"{options} IMG linear --steps 5", code=77)
    assert "ulimit -u" in job.text


@pytest.mark.parametrize("end", ["by itself", "stopped"])
def test_the_oldest_kernel_will_do(container: Containers, tmp_path: Path, end: str) -> None:
    options = f"--security-opt seccomp={write_profile(tmp_path / 'profile.json')} {WELL}"
    if end == "by itself":
        assert "finished on 1 node" in container(f"{options} IMG gpt --steps 3 --sample-tokens 0").text
        return
    job = container.start(f"{options} --stop-timeout 120 IMG {ENDLESS}")
    job.wait_for("step 50/")
    docker("stop", job.name)
    job.wait(75)


def test_ctrl_c_ends_a_container_in_the_foreground_with_79(undo: ExitStack) -> None:
    name = fresh_name()
    undo.callback(docker, "rm", "--force", "--volumes", name)
    words = ["docker", "run", "--name", name, *command_line(f"{WELL} IMG {ENDLESS}")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
        assert client.stdout
        said = ""
        while "step 50/" not in said:
            said += (line := client.stdout.readline())
            assert line, said
        client.send_signal(signal.SIGINT)
        said += client.communicate(timeout=PATIENCE)[0]
    assert client.returncode == 79, said
    assert docker("wait", name).strip() == "79"


def test_a_killed_container_has_no_verdict_of_ours(container: Containers) -> None:
    job = container.start(f"{WELL} -e RANK=0 -e WORLD_SIZE=2 -e MASTER_ADDR=127.0.0.1 IMG linear")
    job.wait_for("waiting for nodes: 1 of 2")
    docker("kill", job.name)
    job.wait(137)
    assert "exit code" not in job.text
