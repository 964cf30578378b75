"""Draws the README's picture of a run, diagrams/run.svg, from what the launcher of node 0 of two really leaves on a terminal.

.venv/bin/python docs/picture.py
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent
COMMAND = ["slipway", "linear", "--epochs", "3", "--nproc-per-node", "1"]
WIDTH, HEIGHT = 100, 24  # of the terminal
LATE = 12  # seconds that node 1 comes later, so that node 0 says who is missing


def shown_by_node_0(folder: Path) -> str:
    """What the command leaves on the terminal of node 0 of two, both on this machine."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (HEIGHT, WIDTH))

    def start(rank: int, out: int) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29610",
        }
        return subprocess.Popen(
            [Path(sys.executable).parent / COMMAND[0], *COMMAND[1:]],
            cwd=folder,
            env=environ,
            stdout=out,
            stderr=out,
        )

    first = start(0, theirs)
    os.close(theirs)
    time.sleep(LATE)
    second = start(1, subprocess.DEVNULL)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:  # nobody has the terminal any more
        os.close(ours)
    first.wait()
    second.wait()
    return "\n".join(left(row) for row in shown.decode().replace("\r\n", "\n").split("\n"))


def left(row: str) -> str:
    """What is left of a row once the bars that were drawn in it are erased."""
    return re.split(r"\x1b\[2K|\r", row)[-1]


def picture(shown: str) -> str:
    """The lines as a terminal shows them, as SVG that fetches nothing."""
    console = Console(record=True, width=WIDTH, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"node0$ RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 {' '.join(COMMAND)}", style="bold"))
    ours = False
    for line in shown.splitlines():
        ours = line.startswith("slipway:") or (ours and line.startswith("   ") and "┤" not in line)
        console.print(Text(line, style="green" if ours else ""))
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="node 0 of 2"), flags=re.DOTALL)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        (FOLDER / "diagrams/run.svg").write_text(picture(shown_by_node_0(Path(place))))
