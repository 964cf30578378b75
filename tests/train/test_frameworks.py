"""The examples on frameworks: each trains under every launcher, resumes after a SIGKILL, and stops at one step on all ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import needs
import pytest
import torch
from ports import take_port
from waiting import PATIENCE, wait_until

import slipway
from slipway.train import load_newest

pytestmark = pytest.mark.needs("frameworks")
EXAMPLES = Path(__file__).parents[2] / "examples"
TRAINER = ("--save_steps", "20", "--use_cpu", "--report_to", "none", "--disable_tqdm", "true", "--max_steps")
ON_CPU = {"PYTHONPATH": str(Path(slipway.__file__).parents[1]), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SLIPWAY = ("-m", "slipway", "run", "--nproc-per-node", "2", "--max-restarts", "3", "--run-dir", "run")
SHORT, LONG = "short", "long"
WORDS = {
    "accelerate_loop.py": {SHORT: ("1",), LONG: ("40",)},
    "fabric_loop.py": {SHORT: ("1",), LONG: ("40",)},
    "hf_trainer.py": {SHORT: (*TRAINER, "10"), LONG: (*TRAINER, "1500")},
}
LOOPS = ("accelerate_loop.py", "fabric_loop.py")
each_example = pytest.mark.parametrize("example", WORDS)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "TMPDIR", "LANG") if name in os.environ}
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [str(needs.FRAMEWORKS), *words], cwd=folder, env=kept | ON_CPU, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def end(job: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == code, said
    return said


@pytest.fixture
def under_way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A long training under the launcher; it runs until the test ends it."""
    job = start(tmp_path, *SLIPWAY, str(EXAMPLES / request.param), *WORDS[request.param][LONG])
    yield job
    job.kill()
    job.communicate()


def beat(folder: Path, rank: int) -> dict[str, Any]:
    path = folder / "run/node-0/heartbeat" / f"rank-{rank}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def wait_for_step(job: subprocess.Popen[str], folder: Path, step: int, attempt: str = "") -> dict[str, Any]:
    """Return the first heartbeat of rank 1 that was seen after that many steps, of another process than `attempt`."""

    def is_there() -> dict[str, Any]:
        assert job.poll() is None, end(job)
        found = beat(folder, 1)
        return found if found.get("step", 0) >= step and str(found["pid"]) != attempt else {}

    found: dict[str, Any] = wait_until(is_there, f"step {step}")
    return found


@each_example
def test_it_trains_under_every_launcher(tmp_path: Path, example: str) -> None:
    program = (str(EXAMPLES / example), *WORDS[example][SHORT])
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(take_port()))
    assert "slipway.resume without its launcher" in end(start(tmp_path / "python", *program))
    assert "slipway.resume without its launcher" in end(start(tmp_path / "torchrun", *torchrun, *program))
    if example not in LOOPS:  # the Trainer by itself would do one more step
        assert "finished at step 10" in end(start(tmp_path / "python", *program))
    end(start(tmp_path / "slipway", *SLIPWAY, *program))


@pytest.mark.parametrize("under_way", WORDS, indirect=True)
def test_a_stop_ends_all_ranks_at_one_step_with_a_checkpoint(tmp_path: Path, under_way: subprocess.Popen[str]) -> None:
    wait_for_step(under_way, tmp_path, 5)
    under_way.send_signal(signal.SIGTERM)
    said = end(under_way, 75)
    outcomes = [json.loads(path.read_text()) for path in (tmp_path / "run/node-0/outcome").glob("rank-*.json")]
    [step] = {outcome["step"] for outcome in outcomes}
    assert [outcome["outcome"] for outcome in outcomes] == ["stopped", "stopped"], said
    checkpoints = [
        tmp_path / f"run/snapshots/step-{step:08}",
        tmp_path / f"run/trainer_output/checkpoint-{step}/slipway-complete",
    ]
    assert any(path.exists() for path in checkpoints), said


@pytest.mark.parametrize("under_way", WORDS, indirect=True)
def test_a_killed_rank_resumes_where_the_newest_checkpoint_is(
    tmp_path: Path, under_way: subprocess.Popen[str], request: pytest.FixtureRequest
) -> None:
    first = wait_for_step(under_way, tmp_path, 45)
    os.kill(first["pid"], signal.SIGKILL)
    again = wait_for_step(under_way, tmp_path, 1, str(first["pid"]))
    example = request.node.callspec.params["under_way"]
    if example not in LOOPS:  # the Trainer saves every 20 steps
        assert again["first"] % 20 == 1
        assert again["first"] > 20
        assert "finished at step 1500" in end(under_way)
        return
    assert again["first"] > 1
    assert "resuming from" in end(under_way)
    end(start(tmp_path / "whole", *SLIPWAY, str(EXAMPLES / example), *WORDS[example][LONG]))
    killed, whole = (weights(folder) for folder in (tmp_path, tmp_path / "whole"))
    assert killed.keys() == whole.keys()
    assert all(torch.equal(killed[name], whole[name]) for name in whole), "the same bits as if nothing had happened"


STAGES = """
import os, signal, sys
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
import slipway.hf

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
    def forward(self, x, y):
        return {"loss": (self.layer(x) - y).square().mean()}

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if sys.argv[2:] == [f"{stage}/{state.global_step}"] and os.environ["SLIPWAY_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

def make_trainer():
    data = [{"x": torch.full((8,), float(i)), "y": torch.tensor([float(i)])} for i in range(16)]
    args = TrainingArguments("out", max_steps=10, save_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to=[])
    return Trainer(net, args, train_dataset=data, callbacks=[slipway.hf.Callback(), Kill()])

torch.manual_seed(0)
net = Net()
trainer = make_trainer()
for stage in (1, 2, 3):
    trainer.train()
    if sys.argv[1] == "folds":
        trainer = make_trainer()
print("weights", net.layer.weight.tolist())
"""


@pytest.mark.parametrize("kind", ["stages", "folds"])
def test_a_script_that_trains_several_times_resumes_in_the_training_that_failed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "stages.py").write_text(STAGES)
    run = (*SLIPWAY[:4], "1", *SLIPWAY[5:], "../stages.py", kind)
    whole, killed = (end(start(tmp_path / name, *run, *words)) for name, words in (("whole", ()), ("killed", ("2/7",))))
    assert "attempt 2" in killed
    [expected], [found] = (
        [line for line in said.splitlines() if line.startswith("weights")] for said in (whole, killed)
    )
    assert found == expected
    folders = (tmp_path / "killed/run/out").glob("**/slipway-complete")
    assert {path.parent.parent.name for path in folders} == {"out", "training-2", "training-3"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = load_newest(folder / "run/snapshots", print)
    assert found
    return {**found[1].tensors["model"]}
