"""Words of another launcher's command that are left in front of a script: one answer, with the line to type."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from stand_ins import Slipway

from slipway.cli.launching import TORCHRUN, TORCHRUN_FLAGS

INSTEAD = {
    "python t.py": "slipway run t.py",
    "python3 -u t.py --lr 1": "slipway run t.py --lr 1",
    "python3.12 -X dev -W error -Xfaulthandler t.py -u": "slipway run t.py -u",
    "/usr/bin/python -m pkg.train -x": "slipway run -m pkg.train -x",
    "python -um pkg.train": "slipway run -m pkg.train",
    "python -c pass": "slipway run --no-python python -c pass",
    "python": "slipway run SCRIPT [arguments]",
    "torchrun --nproc_per_node 2 t.py --r 1": "slipway run --nproc_per_node 2 t.py --r 1",
    "torchrun": "slipway run SCRIPT [arguments]",
    "python -m torch.distributed.launch --use_env --nproc_per_node=2 t.py": "slipway run --nproc_per_node=2 t.py",
    "python -m torch.distributed.run --standalone t.py": "slipway run --standalone t.py",
    "-m torch.distributed.run --nnodes 1 t.py": "slipway run --nnodes 1 t.py",
    "--no-python torchrun --nproc_per_node 2 t.py": "slipway run --nproc_per_node 2 t.py",
    "--no-python python -m torch.distributed.run t.py": "slipway run t.py",
    "accelerate launch --num_processes 2 t.py --lr 1": "slipway run t.py --lr 1",
    "deepspeed --num_gpus 2 t.py": "slipway run t.py",
    "torchx run dist.ddp": "slipway run SCRIPT [arguments]",
}


@pytest.mark.parametrize("typed", INSTEAD)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_another_launcher_in_front_of_a_script_is_left_out(slipway: Slipway, typed: str, command: str) -> None:
    Path("t.py").touch()
    answer = slipway(command, *typed.split())
    assert (answer.code, answer.out) == (78, "")
    assert re.search(r"(\S+) is not needed, because `slipway run` starts the script itself\.", answer.err)
    assert answer.err.rstrip().endswith(INSTEAD[typed])


@pytest.mark.parametrize(
    "typed", ["mpirun -n 2 python t.py", "srun --nodes 2 t.py", "/usr/bin/mpiexec t.py", "--no-python jsrun t.py"]
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_what_starts_commands_on_several_nodes_goes_before_slipway(slipway: Slipway, typed: str, command: str) -> None:
    Path("t.py").touch()
    answer = slipway(command, *typed.split())
    assert (answer.code, answer.out) == (78, "")
    assert re.search(
        r"(\w+) starts commands.* belongs before slipway\. Type: \1 \[options\] slipway run SCRIPT", answer.err
    )


def test_a_file_in_the_current_folder_is_no_launcher_whatever_its_name(slipway: Slipway) -> None:
    Path("composer").write_text("#!/bin/sh\n")
    Path("composer").chmod(0o755)
    assert slipway("plan", "--no-python", "./composer", "t.py").code == 0


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A program `python`, which some systems lack: they have only `python3`."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    "words", [["--no-python", "python", "t.py"], ["--no-python", "sh", "-c", "python t.py"], ["t.py", "python"]]
)
def test_a_program_that_is_to_be_started_as_it_is_is_started(slipway: Slipway, words: list[str]) -> None:
    Path("t.py").touch()
    assert slipway("plan", *words).code == 0


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["python", "t.py", "-x"], "slipway: python is executed as it is, without the launcher. With it: slipway run t.py -x\n"),
        (["python", "-c", "pass"], ""),
        (["python", "-m", "pip", "list"], ""),
        (["true", "t.py"], ""),
    ],
)  # fmt: skip
def test_an_executable_is_started_as_it_is_and_a_script_behind_python_is_pointed_out(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    def start(program: str, typed: list[str], environ: dict[str, str]) -> None:
        assert typed == words
        assert environ == {**os.environ, "USER": "uid-1001", "LOGNAME": "uid-1001"}
        sys.exit(0)

    monkeypatch.setattr(os, "execve", start)
    monkeypatch.setattr("slipway.cli.cli.name_user", lambda environ: {"USER": "uid-1001", "LOGNAME": "uid-1001"})
    assert slipway(*words).err == said


@pytest.mark.parametrize("flag", ["--use_env", "--use-env", "--run-path", "--virtual-local-rank"])
def test_a_switch_of_torchruns_is_refused_and_takes_no_value(slipway: Slipway, flag: str) -> None:
    Path("t.py").touch()
    answer = slipway("run", "--nproc-per-node", "2", flag, "t.py")
    assert answer.code == 78
    name = flag.replace("_", "-")
    assert f"{name} is an option of torchrun: {TORCHRUN[(name,)]}." in answer.err


REFUSED = [names[0] for names, instead in TORCHRUN.items() if instead and names[0] not in TORCHRUN_FLAGS]


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_of_torchruns_is_refused_with_what_replaces_it(slipway: Slipway, name: str) -> None:
    Path("t.py").touch()
    answer = slipway("run", "--nproc-per-node", "2", name.replace("-", "_").replace("__", "--", 1), "1", "t.py")
    [instead] = [instead for names, instead in TORCHRUN.items() if names[0] == name]
    assert (answer.code, f"{name} is an option of torchrun: {instead}." in answer.err) == (78, True), answer.err


@pytest.mark.parametrize("typed", ["app", "./app", "app/", "fabric", "./composer"])
def test_a_folder_with_a_main_module_is_a_script(slipway: Slipway, typed: str) -> None:
    Path(typed).mkdir()
    Path(typed, "__main__.py").touch()
    answer = slipway("plan", "--json", typed, "--lr", "1")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["torchrun"]["argv"][-5:] == [sys.executable, "-u", typed, "--lr", "1"]
