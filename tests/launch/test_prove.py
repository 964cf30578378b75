"""`slipway prove`: scripts that resume exactly, scripts that forget something, and what cannot be proven."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from waiting import PATIENCE

Run = Callable[..., str]
SCRIPT = """
import os, random, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset
import slipway

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 4))
    def forward(self, *, inputs):
        return self.layers(inputs)

def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    if "RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    model = Net()
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    average = AveragedModel(model)
    noise = random.Random(5)
    passed = {"model": model, "optimizer": optimizer, "average": average}
    for name in sys.argv[1:]:
        passed.pop(name, None)
    loader = DataLoader(TensorDataset(torch.randn(12, 4)), 4, shuffle=True)
    run = slipway.resume(**passed)
    for epoch in run.epochs(4):
        for [batch] in run.batches(loader):
            scale = noise.random() if "noise" in sys.argv else torch.rand(())
            loss = (wrapped(inputs=batch * scale) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            run.log(loss=loss.item())
        model.eval()
        with torch.no_grad():
            model(inputs=torch.ones(4, 4))  # an epoch that is resumed at its end has no batch
        model.train()

main()
"""


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """A loop of a user's own in a function, whose arguments are what it forgets to pass."""
    path = tmp_path / "loop.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def prove(start: Callable[..., Launcher]) -> Run:
    """Run `slipway prove` to its end, which has to be this exit code; what it printed."""

    def run(code: int, *words: str) -> str:
        job = start("prove", *words)
        assert job.end(5 * PATIENCE) == code, job.text
        return job.text

    return run


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


@pytest.mark.pull
def test_an_average_that_was_not_passed_is_named_with_its_line(prove: Run, loop: Path) -> None:
    said = prove(1, "--steps", "5", "--kills", "2", "--nproc-per-node", "1", "loop.py", "average")
    assert "differs first at step " in said
    made = line_of("average = ")
    assert f'is not: AveragedModel "average" (loop.py:{made}) was not passed to slipway.resume.' in said
    assert "slipway.resume(…, average=average)" in said


def test_a_generator_of_the_loop_is_named(prove: Run, loop: Path) -> None:
    said = prove(1, "--steps", "5", "--kills", "2", "--nproc-per-node", "1", "loop.py", "noise")
    assert f'the batch is the same, what goes into Net is not: Random "noise" (loop.py:{line_of("noise = ")})' in said


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_loop_that_forgets_nothing_resumes_exactly(prove: Run, loop: Path, nodes: int) -> None:
    place = ("--nodes", "2", "--nproc-per-node", "1") if nodes == 2 else ("--nproc-per-node", "2")
    said = prove(0, "--steps", "10", *place, "loop.py")
    assert "resumes exactly: 10 steps, 4 kills, 2 ranks; equal: batches, 12 parameters, " in said
    assert "validations, what run.log got" in said
    assert "not proven" not in said


def test_a_script_that_fails_or_differs_without_a_kill_is_told_so(prove: Run, loop: Path) -> None:
    loop.write_text(SCRIPT.replace("torch.manual_seed(3)", "torch.seed()"))
    said = prove(1, "--steps", "2", "--nproc-per-node", "1", "loop.py")
    assert "differs from itself without a kill, first at step 1: " in said
    loop.write_text(SCRIPT.replace("torch.manual_seed(3)", "raise KeyError('no data')"))
    said = prove(1, "--steps", "2", "--nproc-per-node", "1", "loop.py")
    assert "slipway: It fails without a kill, so nothing can be proven: KeyError: 'no data'" in said


def test_a_script_that_cannot_resume_is_refused(prove: Run, plain: Path) -> None:
    plain.write_text("print('hello')\n")
    said = prove(78, "plain.py")
    assert "plain.py: neither it nor a module beside it imports slipway. Only a loop with slipway.resume" in said
    plain.write_text("import slipway\n")
    said = prove(78, "--nproc-per-node", "1", "plain.py")
    assert "ended without a step of a loop that resumes" in said
