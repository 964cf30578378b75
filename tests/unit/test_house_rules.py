"""Rules of the code that neither ruff nor import-linter knows. `make lint` runs this file."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

from slipway.launch.resolve import schedulers

PACKAGE = Path(schedulers.__file__).parents[2]
RECORDS = {"schedulers.py", "clouds.py"}
ROOT = PACKAGE.parents[1]
# Words of our own for what the field has a word for.
WORDS = {"muster": "rendezvous"}


def questions_about_schedulers(file: Path) -> Iterator[str]:
    """Where a module compares schedulers, or names a variable that belongs to one."""
    records = schedulers.SCHEDULERS
    variables = {name for each in records for names in each.table.values() for name in names}
    variables |= {name for each in records for name in (*each.marks, each.gpus, each.cores, each.cores_per_task)}
    # SLURM_JOB_ID also says in which runtime this is (launch/resolve/host.py); the others are names of our own, too.
    variables -= {"", "RANK", "NODE_RANK", "SLURM_JOB_ID"}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Compare):
            sides = [ast.unparse(side).removesuffix(".name") for side in (node.left, *node.comparators)]
            if any(side.endswith((".scheduler", "SLURM", "INDEXED_JOB")) for side in sides) and "'none'" not in sides:
                yield f"{file.relative_to(PACKAGE)}, line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Constant) and node.value in variables:
            yield f"{file.relative_to(PACKAGE)}, line {node.lineno}: {node.value}"


def test_no_other_module_asks_which_scheduler_it_is() -> None:
    files = [file for part in ("launch", "cli", "check", "inspect") for file in (PACKAGE / part).rglob("*.py")]
    found = [line for file in files if file.name not in RECORDS for line in questions_about_schedulers(file)]
    assert found == [], "give the record of launch/resolve/schedulers.py a field instead"


def test_a_program_begins_at_the_end_of_its_module() -> None:
    for file in PACKAGE.rglob("*.py"):
        body = ast.parse(file.read_text()).body
        begins = [
            number
            for number, node in enumerate(body)
            if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        ]
        assert begins in ([], [len(body) - 1]), (
            f"{file.relative_to(PACKAGE)}: what follows `if __name__ …` is not yet defined then"
        )


def test_no_word_of_our_own_stands_for_one_of_the_field() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name and name != Path(__file__).relative_to(ROOT).as_posix()]
    texts = {file: file.read_text(errors="replace") for file in files if file.is_file()}
    found = [
        f"{file.relative_to(ROOT)}: {word}" for file, text in texts.items() for word in WORDS if word in text.lower()
    ]
    assert found == [], f"say {WORDS} instead"


def test_no_two_modules_have_a_class_of_the_same_name() -> None:
    modules: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(file.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in modules.items() if len(files) > 1} == {}
