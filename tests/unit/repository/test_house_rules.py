"""Rules of the code that neither ruff nor import-linter knows. `make lint` runs this file."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from slipway.launch.resolve import schedulers
from slipway.protocol import files

PACKAGE = Path(schedulers.__file__).parents[2]
RECORDS = {"schedulers.py", "clouds.py"}
LAUNCHERS = ("launch", "cli", "check", "inspect", "render")
ROOT = PACKAGE.parents[1]
# Words of our own for what the field has a word for.
WORDS = {"muster": "rendezvous", "parked": "standby", "roster": "membership", "two looks": "polls"}
# Words that a user does not read: no page, help text or message has them.
UNREAD = {
    "anew": "again",
    "crew": "reader pool",
    "goes on": "continues, resumes",
    "going on from": "resuming from",
    "hears": "receives",
    "in front of": "before",
    "lies in": "is in",
    "mended": "fixed",
    "newcomer": "new node",
    "nobody knows": "is unknown",
    "outvote": "overrule",
    "passed over": "skipped",
    "rehears": "test, simulate",
    "rung": "step",
    "sick": "unhealthy",
    "stand behind": "follow",
    "stands behind": "follows",
    "turned away": "refused",
    "under way": "running, in progress",
    "what becomes of": "what happens to",
    "whoever": "everyone who",
}
PAGES = ("README.md", "docs/*.md", "compose/README.md", "k8s/README.md", "slurm/README.md")
# What is no prose of a page: blocks, code, where links lead, comments.
CODE = re.compile(r"^```.*?^```$|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)


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


def comparisons_of(source: str, *names: str) -> Iterator[str]:
    """Where a module compares a value that is called so, or looks it up in a table of its own."""
    for node in ast.walk(ast.parse(source)):
        looked_up = []
        if isinstance(node, ast.Compare):
            looked_up = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("}.get", ".startswith", ".endswith")):
            looked_up = [*node.args, node.func.value] if isinstance(node.func, ast.Attribute) else []
        elif isinstance(node, ast.Match):
            looked_up = [node.subject]
        if any(re.search(rf"(^|\.)({'|'.join(names)})(\.name)?$", ast.unparse(side)) for side in looked_up):
            yield f"line {node.lineno}: {ast.unparse(node)[:100]}"


def test_no_other_module_asks_which_runtime_it_is() -> None:
    files = [file for part in LAUNCHERS for file in (PACKAGE / part).rglob("*.py") if file.name != "runtimes.py"]
    found = [f"{file.name}, {line}" for file in files for line in comparisons_of(file.read_text(), "runtime", "shell")]
    assert found == [], "give the record of launch/resolve/runtimes.py a field instead"


def test_no_other_module_compares_where_a_value_came_from() -> None:
    owners = {
        "sources.py",
        "topology.py",
        "next_lines.py",
    }  # Claim; a free port; what is mounted, which is another source
    files = [file for part in LAUNCHERS for file in (PACKAGE / part).rglob("*.py") if file.name not in owners]
    found = [f"{file.name}, {line}" for file in files for line in comparisons_of(file.read_text(), r"\w+\.source")]
    assert found == [], "give Claim of launch/resolve/sources.py a property instead"


def test_no_other_module_asks_which_scheduler_it_is() -> None:
    files = [file for part in LAUNCHERS for file in (PACKAGE / part).rglob("*.py")]
    found = [line for file in files if file.name not in RECORDS for line in questions_about_schedulers(file)]
    assert found == [], "give the record of launch/resolve/schedulers.py a field instead"


# What reads files of a run, and the folder whose modules may.
READERS = {
    "list_snapshots", "newest_attempt", "newest_step", "parse_json", "read_differences", "read_json", "read_metrics", "read_run_text",
    "snapshot_attempt", "why_unreadable",
}  # fmt: skip
SEARCHES = {"glob", "rglob", "iterdir", "listdir", "scandir", "walk"}
NAMES_IN_RUNS = {name for name, value in vars(files).items() if name.isupper() and isinstance(value, str)}


def readings_of_runs(source: str) -> Iterator[str]:
    """Where a module reads JSON of a run, or searches in one, itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slipway.protocol."):
            yield from (f"line {node.lineno}: {alias.name}" for alias in node.names if alias.name in READERS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
            reads = node.func.attr in SEARCHES or ast.unparse(node.func) == "json.loads"
            if reads and names & NAMES_IN_RUNS:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_only_the_run_itself_reads_what_is_in_a_run_directory() -> None:
    modules = [
        file for part in LAUNCHERS for file in (PACKAGE / part).rglob("*.py") if file.parent.name != "run_directory"
    ]
    found = [f"{file.relative_to(PACKAGE)}, {line}" for file in modules for line in readings_of_runs(file.read_text())]
    assert found == [], "ask RunDirectory or NodeDirectory in launch/run_directory instead"


def test_no_module_of_ours_is_imported_by_a_name_that_import_linter_does_not_see() -> None:
    hidden = re.compile(r"""(__import__\(f?|import_module\()["']slipway""")
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if hidden.search(path.read_text())}
    assert found == {"__init__.py"}, (
        "it may close a circle, or lead up a layer; what users import is loaded when it is used"
    )


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


def messages(file: Path) -> Iterator[str]:
    """The texts of a module that may be messages: those of several words, without docstrings."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text())):  # from the outside in
        if isinstance(node, ast.JoinedStr):
            inside.update(map(id, node.values))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Expr):
            inside.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def test_no_page_help_text_or_message_has_a_word_that_a_user_would_have_to_learn() -> None:
    texts = {page: CODE.sub("", page.read_text()) for pattern in PAGES for page in ROOT.glob(pattern)}
    texts[ROOT / "docs/cli.md"] = (ROOT / "docs/cli.md").read_text()
    texts |= {file: "\n".join(text for text in messages(file) if " " in text) for file in PACKAGE.rglob("*.py")}
    found = [
        f"{file.relative_to(ROOT)}: {word} (say: {better})"
        for file, text in texts.items()
        for word, better in UNREAD.items()
        if re.search(rf"\b{word}", " ".join(text.split()), re.IGNORECASE)
    ]
    assert found == []


def test_no_two_modules_have_a_class_of_the_same_name() -> None:
    modules: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(file.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in modules.items() if len(files) > 1} == {}
