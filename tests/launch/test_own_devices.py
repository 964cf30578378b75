"""Each worker has its own MIG slice and cores, however it is started, and memory that is free. The driver is made up, and trains
on the CPU."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rules

UNIT = Path(__file__).parents[1] / "unit"
CORES = sorted(os.sched_getaffinity(0))
# Two GPUs on NUMA nodes of their own, each with one slice. Of NVML's library nothing but its presence is asked.
DRIVER = f"""
from stand_ins import FakeNvml, NvmlError as NVMLError, make_card
nvml = FakeNvml(make_card(0, slices=["MIG-a"], cores=[{CORES[0]}]), make_card(1, slices=["MIG-b"], cores=[{CORES[-1]}]))
globals().update({{name: getattr(nvml, name) for name in dir(nvml) if name.lower().startswith("nvml")}})

import os, pathlib, types
def nvmlDeviceGetMemoryInfo(handle):
    held = pathlib.Path(os.environ["SEEN"], "held")  # by each letter for another look
    letters = held.read_text() if held.exists() else ""
    held.write_text(letters[1:])
    return types.SimpleNamespace(used=70 << 30 if letters else 0)
"""
# Each worker notes what it was given: ours at its end, a script where it is at work.
NOTE = """
import json, os
def note():
    if "SLIPWAY_NODE_DIR" in os.environ and os.environ.get("LOCAL_RANK"):
        given = [os.environ["CUDA_VISIBLE_DEVICES"], sorted(os.sched_getaffinity(0))]
        with open(f"{os.environ['SEEN']}/{os.environ['LOCAL_RANK']}", "w") as file:
            json.dump(given, file)
"""
SITE = """
import atexit
if os.environ.get("SLIPWAY_DEVICE") == "cuda":
    os.environ |= {"SLIPWAY_DEVICE": "cpu", "SLIPWAY_BACKEND": "gloo"}
atexit.register(note)
"""


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """The variables with which a launcher finds that driver; what workers note is in the folder `seen`."""
    folder = tmp_path / "driver"
    (tmp_path / "seen").mkdir()
    folder.mkdir()
    (folder / "pynvml.py").write_text(DRIVER)
    (folder / "sitecustomize.py").write_text(NOTE + SITE)
    [libc] = set(re.findall(r"/\S*/libc[.-]\S*", Path("/proc/self/maps").read_text()))
    (folder / "libnvidia-ml.so.1").symlink_to(libc)
    paths = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": f"{folder}:{UNIT}", "SEEN": str(tmp_path / "seen")}
    return {**paths, "CUDA_VISIBLE_DEVICES": "MIG-b,MIG-a"}


def with_stand_ins(driver: dict[str, str], rules: Rules) -> dict[str, str]:
    """The driver's variables for a job without torch."""
    stand_ins = rules.variables(pause=0.0)
    return driver | stand_ins | {"PYTHONPATH": f"{stand_ins['PYTHONPATH']}:{driver['PYTHONPATH']}"}


PROCESS = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("words", "environ", "ranks"),
    [
        (("linear", "--steps=1"), {}, (0, 1)),
        (("run", "own.py"), {}, (0, 1)),
        (("linear", "--steps=1", "--launcher=spawn"), {}, (0, 1)),
        (("run", "--run-dir=mine", "own.py"), PROCESS, (1,)),
    ],
    ids=["our workload", "own script", "spawn", "a launcher per process"],
)
def test_each_worker_has_its_own_slice_and_the_cores_near_it(
    slipway: Callable[..., Launcher],
    driver: dict[str, str],
    rules: Rules,
    tmp_path: Path,
    words: tuple[str, ...],
    environ: dict[str, str],
    ranks: tuple[int, ...],
) -> None:
    (tmp_path / "own.py").write_text(f"{NOTE}\nnote()\n")
    given = with_stand_ins(driver, rules) if "own.py" in words else driver
    job = slipway(*words, **given, **environ)
    assert job.process.returncode == 0, job.text
    assert "1 node × 2 MIG slices = 2 processes" in job.text
    seen = {int(file.name): json.loads(file.read_text()) for file in (tmp_path / "seen").glob("[0-9]")}
    own = {0: ["MIG-b", CORES[-1:]], 1: ["MIG-a", CORES[:1]]}
    assert seen == {rank: own[rank] for rank in ranks}


def test_another_attempt_begins_when_the_memory_of_the_last_one_is_free(
    slipway: Callable[..., Launcher], driver: dict[str, str], rules: Rules, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(
        "import os, pathlib\n"
        "if os.environ['SLIPWAY_ATTEMPT'] == '1' and os.environ['RANK'] == '0':\n"
        "    pathlib.Path(os.environ['SEEN'], 'held').write_text('four')\n"
        "    raise SystemExit(1)\n"
    )
    job = slipway("run", "--max-restarts=1", "own.py", **with_stand_ins(driver, rules))
    assert job.process.returncode == 0, job.text
    assert "waiting for GPU 1: 70.0 GB of the last attempt are not free yet" in job.closing, job.text
    assert "finished on 1 node after 2 attempts" in job.closing
