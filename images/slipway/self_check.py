"""Check the packages of the image, during its build: `python self_check.py TORCH CAPABILITY`. Any failure ends the build.

TORCH is its version as the image's label has it; CAPABILITY the range of compute capabilities, empty for an image without CUDA.

What trimming could break is tried here without a GPU: every native library finds what it links, torch and
torchvision compute, two processes train a step over gloo, the C compiler builds what Triton asks of it.
"""

import ctypes
import importlib.util
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

TORCH, CAPABILITY = sys.argv[1], sys.argv[2]
SITE = Path(sysconfig.get_path("purelib"))
REPORT = Path("/opt/slipway/share/self-check.txt")

# The driver's own libraries: the NVIDIA runtime mounts them into the container.
FROM_THE_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
# Plug-ins for other transports, opened only where a site has their libraries.
OPTIONAL = ("nvshmem_transport", "nvshmem_bootstrap", "libcufile_rdma")
# Their libraries rely on torch's and Triton's being loaded already; the check of its operators loads torchvision's for real.
LOADED_LATER = ("torchvision", "triton/plugins")

TWO_PROCESSES = """
import gc, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.full((8, 4), float(dist.get_rank() + 1))).mean().backward()
optimizer.step()
weights = [torch.zeros(1, 4) for _ in range(2)]
dist.all_gather(weights, model.module.weight.detach())
assert torch.equal(*weights), weights
del model, optimizer
gc.collect()
dist.destroy_process_group()
"""

# The headers that Triton's compiled launcher includes.
STUB = """
#include <Python.h>
#include <dlfcn.h>
int answer(void) { return PY_MAJOR_VERSION; }
"""


def libraries_resolve() -> str:
    """Every shared object finds the libraries that it links."""
    files = [path for path in SITE.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    missing = []
    for path in files:
        if any(path.is_relative_to(SITE / folder) for folder in LOADED_LATER):
            continue
        listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for line in listed.splitlines():
            name = line.split(" => ")[0].strip()
            if line.endswith("not found") and name not in FROM_THE_DRIVER and not path.name.startswith(OPTIONAL):
                missing.append(f"{path.relative_to(SITE)} needs {name}")
    assert not missing, "\n".join(missing)
    return f"{len(files)} libraries"


def no_nvidia_library_without_cuda() -> str:
    """NVIDIA's packages are there with CUDA, and none of them without."""
    found = [path.name for path in SITE.glob("nvidia_*.dist-info") if not path.name.startswith("nvidia_ml_py-")]
    assert bool(found) == bool(CAPABILITY), found
    return f"{len(found)} of NVIDIA's packages"


def torch_computes() -> str:
    """torch is the build of the labels, knows NCCL if it has CUDA, and computes on the CPU."""
    import torch
    import torch.distributed as dist

    assert torch.__version__ == TORCH, torch.__version__
    assert bool(torch.version.cuda) == bool(CAPABILITY), torch.version.cuda
    assert dist.is_nccl_available() == bool(CAPABILITY)
    assert dist.is_gloo_available()
    if CAPABILITY:
        # The label is x86-64's. On arm64 torch leaves out older GPUs, never newer ones.
        lowest, highest = (int(end.replace(".", "")) for end in CAPABILITY.split("-"))
        codes = [int(code) for code in re.findall(r"sm_(\d+)", torch._C._cuda_getArchFlags())]
        assert lowest <= min(codes), codes
        assert max(codes) == highest, codes
        assert platform.machine() != "x86_64" or lowest == min(codes), codes
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten())
    layer(torch.randn(2, 3, 8, 8)).square().mean().backward()
    torch.linalg.svd(torch.randn(8, 8))
    torch.fft.fft(torch.randn(8))
    return f"torch {torch.__version__}"


def torchvision_has_its_operators() -> str:
    """The operators of torchvision's own library are registered with this torch."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2.1], [5, 5, 6, 6]])
    assert torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]
    torchvision.io.decode_png(torchvision.io.encode_png(torch.zeros(3, 4, 4, dtype=torch.uint8)))
    return f"torchvision {torchvision.__version__}"


def data_sets_are_read() -> str:
    """Parquet is written and read, a tokenizer trained, a chart drawn; the Hub's client loads."""
    import huggingface_hub
    import pyarrow
    import pyarrow.parquet
    import pygal
    import tokenizers

    with tempfile.TemporaryDirectory() as folder:
        for compression in ("snappy", "zstd", "gzip"):
            table = pyarrow.table({"text": ["a", "b"], "image": [b"1", b"2"]})
            pyarrow.parquet.write_table(table, f"{folder}/data.parquet", compression=compression)
            assert pyarrow.parquet.read_table(f"{folder}/data.parquet") == table
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.train_from_iterator(["a b a b"], tokenizers.trainers.BpeTrainer(vocab_size=8, show_progress=False))
    assert tokenizer.encode("ab").ids
    assert b"<svg" in pygal.XY(js=[]).render()
    return f"pyarrow {pyarrow.__version__}, tokenizers {tokenizers.__version__}, Hub {huggingface_hub.__version__}"


def two_processes_train() -> str:
    """A step of DistributedDataParallel over gloo, through torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "two.py")
        script.write_text(TWO_PROCESSES)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
        # Under QEMU it takes minutes.
        subprocess.run([*torchrun, "--master-port=29511", script], check=True, timeout=1200)
    return "2 processes over gloo"


def compiler_builds_for_triton() -> str:
    """gcc builds a shared object against Python's headers, as Triton does for its launcher."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "stub.c").write_text(STUB)
        include = sysconfig.get_path("include")
        subprocess.run(
            ["gcc", "-O3", "-shared", "-fPIC", f"-I{include}", "stub.c", "-o", "stub.so"], cwd=folder, check=True
        )
        assert ctypes.CDLL(f"{folder}/stub.so").answer() == 3
    import triton  # noqa: F401

    return f"gcc, triton {metadata.version('triton')}"


def modules_are_compiled() -> str:
    """The byte code is there, so that a read-only container starts as fast."""
    spec = importlib.util.find_spec("torch.nn.functional")
    assert spec is not None
    assert spec.cached is not None
    assert Path(spec.cached).is_file()
    return "byte code"


def packages_fit() -> str:
    """pip finds no package without what it requires."""
    subprocess.run([sys.executable, "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
    installed = json.loads(
        subprocess.check_output([sys.executable, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"])
    )
    return f"{len(installed)} packages"


if __name__ == "__main__":
    CHECKS = (
        libraries_resolve,
        no_nvidia_library_without_cuda,
        torch_computes,
        *([torchvision_has_its_operators] if importlib.util.find_spec("torchvision") else []),
        data_sets_are_read,
        two_processes_train,
        *([compiler_builds_for_triton] if CAPABILITY else []),
        modules_are_compiled,
        packages_fit,
    )
    lines = []
    for check in CHECKS:
        lines.append(f"{check.__name__.replace('_', ' ')}: {check()}")
        print("self-check:", lines[-1], flush=True)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n")
