"""What the workloads load before their first step: each second of it is a second that every start waits."""

import subprocess
import sys

import pytest

WORKLOADS = ("allreduce", "finetune", "gpt", "linear", "vision")
HEAVY = ("torch.distributed.pipelining", "torch.distributed.fsdp", "tensorboard", "pyarrow", "huggingface_hub", "pygal")
LOOK = f"""
import sys
from importlib import import_module
for workload in {WORKLOADS}:
    import_module(f"slipway.train.workloads.{{workload}}")
    print(workload, [name for name in {HEAVY} if name in sys.modules])
"""


@pytest.mark.core
def test_no_workload_loads_anything_heavy_that_it_may_not_need() -> None:
    told = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == [f"{workload} []" for workload in WORKLOADS]
