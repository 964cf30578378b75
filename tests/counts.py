"""What the structure of the package costs those who read and change it: `make counts`, or `python tests/counts.py [REVISION]`.

Every figure is counted from the files that git tracks, by the same rules for each revision, so two revisions can be compared.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "entrypoint/slipway/"
# What one reads to know how a job runs, from the plan to the exit code.
JOB = (
    "launch/resolve/", "launch/attempt/", "launch/rendezvous/", "launch/run_directory/", "launch/verdict/", "launch/hangs/",
    "process/", "launch/job.py", "launch/node.py", "launch/several_nodes.py", "launch/several_processes.py", "launch/closing.py",
)  # fmt: skip
# Where `store` is torch's store of addresses, or an instruction of Triton.
TORCHS_STORE = (
    "launch/attempt/", "launch/hangs/", "launch/verdict/", "launch/node.py", "launch/several_nodes.py", "launch/resolve/topology.py",
    "process/", "train/measure/", "train/worker/place.py",
)  # fmt: skip
# What accompanies a job, by a word in the names that code uses, with the places that are its own.
COMPANIONS = {
    "store": (r"stor(?:e|es|ing)", ("store/", "launch/companions/", "launch/storing.py", "cli/store", *TORCHS_STORE)),
    "monitoring and notices": (r"metrics_port|metrics_page|prometheus|webhook", ("launch/companions/", "launch/monitoring.py")),
    "replays": (r"replay(?:s|ing|er)?", ("train/observe/repl", "train/user/replaying.py")),
    "traces": (r"trac(?:e|es|ing|er)(?!back)", ("train/observe/trac", "inspect/trac")),
    "stragglers": (r"straggler(?:s)?", ("train/observe/straggl", "protocol/straggl")),
}  # fmt: skip
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def main() -> None:
    """Print the table of a revision, or of the working tree."""
    sources = sources_of(sys.argv[1] if len(sys.argv) > 1 else "")
    package = {path.removeprefix(PACKAGE): text for path, text in sources.items() if path.startswith(PACKAGE)}
    tests = [text for path, text in sources.items() if path.startswith("tests/")]
    job = {path: text for path, text in package.items() if path.startswith(JOB)}
    words = sum(map(words_of_docstrings, package.values()))
    rows = {
        "the package": f"{lines(package.values()):,} lines in {len(package)} files",
        "of these, code": f"{sum(map(code_lines, package.values())):,} lines",
        "how a job runs": f"{lines(job.values()):,} lines in {len(job)} files",
        "launch/job.py": f"{lines([package['launch/job.py']])} lines, {imported_names(package['launch/job.py'])} names of the package",
        "docstrings": f"{1000 * words / lines(package.values()):,.0f} words per 1,000 lines",
        "suppress, handlers of OSError": f"{count(package, r'suppress[(]')}, {count(package, r'except .*OSError')}",
        "tests": f"{lines(tests):,} lines in {len(tests)} files",
    }
    for name, (word, own) in COMPANIONS.items():
        files = [path for path, text in package.items() if not path.startswith(own) and knows(text, word)]
        rows[f"files (folders) that know {name}"] = f"{len(files)} ({len({PurePath(file).parent for file in files})})"
    for name, value in rows.items():
        print(f"{name:50}{value}")


def sources_of(revision: str) -> dict[str, str]:
    """Return the Python files of a revision by their paths; without one, of the working tree."""
    if not revision:
        listed = git("ls-files", "*.py")
        return {path: (ROOT / path).read_text() for path in listed.splitlines() if (ROOT / path).exists()}
    listed = git("ls-tree", "-r", "--name-only", revision)
    return {path: git("show", f"{revision}:{path}") for path in listed.splitlines() if path.endswith(".py")}


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


def lines(texts: Iterable[str]) -> int:
    """Return how many lines texts have."""
    return sum(text.count("\n") for text in texts)


def code_lines(text: str) -> int:
    """Return how many lines have code: neither empty nor a comment or docstring alone."""
    found: set[int] = set()
    begins = True  # a statement
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in SKIPPED:
            begins = begins or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        elif not (begins and token.type == tokenize.STRING):
            found.update(range(token.start[0], token.end[0] + 1))
            begins = False
    return len(found)


def words_of_docstrings(text: str) -> int:
    """Return how many words the docstrings of a module have."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(
        len((ast.get_docstring(each) or "").split()) for each in ast.walk(ast.parse(text)) if isinstance(each, kinds)
    )


def imported_names(text: str) -> int:
    """Return how many names of the package a module imports."""
    froms = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom)]
    return sum(len(each.names) for each in froms if (each.module or "").startswith("slipway"))


def count(package: Mapping[str, str], pattern: str) -> int:
    """Return how often code has a pattern."""
    return sum(len(re.findall(pattern, text)) for text in package.values())


def knows(text: str, word: str) -> bool:
    """Whether a module's code has a name with a word in it, as `take_word`, `WordTaken` and `slipway.word` have."""
    found = re.compile(rf"(?:^|_){word}(?:_|$)", re.IGNORECASE)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and found.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", token.string)):
            return True
    return False


if __name__ == "__main__":
    main()
