"""The launcher in a file system that a child of its own serves, as with pyxis's use_squashfuse=1 (pyxis/squashfuse.sh)."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import REPOSITORY, Cluster, Job
from jobs import train

pytestmark = pytest.mark.needs("FUSE")
SERVED = Path(__file__).parent / "pyxis/squashfuse.sh"
SIZE = 1 << 20  # bytes of a file that nobody has read before, so that no cache has it
# It reads what nobody has read before in its second attempt.
FAILS_FIRST = """
import os, sys
from pathlib import Path

if os.environ["SLIPWAY_ATTEMPT"] == "1":
    sys.exit(3)
print(f"read {len(Path(os.environ['FRESH']).read_bytes())} bytes", flush=True)
"""
# The first process ends, and its launcher. The second reads when that is gone.
ENDS_FIRST = """
import os, time
from pathlib import Path

note = Path(os.environ["NOTE"])
if os.environ["RANK"] == "0":
    note.with_suffix(".new").write_text(str(os.getppid()))
    note.with_suffix(".new").rename(note)
else:
    while not note.exists():
        time.sleep(0.1)
    launcher = Path("/proc", note.read_text())
    while launcher.exists():
        time.sleep(0.1)
    print(f"read {len(Path(os.environ['FRESH']).read_bytes())} bytes", flush=True)
"""


@dataclass(frozen=True)
class Served:
    """A cluster on which the launcher's code lies in an image that each node's first task has squashfuse serve."""

    cluster: Cluster
    folder: Path

    def train(self, script: str, *options: str) -> Job:
        """Submit slurm/train.sbatch for this script, torch-free and with one process per launcher."""
        own = self.folder / "own.py"
        own.write_text(script)
        facts = {"FRESH": f"{self.folder}/image/fresh", "NOTE": f"{self.folder}/note"}
        return train(self.cluster, str(own), options=options, VENV=f"{self.folder}/venv", NPROC_PER_NODE="1", **facts)


@pytest.fixture
def served(clusters: Callable[[str], Cluster], tmp_path: Path) -> Served:
    """With the process tracking of production: with linuxproc Slurm's signals would reach squashfuse itself."""
    root, image, place = tmp_path / "root", tmp_path / "image.sqsh", tmp_path / "image"
    shutil.copytree(REPOSITORY / "entrypoint/slipway", root / "slipway", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "fresh").write_bytes(bytes(SIZE))
    subprocess.run(["mksquashfs", root, image, "-noD", "-quiet", "-no-progress"], check=True)
    program = tmp_path / "venv/bin/slipway"
    program.parent.mkdir(parents=True)
    launcher = f"env PYTHONPATH={place} {sys.executable} -P -m slipway"
    program.write_text(f'#!/bin/bash\nexec {SERVED} {image} {place} {launcher} "$@"\n')
    program.chmod(0o755)
    return Served(clusters("cgroup"), tmp_path)


def test_a_second_attempt_still_has_the_root_file_system(served: Served) -> None:
    job = served.train(FAILS_FIRST, "--nodes=2", "--export=ALL,SLIPWAY_MAX_RESTARTS=1")
    assert job.end() == "COMPLETED", job.text
    assert job.text.count(f"read {SIZE} bytes") == 2, job.text
    assert "finished on 2 nodes after 2 attempts" in job.text


def test_a_nodes_other_tasks_still_have_it_when_the_first_has_ended(served: Served) -> None:
    job = served.train(ENDS_FIRST, "--nodes=1", "--ntasks-per-node=2")
    assert job.end() == "COMPLETED", job.text
    assert f"read {SIZE} bytes" in job.text
