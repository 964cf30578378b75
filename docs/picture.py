"""Draws the README's picture of a run, diagrams/run.svg, from what the launchers of two nodes really print.

.venv/bin/python docs/picture.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent
COMMAND = ["slipway", "linear", "--epochs", "3", "--nproc-per-node", "1"]
WIDTH = 118  # characters
LATE = 12  # seconds that node 1 comes later, so that node 0 says who is missing


def shown_by_node_0(folder: Path) -> str:
    """What the command prints on node 0 of two, both on this machine."""

    def start(rank: int) -> subprocess.Popen[str]:
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
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    first = start(0)
    time.sleep(LATE)
    second = start(1)
    shown, _ = first.communicate()
    second.communicate()
    return shown


def picture(shown: str) -> str:
    """The lines as a terminal shows them, as SVG that fetches nothing."""
    console = Console(record=True, width=WIDTH, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"node0$ RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 {' '.join(COMMAND)}", style="bold"))
    for line in shown.splitlines():
        console.print(Text(line, style="green" if line.startswith("slipway:") else ""))
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="node 0 of 2"), flags=re.DOTALL)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        (FOLDER / "diagrams/run.svg").write_text(picture(shown_by_node_0(Path(place))))
