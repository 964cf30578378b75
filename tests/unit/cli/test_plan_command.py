"""`slipway plan`: its two forms, and that it fails where `run` would."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import ENROOT_TASKS, PLAIN, TWO_TASKS_PER_NODE
from stand_ins import Slipway, make_devices

from slipway.cli.arguments import read_job
from slipway.launch.resolve.settings import SETTINGS

TOPOLOGY = {
    "nodes", "least_nodes", "spare_nodes", "node_rank", "processes_per_node", "master_addr", "master_port", "backend", "level", "scheduler", "image",
}  # fmt: skip
# The example of the documentation: a bare srun step with what pyxis puts beside it.
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2", "RANK": "1", "LOCAL_RANK": "0",
}  # fmt: skip


def read_plan(slipway: Slipway, *words: str, **environ: str) -> dict[str, dict[str, object]]:
    answer = slipway("plan", "--json", *words, **environ)
    assert (answer.code, answer.err) == (0, "")
    made: dict[str, dict[str, object]] = json.loads(answer.out)
    return made


def test_a_step_with_injected_values_names_its_master() -> None:
    environ = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **SLURM}
    command = [sys.executable, "-m", "slipway", "plan", "--json", "gpt"]
    topology = json.loads(subprocess.run(command, env=environ, check=True, capture_output=True).stdout)["topology"]
    assert (topology["master_addr"], topology["nodes"], topology["node_rank"]) == ("gpu07", 2, 1)


def test_a_rank_beyond_the_nodes_is_one_line_and_78(slipway: Slipway) -> None:
    answer = slipway("plan", "linear", RANK="3", WORLD_SIZE="2", MASTER_ADDR="a")
    assert answer.code == 78
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1
    assert "0 or 1" in answer.err
    assert "set RANK=1 on the last" in answer.err


@pytest.mark.parametrize("environ", [{}, PLAIN, SLURM, TWO_TASKS_PER_NODE | ENROOT_TASKS])
def test_the_json_form_is_as_documented(slipway: Slipway, environ: dict[str, str]) -> None:
    made = read_plan(slipway, "linear", **environ)
    assert set(made) == {"topology", "values", "options", "torchrun"}
    assert set(made["topology"]) == TOPOLOGY
    assert list(made["values"]) == [setting.name for setting in SETTINGS]
    for value in made["values"].values():
        assert isinstance(value, dict)
        assert set(value) == {"value", "source", "overruled"}
        assert all(set(claim) == {"value", "source"} for claim in value["overruled"])
    assert set(made["torchrun"]) == {"argv", "env"}
    assert isinstance(made["torchrun"]["argv"], list)
    assert isinstance(made["torchrun"]["env"], dict)


def test_a_script_named_like_a_workload_keeps_its_own_options(slipway: Slipway) -> None:
    Path("gpt.py").touch()
    argv = read_plan(slipway, "gpt.py", "--foo", "1")["torchrun"]["argv"]
    assert isinstance(argv, list)
    assert argv[-3:] == ["gpt.py", "--foo", "1"]


def test_only_jobs_that_read_pythons_own_library_compare_it(slipway: Slipway) -> None:
    Path("book.txt").write_text("the sea\n" * 2000)
    assert read_job(["gpt"], {}).data
    assert not read_job(["gpt", "--dataset", "file:book.txt"], {}).data
    assert not read_job(["linear"], {}).data


def test_types_in_json_are_numbers_where_numbers_are_meant(slipway: Slipway) -> None:
    topology = read_plan(slipway, "linear", **PLAIN)["topology"]
    numbers = ("nodes", "node_rank", "processes_per_node", "master_port")
    assert [topology[name] for name in numbers] == [2, 1, 2, 29_500]
    assert (topology["backend"], topology["level"], topology["scheduler"]) == ("gloo", "node", "none")


def test_sources_and_what_they_overruled_are_told(slipway: Slipway) -> None:
    Path(".env").write_text("SLIPWAY_RUNS=/file\n")
    values = read_plan(slipway, "--node-rank", "1", "linear", WORLD_SIZE="2", RANK="0", MASTER_ADDR="a")["values"]
    assert values["RANK"] == {
        "value": "1", "source": "command line (--node-rank)",
        "overruled": [{"value": "0", "source": "environment (RANK)"}],
    }  # fmt: skip
    assert values["SLIPWAY_RUNS"] == {"value": "/file", "source": ".env (SLIPWAY_RUNS)", "overruled": []}


def test_people_read_the_arithmetic_then_values_then_the_command(slipway: Slipway) -> None:
    lines = slipway("plan", "linear", devices=make_devices(2), RANK="0").out.splitlines()
    assert lines[0].startswith("1 node × 2 GPUs = 2 processes")
    assert any(line.startswith("RANK ") and line.endswith("environment (RANK)") for line in lines)
    assert lines[-1].strip().startswith("torchrun --nnodes=1 --node-rank=0 --nproc-per-node=2")


def test_the_printed_command_can_be_pasted_into_a_shell(slipway: Slipway, tmp_path: Path) -> None:
    torchrun = tmp_path / "bin/torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text('#!/bin/sh\nprintf "%s\\0" "$@"; env -0 >&2\n')
    torchrun.chmod(0o755)
    words = ("my script.py", "a b", "it's", "$HOME", "*")
    Path(words[0]).touch()
    Path(".env").write_text("TORCH_HOME=/with space/*;&\n")
    environ = {"PET_NNODES": "1", "RANK": "0"}
    text = slipway("plan", *words, **environ).out.split("torchrun:\n", 1)[1]
    made = read_plan(slipway, *words, **environ)["torchrun"]
    path = f"{torchrun.parent}:{os.environ['PATH']}"
    ran = subprocess.run(["sh", "-c", text], env={"PATH": path, **environ}, check=True, capture_output=True, text=True)
    argv, env = made["argv"], made["env"]
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    port = next(word for word in argv if word.startswith("--master-port"))  # a free one, another each time
    assert [word for word in ran.stdout.split("\0")[:-1] if "--master-port" not in word] == [
        word for word in argv[1:] if word != port
    ]
    left = dict(line.split("=", 1) for line in ran.stderr.split("\0") if line)
    assert {name: left.get(name) for name in env} == env
    assert env["TORCH_HOME"] == "/with space/*;&"
    assert not {"PET_NNODES", "RANK"} & set(left)


@pytest.mark.parametrize(
    ("words", "environ", "says"),
    [
        (["linear"], {"RANK": "1"}, "WORLD_SIZE"),
        (["linear"], {"TORCHELASTIC_RUN_ID": "x"}, "already a worker"),
        (["linaer"], {}, "Did you mean linear?"),
        (["absent.py"], {}, "There is no file absent.py"),
        (["-m"], {}, "name of a module"),
        (["--env-file", "absent.env", "linear"], {}, "absent.env"),
        ([], {"WORKLOAD": "absent.py"}, "absent.py"),
        (["--resume", "absent", "linear"], {}, "--resume absent"),
        (["--run-dir", "full", "linear"], {}, "full is not empty"),
        (["--grace-seconds", "soon", "linear"], {}, "--grace-seconds soon: a whole number"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_plan_fails_with_the_error_of_run(
    slipway: Slipway, command: str, words: list[str], environ: dict[str, str], says: str
) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    answer = slipway(command, *words, **environ)
    assert answer.code == 78
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken_is_named(slipway: Slipway, address: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = slipway("plan", "linear", MASTER_ADDR=address, MASTER_PORT=str(port), RANK="0", WORLD_SIZE="2")
    assert answer.code == 78
    assert str(port) in answer.err
    assert "Traceback" not in answer.err


def test_a_plan_leaves_nothing_behind(slipway: Slipway, tmp_path: Path) -> None:
    assert slipway("plan", "linear").code == 0
    assert list(tmp_path.iterdir()) == []


def test_the_options_of_a_workload_are_told_with_their_sources(slipway: Slipway) -> None:
    Path("mine.yaml").write_text("# mine\nlr: 0.3\nbatch_size: 8\n")
    words = ["linear", "--config", "mine.yaml", "--batch-size", "4"]
    options = read_plan(slipway, *words)["options"]
    assert options["lr"] == {"value": 0.3, "source": "mine.yaml line 2"}
    assert options["batch-size"] == {"value": 4, "source": "command line"}
    assert options["clip"] == {"value": 0.0, "source": "default"}
    lines = slipway("plan", *words, "--all").out.splitlines()
    section = lines[
        lines.index("options of linear:") + 1 : [line.startswith("torchrun") for line in lines].index(True) - 1
    ]
    assert [line.split()[0] for line in section] == list(options)
    assert [line.split(maxsplit=2)[1:] for line in section if line.startswith("lr ")] == [["0.3", "mine.yaml line 2"]]


def test_of_the_defaults_only_those_are_shown_that_decide(slipway: Slipway) -> None:
    short, whole = (slipway("plan", *words).out.splitlines() for words in (["linear"], ["--all", "linear"]))
    names = {setting.name for setting in SETTINGS}
    assert names <= {line.partition(" ")[0] for line in whole}
    assert [line.split()[0] for line in short if line.split()[:1] and line.split()[0] in names - {"SLIPWAY_SPOT"}] == [
        "WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE", "SLIPWAY_BACKEND", "SLIPWAY_RUNS", "SLIPWAY_RESUME",
    ]  # fmt: skip
    (more,) = (line for line in short if "--all shows them" in line)
    assert len(whole) - len(short) + 2 == int(more.split()[0])  # that line itself, and the empty one before it
    assert "--all shows" not in "\n".join(whole)
    given = slipway("plan", "--hang-seconds", "9", "linear", "--clip", "1", SLIPWAY_CHECK="1").out
    assert re.search(r"\nSLIPWAY_HANG_SECONDS +9 +command line", given)
    assert re.search(r"\nclip +1.0 +command line\n", given)
    assert re.search(r"\nSLIPWAY_CHECK +1 +environment", given)


def test_a_preset_is_told_as_a_source(slipway: Slipway) -> None:
    assert read_plan(slipway, "gpt")["options"]["layers"] == {"value": 4, "source": "preset tiny"}


def test_a_program_of_the_users_has_no_options_of_ours(slipway: Slipway) -> None:
    Path("train.py").touch()
    assert read_plan(slipway, "train.py", "--lr", "1")["options"] == {}
    assert "options of" not in slipway("plan", "train.py", "--lr", "1").out


def test_values_from_the_file_come_last_but_before_defaults(slipway: Slipway) -> None:
    Path(".env").write_text("NPROC_PER_NODE=3\nHF_TOKEN=hunter2\n")
    Path("other.env").write_text("NPROC_PER_NODE=1\n")
    answer = slipway("plan", "linear")
    assert "1 node × 3 CPU processes" in answer.out
    assert "hunter2" not in answer.out + answer.err
    assert "1 node × 1 CPU process " in slipway("plan", "--env-file", "other.env", "linear").out
    assert "1 node × 2 CPU processes" in slipway("plan", "linear", NPROC_PER_NODE="2").out


UNREADABLE = [
    "run --run-dir theirs/gpt-1 t.py",
    "plan --run-dir theirs/gpt-1 t.py",
    "run --resume theirs/gpt-1 t.py",
    "run --resume auto --runs theirs/runs t.py",
    "plan --env-file theirs/.env t.py",
    "run theirs/t.py",
    "plan theirs/app",
    "runs --runs theirs/runs",
    "status --runs theirs/runs",
    "report theirs/gpt-1",
    "trace theirs/gpt-1",
    "eval theirs/gpt-1",
    "gpt --dataset file:theirs/a.txt",
    "plan gpt --dataset tokens:theirs/a",
]


@pytest.mark.parametrize("typed", UNREADABLE)
def test_what_this_user_may_not_look_at_is_one_line_and_78(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    Path("t.py").touch()
    for name in ("stat", "exists", "is_file", "is_dir", "glob"):
        known = getattr(Path, name)

        def look(path: Path, *more: Any, known: Any = known, **options: Any) -> Any:
            if "theirs" in path.parts:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return known(path, *more, **options)

        monkeypatch.setattr(Path, name, look)
    answer = slipway(*typed.split())
    assert answer.code == 78
    said = answer.err.splitlines()[-1]
    assert re.match(r"slipway: \S*theirs\S* cannot be read by user \d+: Permission denied\. \w.*\.$", said)
