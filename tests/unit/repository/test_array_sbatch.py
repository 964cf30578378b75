"""slurm/array.sbatch: which line of a sweep a task runs, with which words, and with the headers of train.sbatch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[3] / "slurm"
SWEEP = """\
# learning rates

gpt --preset small --lr 3e-4
   # another one, in a script of one's own
  train.py --name 'the second one' "it's" \\$HOME $HOME * ''\r
gpt --preset 'tiny
..\\
gpt\
"""
LINES = {
    0: ["gpt", "--preset", "small", "--lr", "3e-4"],
    1: ["train.py", "--name", "the second one", "it's", "$HOME", "$HOME", "*", ""],
    3: [".. "],
    4: ["gpt"],
}


def run(
    folder: Path, *words: str, train: bool = True, index: str = "", text: str = SWEEP
) -> subprocess.CompletedProcess[str]:
    """Run the file as Slurm would, with a train.sbatch that shows its words and ends with 75."""
    (folder / "slurm").mkdir(exist_ok=True)
    if train:
        (folder / "slurm/train.sbatch").write_text("printf '%s\\0' \"$@\"; exit 75\n")
    (folder / "my sweep.txt").write_text(text)
    environ = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(folder), "SLURM_ARRAY_TASK_ID": index}
    command = ["bash", str(SLURM / "array.sbatch"), *words]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)


def read_headers(name: str) -> list[str]:
    return [line for line in (SLURM / name).read_text().splitlines() if line.startswith("#SBATCH")]


def test_its_headers_are_those_of_the_file_that_runs_each_line() -> None:
    changed = {"#SBATCH --output=%x-%j.out": "#SBATCH --output=%x-%A_%a.out"}
    assert read_headers("array.sbatch") == [changed.get(line, line) for line in read_headers("train.sbatch")]


def test_it_is_clean() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    subprocess.run(["bash", "-n", SLURM / "array.sbatch"], check=True)
    subprocess.run([shellcheck, "--shell=bash", SLURM / "array.sbatch"], check=True)


@pytest.mark.parametrize("index", LINES)
@pytest.mark.parametrize("more", [[], ["--steps", "a b", ""]])
def test_a_task_runs_its_line_with_the_words_behind(tmp_path: Path, index: int, more: list[str]) -> None:
    done = run(tmp_path, "my sweep.txt", *more, index=str(index))
    assert done.returncode == 75
    assert done.stdout.split("\0")[:-1] == [*LINES[index], *more]


def test_another_file_may_run_the_lines(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("echo $$ mine; exit 3\n")
    (tmp_path / "sweep.txt").write_text("gpt\n")
    environ = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": "/", "SLURM_ARRAY_TASK_ID": "0", "TRAIN": "job.sbatch"}
    command = ["bash", str(SLURM / "array.sbatch"), "sweep.txt"]
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.read() == f"{process.pid} mine\n"  # in its place, so signals and exit codes are its own
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("words", "more", "says"),
    [
        (["my sweep.txt"], {"index": "5"}, "index 5 is beyond the 5 lines of my sweep.txt. Type: sbatch --array=0-4"),
        (["my sweep.txt"], {"index": "2"}, "line 6 of my sweep.txt cannot be read"),
        (["my sweep.txt"], {}, "no task of an array. Type: sbatch --array=0-4"),
        (["my sweep.txt"], {"text": "# nothing\n\n", "index": "0"}, "holds no line"),
        (["absent.txt"], {"index": "0"}, "'absent.txt' is no file"),
        (["slurm"], {"index": "0"}, "'slurm' is no file"),
        ([], {"index": "0"}, "sweep.txt"),
        (["my sweep.txt"], {"train": False, "index": "0"}, "set TRAIN"),
    ],
)
def test_what_cannot_be_run_is_78_with_what_to_type(
    tmp_path: Path, words: list[str], more: dict[str, str], says: str
) -> None:
    done = run(tmp_path, *words, **more)  # type: ignore[arg-type]
    assert (done.returncode, done.stdout) == (78, "")
    assert says in done.stderr
