"""What is told of the programs in gallery.py and frameworks.py, as a table.

make hangs                     all of them; those on frameworks where .venv/bench has these
make hangs ARGS="stopped"      those whose names hold a word
"""

import ast
import fnmatch
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
GALLERY, FRAMEWORKS = HERE / "gallery.py", HERE / "frameworks.py"
BENCH = Path(sys.prefix) / "bench/bin/python"  # layered over our own environment: it has Slipway, too
PATIENCE = 180.0  # s for a program under load


@dataclass(frozen=True)
class Case:
    """A program, who is to blame and in which lines it may stand; none where the process is in no line of it."""

    name: str
    culprit: int | None
    world: int
    lines: tuple[int, ...]
    file: Path = GALLERY


@dataclass(frozen=True)
class Told:
    """What was told, and how right it is."""

    case: Case
    text: str
    rank: bool
    line: bool
    code: int

    @property
    def right(self) -> bool:
        """Whether rank and line are, and the job ended as a job that hangs."""
        return self.rank and self.line and self.code == 76


def read_cases(file: Path = GALLERY) -> list[Case]:
    """The programs in a file, without importing it: that takes torch."""
    source = file.read_text()
    lines, cases = source.splitlines(), []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            call = node.decorator_list[0]
            assert isinstance(call, ast.Call)
            options = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            marked = [
                number
                for number, line in enumerate(lines, start=1)
                if (node.lineno <= number <= (node.end_lineno or 0) and "# here" in line)
                or ("# " in line and fnmatch.fnmatchcase(node.name, line.rpartition("# ")[2]))
            ]
            culprit = ast.literal_eval(call.args[0])
            cases.append(Case(node.name, culprit, options.get("world", 2), tuple(marked), file))
    return cases


def run_case(case: Case, python: str | Path = sys.executable) -> Told:
    """Let it hang under this Python, one on frameworks under theirs, and read what is told."""
    python = BENCH if case.file == FRAMEWORKS else python
    with tempfile.TemporaryDirectory() as folder:
        options = (
            "--nproc-per-node",
            str(case.world),
            "--hang-seconds",
            "6",
            "--on-hang",
            "end",
            "--run-dir",
            f"{folder}/run",
        )
        done = subprocess.run(
            [
                "timeout",
                "--kill-after",
                "20",
                str(PATIENCE),
                python,
                "-P",
                "-m",
                "slipway",
                "run",
                *options,
                case.file,
                case.name,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
        )
    text = next((line for line in done.stderr.splitlines() if line.startswith("slipway: hang: ")), "")
    text = text.removeprefix("slipway: hang: ")
    if case.culprit is None:
        rank = bool(re.search("do not agree|different collectives|all ranks wait", text))
    else:
        rank = bool(re.match(f"(the ranks wait for each other in different collectives: )?rank {case.culprit} ", text))
    line = not case.lines or any(f"{case.file.name}:{number} " in text for number in case.lines)
    return Told(case, text or done.stderr[-2000:], rank, line, done.returncode)


def main(words: Sequence[str]) -> int:
    """Run the cases whose names hold one of the words, all without any; 1 where fewer than 95 % are told rightly."""
    cases = read_cases() + (read_cases(FRAMEWORKS) if BENCH.exists() else [])
    cases = [case for case in cases if not words or any(word in case.name for word in words)]
    right = 0
    for case in cases:
        told = run_case(case)
        right += told.right
        print(f"{'right' if told.right else 'WRONG':6} {case.name:41} {told.code:3}  {told.text}", flush=True)
    print(f"{right} of {len(cases)} are told rightly")
    return int(right < 0.95 * len(cases))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
