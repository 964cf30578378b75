"""What a workload loads before its first step: each second of it is a second that every start waits."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

HEAVY = ("torch.distributed.pipelining", "torch.distributed.fsdp", "tensorboard", "pyarrow", "huggingface_hub", "pygal")


@pytest.mark.parametrize("workload", ["allreduce", "finetune", "gpt", "linear", "vision"])
def test_a_workload_loads_nothing_heavy_that_it_may_not_need(workload: str) -> None:
    code = f"import sys, slipway.train.workloads.{workload}; print([name for name in {HEAVY} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == "[]"
