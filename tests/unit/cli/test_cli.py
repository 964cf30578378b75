"""What the first argument means, help, wrong options, and how options are spelled."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from stand_ins import Slipway

from slipway import __version__
from slipway.cli import cli
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.settings import SETTINGS
from slipway.protocol.errors import EXITS


def start(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A real process, for what replaces it."""
    environ = {"PATH": os.environ["PATH"], **environ}
    command = [sys.executable, "-m", "slipway", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "understood"),
    [
        ([], []),
        (["plan", "gpt"], ["plan", "gpt"]),
        (["run"], ["run"]),
        (["linear", "--lr", "1"], ["run", "linear", "--lr", "1"]),
        (["gpt"], ["run", "gpt"]),
        (["train.py", "run"], ["run", "train.py", "run"]),
        (["./dir/train.py"], ["run", "./dir/train.py"]),
        (["-m", "pkg", "-m"], ["run", "-m", "pkg", "-m"]),
        (["-mpkg"], ["run", "-mpkg"]),
        (["--module", "pkg"], ["run", "--module", "pkg"]),
        (["--no-python", "sh"], ["run", "--no-python", "sh"]),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
    ],
)
def test_the_first_argument_is_a_command_a_workload_or_a_program(words: list[str], understood: list[str]) -> None:
    assert cli.understand(words) == understood


def test_a_command_wins_over_a_file_and_a_workload_over_an_executable(slipway: Slipway, tmp_path: Path) -> None:
    for name in ("plan", "linear"):
        (tmp_path / name).write_text("#!/bin/sh\necho wrong\n")
        (tmp_path / name).chmod(0o755)
    answer = slipway("plan", "linear", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "slipway.train.workloads.linear" in answer.out
    assert cli.understand(["linear"]) == ["run", "linear"]


def test_an_executable_replaces_the_launcher_untouched(tmp_path: Path) -> None:
    assert start("sh", "-c", "kill -0 $$; exit 3").returncode == 3
    shown = start("sh", "-c", 'printf "%s," "$0" "$@"; env', "a b", "--nnodes", "", "*", RANK="5", EMPTY="")
    assert shown.stdout.startswith("a b,--nnodes,,*,")
    assert {"RANK=5", "EMPTY="} <= set(shown.stdout.splitlines()[0].split(",")[-1:] + shown.stdout.splitlines())
    assert "SLIPWAY" not in shown.stdout
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho pid $$\nexit 75\n")
    tool.chmod(0o755)
    ended = start(str(tool))
    assert (ended.returncode, ended.stderr) == (75, "")


def test_an_executable_keeps_the_process_and_its_signals() -> None:
    code = "import os, signal; print(os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    command = [sys.executable, "-m", "slipway", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == [str(process.pid), "True"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lniear"], "Did you mean linear?"),
        (["pla"], "Did you mean plan?"),
        (["gtp", "--lr", "1"], "Did you mean gpt?"),
        (["zzzzzz"], "Workloads are allreduce"),
        (["absent.py"], "There is no file absent.py in"),
        (["./absent"], "neither a command"),
        (["plain.txt"], "slipway run plain.txt"),
        (["-m"], "name of a module"),
        (["-m", "nosuchmod"], "There is no module nosuchmod. Python searches"),
        (["-m", "pack"], "pack is a package without __main__.py"),
        (["-m", "pack.trian", "--lr", "1"], "There is no module pack.trian. Did you mean pack.train?"),
        (["-m", "pack.train.more"], "There is no module pack.train.more"),
        (["-m", ".train"], "There is no module '.train'"),
        (["run", "pack"], "It is a folder without __main__.py"),
    ],
)
def test_a_word_that_means_nothing_is_78(slipway: Slipway, tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "plain.txt").touch()
    (tmp_path / "pack").mkdir()
    for name in ("__init__", "train"):
        (tmp_path / f"pack/{name}.py").touch()
    answer = slipway(*words)
    assert answer.code == 78
    assert says in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    "module",
    ["json.tool", "alone", "pack", "pack.train", "space.train", "far.train", "pack.space.train", "moved.train"],
)
def test_a_module_that_python_finds_or_may_find_is_started(slipway: Slipway, tmp_path: Path, module: str) -> None:
    for name in ("pack/__init__", "pack/__main__", "pack/train", "space/train", "pack/space/train", "there/far/train"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "alone.py").touch()
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved/__init__.py").write_text("__path__ = ['elsewhere']")
    answer = slipway("plan", "-m", module, PYTHONPATH=str(tmp_path / "there"))
    assert answer.code == 0, answer.err


def test_a_group_of_commands_alone_shows_its_help(slipway: Slipway) -> None:
    answer = slipway("data")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Usage: slipway data")
    assert "Error" not in answer.err


def test_help_is_shown_alone_and_asked_for(slipway: Slipway) -> None:
    alone = slipway()
    assert alone.code == 0
    assert alone == slipway("--help") == slipway("-h")
    for name, _ in commands():
        assert name in alone.out
    assert all(f"{code} {row.meaning.split()[0]}" in " ".join(alone.out.split()) for code, row in EXITS.items())
    assert slipway("--version").out.split()[-1] == __version__


@pytest.mark.parametrize("words", [["run", "--help"], ["plan", "-h"]])
def test_the_help_of_a_command_names_every_setting_and_its_variable(slipway: Slipway, words: list[str]) -> None:
    answer = slipway(*words)
    assert answer.code == 0
    flat = " ".join(answer.out.split())
    assert [setting.name for setting in SETTINGS if setting.option and setting.name not in flat] == []
    assert [setting.option for setting in SETTINGS if setting.option not in flat] == []


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_a_workload_has_help_of_its_own(slipway: Slipway, workload: str) -> None:
    answer = slipway(workload, "--help")
    assert answer.code == 0
    assert f"Usage: slipway {workload} " in answer.out
    assert "--config" in answer.out


def commands() -> Iterator[tuple[str, click.Command]]:
    yield "slipway", cli.slipway
    context = click.Context(cli.slipway)
    for name in cli.slipway.list_commands(context):
        command = cli.slipway.get_command(context, name)
        assert command is not None
        yield name, command


@pytest.mark.parametrize("words", ["run --nnodes", "linear --nnodes", "linear stray", "sample", "--no-such-option"])
def test_a_wrong_command_line_is_2_without_a_traceback(slipway: Slipway, words: str) -> None:
    answer = slipway(*words.split())
    assert answer.code == 2
    assert "Error: " in answer.err
    assert "Traceback" not in answer.err


def test_the_mpi_backend_is_refused_where_torch_lacks_it(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking: subprocess.CompletedProcess[str] = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: lacking)
    answer = slipway("plan", "--backend", "mpi", "linear")
    assert answer.code == 78
    assert [word for word in ("gloo", "nccl", "mpirun") if word not in answer.err] == []


def test_a_console_script_stays_the_same_when_a_checkout_is_brought_up_to_date() -> None:
    """`git pull` changes the package and not what pip made of it: .venv/bin/slipway looks for the same name."""
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"slipway": "slipway.cli:main"}
    code = "import sys; from slipway.cli import main; sys.argv = ['slipway', '--version']; main()"
    assert "version" in subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
