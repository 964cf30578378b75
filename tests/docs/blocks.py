"""The shell blocks of a page, and what a test makes of them.

A block that begins with `# needs: WHAT` is not run: a CPU machine cannot. A command with `# ends with N` behind it must.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NEEDS = re.compile(r"# needs: (.+)\n")
CODE = re.compile(r"(?P<command>.*\S)\s+# ends with (?P<code>\d+)")
FENCED = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block's text, the line that it begins in, and what it `needs`; empty where it can be run anywhere."""

    text: str
    line: int
    needs: str

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
        needs = NEEDS.match(found[1])
        blocks.append(Block(found[1], text.count("\n", 0, found.start()) + 2, needs[1] if needs else ""))
    return blocks


def join_lines(text: str) -> list[str]:
    """The lines of a block; one that ends with a backslash goes on in the next."""
    return re.sub(r"\\\n\s*", "", text).splitlines()
