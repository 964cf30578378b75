"""The README's rehearsal of two nodes works as it stands, copied line by line."""

import re
import subprocess
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_two_nodes_can_be_rehearsed_with_the_lines_of_the_readme() -> None:
    block = re.search(r"<!-- tests/image/test_readme.py .*?```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert block
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block[1]], capture_output=True, text=True, timeout=240, check=False
        )
    finally:
        subprocess.run(["docker", "rm", "--force", "node0", "node1"], capture_output=True, check=False)
        subprocess.run(["docker", "network", "rm", "slipway"], capture_output=True, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert "2 nodes × 2 CPU processes = 4 processes" in shown
    assert shown.count("finished on 2 nodes") == 2, shown  # node 1 said it, and the logs of node 0
