"""What workloads and own loops load before their first step: each second of it is a second that every start waits."""

import subprocess
import sys

import pytest

MODULES = (*(f"workloads.{name}" for name in ("allreduce", "finetune", "gpt", "linear", "vision")), "user.run")
HEAVY = (
    "sympy", "torch.distributed.tensor",  # which imports the former
    "torch.distributed.pipelining", "torch.distributed.fsdp", "tensorboard", "pyarrow", "huggingface_hub", "pygal",
)  # fmt: skip
LOOK = f"""
import sys
from importlib import import_module
for module in {MODULES}:
    import_module(f"slipway.train.{{module}}")
    print(module, [name for name in {HEAVY} if name in sys.modules])
"""


@pytest.mark.core
def test_nothing_loads_anything_heavy_that_it_may_not_need() -> None:
    told = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == [f"{module} []" for module in MODULES]
