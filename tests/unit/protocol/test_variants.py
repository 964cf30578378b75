"""Which image fits a machine: by the driver, the GPUs and the processor, before anything is pulled and in every message."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from stand_ins import make_devices, make_host

from slipway.check.devices import judge_driver
from slipway.check.selftest import machine_line
from slipway.launch.resolve.devices import Devices, Gpu
from slipway.launch.resolve.packages import read_cuda, read_versions, require_usable_gpus
from slipway.launch.verdict.block import what_to_do
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.causes import find_signs
from slipway.protocol.errors import CONFIGURATION, UNHEALTHY, LaunchError
from slipway.protocol.outcomes import Word
from slipway.protocol.variants import ARM, VARIANTS, X86, advise_old_driver, advise_variant, fitting

ROOT = Path(__file__).parents[3]
P100, V100, T4, A100, H100, B200, RTX5090, GB10 = (
    ("Tesla P100", (6, 0)), ("Tesla V100", (7, 0)), ("Tesla T4", (7, 5)), ("NVIDIA A100", (8, 0)), ("NVIDIA H100", (9, 0)),
    ("NVIDIA B200", (10, 0)), ("NVIDIA GeForce RTX 5090", (12, 0)), ("NVIDIA GB10", (12, 1)),
)  # fmt: skip


def with_gpus(driver: str, *gpus: tuple[str, tuple[int, int]]) -> Devices:
    return Devices(
        tuple(Gpu(at, f"GPU-{at}", name, capability) for at, (name, capability) in enumerate(gpus)), 4, driver
    )


@pytest.mark.parametrize(
    ("driver", "gpus", "machine", "names"),
    [
        ("470.256.02", [H100], X86, []),
        ("525.60.11", [H100], X86, []),
        ("525.60.13", [H100], X86, ["cuda12"]),
        ("550.54.15", [T4, H100], X86, ["cuda12"]),
        ("579.99", [H100], X86, ["cuda12"]),
        ("580.65.06", [H100], X86, ["cuda12", "cuda13"]),
        ("610.43.02", [H100], X86, ["cuda12", "cuda13"]),
        ("550.54.15", [V100], X86, ["cuda12"]),
        ("580.65.06", [V100], X86, ["cuda12"]),
        ("580.65.06", [H100, V100], X86, ["cuda12"]),
        ("550.54.15", [B200], X86, []),
        ("565.77", [RTX5090], X86, []),
        ("570.26", [B200], X86, ["cuda12"]),
        ("575.51", [RTX5090], X86, ["cuda12"]),
        ("580.95.05", [RTX5090], X86, ["cuda12", "cuda13"]),
        ("570.26", [H100], ARM, []),
        ("580.95.05", [H100], ARM, ["cuda13"]),
        ("580.95.05", [GB10], ARM, ["cuda13"]),
        ("580.95.05", [A100], ARM, ["cuda13"]),
        ("580.95.05", [T4], ARM, []),
        ("580.95.05", [P100], X86, []),
        ("580.95.05", [H100], "ppc64le", []),
    ],
)
def test_the_images_that_fit_a_machine(driver: str, gpus: list, machine: str, names: list[str]) -> None:
    assert [variant.name for variant in fitting(driver, gpus, machine)] == names
    told = advise_variant(driver, gpus, machine)
    if names:
        assert told.startswith("use the image ")
        assert [name for name in names if name not in told] == []
    else:
        assert told.startswith(
            ("update the driver on the host and reboot: ", "no image has code for all of these GPUs")
        )


@pytest.mark.parametrize(
    ("driver", "gpus", "machine", "says"),
    [
        ("470.256.02", [V100], X86, "reboot: 525.60.13 or newer for the image cuda12"),
        ("550.54.15", [RTX5090], X86, "570 or newer for the image cuda12, 580 or newer for the image cuda13"),
        ("550.54.15", [H100], ARM, "reboot: 580 or newer for the image cuda13"),
        ("580.95.05", [P100, P100], X86, "(x86_64): Tesla P100"),
    ],
)
def test_where_none_fits_it_is_said_what_would_help(driver: str, gpus: list, machine: str, says: str) -> None:
    assert says in advise_variant(driver, gpus, machine)


@pytest.mark.parametrize(
    ("devices", "cuda", "level", "code", "says"),
    [
        (with_gpus("550.54", H100), "12.8", "ok", 0, "images that fit: cuda12"),
        (with_gpus("580.95", H100), "12.8", "ok", 0, "images that fit: cuda12 or cuda13"),
        (with_gpus("580.95", V100), "12.8", "ok", 0, "images that fit: cuda12"),
        (with_gpus("550.54", H100), "13.0", "error", UNHEALTHY, "use the image cuda12"),
        (with_gpus("580.95", V100), "13.0", "error", UNHEALTHY, "use the image cuda12"),
        (with_gpus("565.77", RTX5090), "12.8", "error", UNHEALTHY, "570 or newer for the image cuda12"),
        (with_gpus("470.256.02", H100), "12.8", "error", UNHEALTHY, "525.60.13 or newer for the image cuda12"),
        (with_gpus("470.256.02", H100), None, "error", UNHEALTHY, "525.60.13 or newer for the image cuda12"),
        (with_gpus("470.256.02", H100), "11.8", "ok", 0, "images that fit: none"),
        (
            with_gpus("580.95", P100),
            "12.6",
            "ok",
            0,
            "images that fit: none",
        ),  # a PyTorch of one's own that has its code
        (with_gpus("550.54", H100), "", "error", CONFIGURATION, "use the image cuda12"),
        (Devices(driver="550.54", reason="the driver shows none"), "", "warning", 0, ""),
    ],
)
def test_the_check_names_the_image_that_fits(
    devices: Devices, cuda: str | None, level: str, code: int, says: str
) -> None:
    row = judge_driver(devices, {}, "host", cuda, X86)
    assert (row.level, row.code) == (level, code)
    assert says in f"{row.found} {row.advice}"


@pytest.mark.parametrize(
    ("gpu", "driver", "cuda", "machine", "says"),
    [
        (V100, "580.95", "13.0", X86, "CUDA 13.0) has no code for Tesla V100 (compute capability 7.0), only for 7.5 or newer: use the image cuda12;"),
        (T4, "580.95", "13.0", ARM, "only for 8.0 or newer: no image has code for all of these GPUs (aarch64): Tesla T4;"),
        (P100, "580.95", "12.8", X86, "only for 7.0 or newer: no image has code"),
        (H100, "470.256.02", "12.8", X86, "The driver 470.256.02 is too old for CUDA 12, which needs 525.60.13 or newer: update"),
        (H100, "550.54", "", X86, "This PyTorch was built without CUDA and cannot use the GPUs: use the image cuda12; to choose"),
    ],
)  # fmt: skip
def test_a_job_whose_pytorch_cannot_use_the_gpus_does_not_start(
    gpu: tuple, driver: str, cuda: str, machine: str, says: str
) -> None:
    with pytest.raises(LaunchError) as error:
        require_usable_gpus(with_gpus(driver, gpu), cuda, machine)
    assert says in str(error.value)
    assert "to train on the CPU, use NPROC_PER_NODE=cpu" in str(error.value)
    assert error.value.code == (UNHEALTHY if cuda else CONFIGURATION)
    row = judge_driver(with_gpus(driver, gpu), {}, "host", cuda, machine)
    assert row.code == error.value.code


@pytest.mark.parametrize(
    ("gpu", "driver", "cuda"),
    [
        (H100, "550.54", "12.8"),
        (P100, "580.95", "12.6"),  # wheels for it hold code for older GPUs
        (H100, "550.54", None),
        (P100, "550.54", "11.8"),  # no image has it, so nothing is known of it
    ],
)
def test_a_job_starts_where_nothing_is_known_to_be_wrong(gpu: tuple, driver: str, cuda: str | None) -> None:
    require_usable_gpus(with_gpus(driver, gpu), cuda, X86)


def test_a_pytorch_without_cuda_is_right_where_the_cpu_was_chosen() -> None:
    assert judge_driver(with_gpus("550.54", H100), {"NPROC_PER_NODE": "cpu"}, "host", "", X86).level == "ok"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
            "use the image cuda12, which",
        ),
        (
            "The NVIDIA driver on your system is too old (found version 11040).",
            "cuda12 needs 525.60.13 or newer, cuda13",
        ),
        (
            "ncclUnhandledCudaError: Cuda failure 'CUDA driver version is insufficient for …'",
            "cuda13 needs 580",
        ),
    ],
)  # fmt: skip
def test_the_error_of_a_driver_that_is_too_old_names_the_image(said: str, advice: str) -> None:
    cause = Cause(CauseKind.SAID, text=said, signs=find_signs(said))
    outcome = Outcome(0, "host", Word.UNHEALTHY, 1.0, rank=0, cause=cause)
    assert advice in advise_old_driver(said, X86)
    assert what_to_do(outcome, str) == advise_old_driver(said, platform.machine())


def test_on_arm64_no_image_is_named_that_has_no_build_for_it() -> None:
    told = advise_old_driver("The NVIDIA driver on your system is too old (found version 12040).", ARM)
    assert "cuda13 needs 580 or newer" in told
    assert "cuda12" not in told


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'", "12.8"), ("cuda = '13.0'", "13.0"), ("cuda: Optional[str] = None", ""),
        ("debug = False", None),
    ],
)  # fmt: skip
def test_the_cuda_of_a_pytorch_is_read_without_importing_it(tmp_path: Path, line: str, cuda: str | None) -> None:
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\n__version__ = '2.10.0'\n{line}\nhip = None\n")
    assert read_cuda(tmp_path) == cuda
    assert read_cuda(tmp_path / "gone") is None
    assert read_cuda(None) is None


def test_the_selftest_names_the_images_in_its_last_lines() -> None:
    machine = {**read_versions(make_host(), make_devices(2)), "links": None, "fits": ["cuda12", "cuda13"]}
    assert "images that fit: cuda12 or cuda13" in machine_line(machine)
    without = {**read_versions(make_host(), make_devices(0)), "links": None, "cuda": None}
    assert not re.search(r"None|images", machine_line(without))


def test_the_readme_has_the_same_table() -> None:
    text = (ROOT / "README.md").read_text()
    assert "nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader" in text
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text.partition("<!-- variants -->")[2].partition("<!-- end")[0], re.M
    )
    named = {"`cuda12`": "cuda12", "`cuda13`": "cuda13"}
    machines = {"x86-64": X86, "arm64": ARM}
    for gpus, driver, images in rows[2:]:
        capability = re.search(r"(\d+)\.(\d)", gpus)
        assert capability, gpus
        gpu = ("GPU", (int(capability[1]), int(capability[2])))
        machine = next(value for word, value in machines.items() if word in gpus)
        lowest = driver.split()[0]
        fits = [variant.name for variant in fitting(lowest, [gpu], machine)]
        assert fits == [name for word, name in named.items() if word in images], (gpus, driver)
    assert len(rows) > 6
    for variant in VARIANTS:
        assert f"`{variant.name}`" in text
