"""Jobs as containers run them: any user id without a name or a home, results that go (tests/image has the rest)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules

Run = Callable[..., Launcher]
# Group 0 as on OpenShift. The capability reads what only root may (the interpreter may lie in root's home) and writes
# nothing.
ANYBODY = (
    "setpriv", "--reuid=12345", "--regid=0", "--clear-groups", "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=+dac_read_search", "env", "--unset=HOME", "--unset=USER",
)  # fmt: skip

DDP = """
import getpass, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
print("trained by", getpass.getuser(), flush=True)
del model
dist.destroy_process_group()
"""


@pytest.fixture
def anybody(tmp_path: Path) -> dict[str, object]:
    """How `slipway(...)` is started by user 12345, who has the test's folder and its temporary files."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "ddp.py").write_text(DDP)
    for path in (tmp_path, *tmp_path.iterdir()):
        os.chown(path, 12345, 0)
    return {"before": ANYBODY, "TMPDIR": str(tmp_path / "tmp")}


@pytest.mark.core
@pytest.mark.needs("other users")
def test_any_user_id_trains_a_script_of_its_own_with_ddp(
    slipway: Run, anybody: dict[str, object], tmp_path: Path
) -> None:
    job = slipway("ddp.py", NPROC_PER_NODE="2", **anybody)
    assert job.end() == 0, job.text
    assert job.text.count("trained by uid-12345") == 2
    folder = tmp_path / "tmp/slipway-12345"
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, 12345)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder that is on no disk."""
    folder = Path(f"/dev/shm/slipway-test-{os.getpid()}")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.pull
def test_even_a_job_that_fails_says_in_the_image_what_becomes_of_its_files(
    slipway: Run, rules: Rules, in_memory: Path
) -> None:
    fails = rules.variables(Rule("raise boom", step=0, phase="first-step"))
    job = slipway("linear", "--run-dir", str(in_memory), SLIPWAY_IMAGE="0.1.0-test", **fails)
    assert job.end() == 1, job.text
    assert "is on a tmpfs, in memory" in job.closing[-1]
    assert "is on a tmpfs" not in slipway("linear", "--run-dir", f"{in_memory}/2", **rules.variables()).text
