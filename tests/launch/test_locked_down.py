"""Jobs as containers run them: any user id without a name or a home, a read-only root, /tmp without programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launchers import Launcher
from ports import take_ports
from stand_in_rules import Rule, Rules

Run = Callable[..., Launcher]
# Group 0 as on OpenShift. The capability reads what only root may (the interpreter may lie in root's home) and writes
# nothing.
ANYBODY = (
    "setpriv", "--reuid=12345", "--regid=0", "--clear-groups", "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=+dac_read_search", "env", "--unset=HOME", "--unset=USER",
)  # fmt: skip
# What `docker run --read-only --tmpfs /tmp` does. A checkout that lies in /tmp itself stays in sight.
CHECKOUT = Path(__file__).resolve().parents[2]
READ_ONLY = f"""
mount --bind {CHECKOUT} /mnt && mount -t tmpfs -o noexec,mode=1777 tmpfs /tmp || exit
[ -d {CHECKOUT} ] || {{ mkdir -p {CHECKOUT} && mount --bind /mnt {CHECKOUT} || exit; }}
mount -o remount,ro,bind / && cd / && exec "$@"
"""
LOCKED = ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh")

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


@pytest.mark.needs("other users")
def test_any_user_id_trains_our_workloads_and_reads_what_they_left(slipway: Run, anybody: dict[str, object]) -> None:
    job = slipway("gpt", "--steps", "4", "--eval-samples", "9", "--sample-tokens", "4", "--run-dir", "mine", **anybody)
    assert job.end() == 0, job.text
    again = slipway("sample", "mine", "--tokens", "4", **anybody)
    assert again.end() == 0, again.text
    assert again.text.startswith("def ")
    judged = slipway("eval", "mine", **anybody)
    assert judged.end() == 0, judged.text
    assert "val_loss" in judged.text


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


@pytest.mark.needs("other users")
def test_a_script_runs_where_it_could_not_write_and_is_told_so(
    slipway: Run, rules: Rules, anybody: dict[str, object], tmp_path: Path
) -> None:
    os.chown(tmp_path, 0, 0)
    stand_ins = rules.variables()
    os.chown(stand_ins["STAND_IN_STARTED"], 12345, 0)
    (tmp_path / "own.py").write_text('import pathlib\nprint((pathlib.Path.home() / "file").write_text("text"))\n')
    job = slipway("run", "--run-dir", "tmp/run", "own.py", NPROC_PER_NODE="1", **anybody, **stand_ins)
    assert job.end() == 0, job.text
    assert f"warning: the working directory {tmp_path} cannot be written by user 12345" in job.text
    assert "\n4\n" in job.text, "into the home"


@pytest.mark.needs("mounts", "other users")
def test_on_a_read_only_root_the_image_trains_and_says_at_start_and_end_that_results_go(slipway: Run) -> None:
    job = slipway("linear", "--epochs", "1", before=(*LOCKED, *ANYBODY), SLIPWAY_IMAGE="0.1.0-test", TMPDIR="/tmp")
    assert job.end() == 0, job.text
    said = [number for number, line in enumerate(job.closing) if "not a mounted volume" in line]
    trained = next(number for number, line in enumerate(job.closing) if line.startswith("finished"))
    assert len(said) == 2, job.text
    assert said[0] < trained < said[1]
    assert any("/tmp is mounted noexec" in line for line in job.closing), job.text


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
    assert "not a mounted volume" in job.closing[-1]
    assert "not a mounted volume" not in slipway("linear", "--run-dir", f"{in_memory}/2", **rules.variables()).text


@pytest.mark.needs("other users")
def test_a_node_that_cannot_write_its_results_ends_the_job_for_all_with_its_own_words(start: Run) -> None:
    port = str(take_ports(2))
    contract = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NPROC_PER_NODE": "1"}
    contract |= {"SLIPWAY_IMAGE": "0.1.0-test", "TMPDIR": "/tmp"}
    jobs = [start("linear", RANK="0", **contract)]
    jobs += [start("linear", RANK="1", before=ANYBODY, SLIPWAY_RUNS="/absent", **contract)]
    assert [job.end() for job in jobs] == [78, 78], jobs[0].text + jobs[1].text
    for job in jobs:
        assert any("node 1" in line and "/absent cannot be written" in line for line in job.closing), job.text


def test_compile_without_its_compiler_is_a_wrong_configuration(slipway: Run) -> None:
    job = slipway("linear", "--compile", "--epochs", "1", CXX="absent-c++")
    assert job.end() == 78, job.text
    assert any("leave --compile out" in line for line in job.closing), job.closing
    assert "Traceback" not in job.text
