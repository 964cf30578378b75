"""The shell blocks of a page, and what tests make of them.

A block that begins with `# needs: WHAT` is not run: a CPU machine cannot. A command with `# ends with N` behind it must.
A block below `<!-- tests/FILE.py runs … -->` is run by that test; all others are run by test_blocks.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("docs", "compose", "images", "k8s", "slurm")
PAGES = sorted([*ROOT.glob("*.md"), *(page for part in PARTS for page in (ROOT / part).rglob("*.md"))])

FENCED = re.compile(
    r"(?:^<!-- (?P<test>tests/\S+\.py) runs [^\n]*-->\n)?^```sh\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
NEEDS = re.compile(r"(?:#!.*\n)?# needs: (.+)\n")
CODE = re.compile(r"(?P<command>.*\S)\s+# ends with (?P<code>\d+)")
HEREDOC = re.compile(r"(<<\s*(['\"]?)(\w+)\2.*\n)(?:.*\n)*?\3\n")
DESCRIPTOR = re.compile(r"(?<!\S)\d(?=[<>])")  # of `2> FILE`


@dataclass(frozen=True)
class Block:
    """A block's text, the line that it begins in, what it `needs`, and the other `test` that runs it."""

    text: str
    line: int
    needs: str
    test: str

    @property
    def alone(self) -> bool:
        """Whether it is run here, with the others of its page."""
        return not self.needs and not self.test

    def script(self) -> str:
        """What bash is to run: it ends with 1 where a command does not end as the page says."""
        lines = [f"# line {self.line}"]
        for line in join_lines(self.text):
            found = CODE.fullmatch(line)
            lines.append(
                f"code=0; {{ {found['command']}; }} || code=$?; [ $code = {found['code']} ]" if found else line
            )
        return "\n".join(lines)


def read_blocks(page: Path) -> list[Block]:
    """All shell blocks of a page, in their order."""
    text = page.read_text()
    blocks = []
    for found in FENCED.finditer(text):
        needs = NEEDS.match(found["text"])
        line = text.count("\n", 0, found.start("text")) + 1
        blocks.append(Block(found["text"], line, needs[1] if needs else "", found["test"] or ""))
    return blocks


def join_lines(text: str) -> list[str]:
    """The lines of a block; one that ends with a backslash goes on in the next."""
    return re.sub(r"\\\n\s*", "", text).splitlines()


def read_commands(text: str) -> Iterator[list[str]]:
    """The words of each command in a piece of shell, but of those that are wrong on purpose: they end with 2 or 78.

    What redirects is left out; a `$(…)` within double quotes is a part of its word.
    """
    held = ""
    for line in join_lines(HEREDOC.sub(r"\1", text)):
        found = CODE.fullmatch(line)
        if found and found["code"] in ("2", "78"):
            continue
        held += f"{line}\n"
        lexer = shlex.shlex(DESCRIPTOR.sub("", held), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:  # a quotation goes on in the next line
            continue
        held = ""
        yield from split_commands(tokens)


def split_commands(tokens: list[str]) -> Iterator[list[str]]:
    """Words between `;`, `|`, `&&` and their like; `>` and `<` take the word behind them along."""
    words: list[str] = []
    rest = iter(tokens)
    for token in rest:
        if not token or set(token) - set("();<>|&"):
            words.append(token)
        elif set(token) & set("<>"):
            next(rest, None)
        elif words:
            yield words
            words = []
    if words:
        yield words
