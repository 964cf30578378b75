"""Which arithmetic is chosen on which hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.arithmetic import choose_precision, cpu_flags, has_fast_bf16


@pytest.mark.parametrize(
    ("flags", "environ", "fast"),
    [
        ("fpu avx2", {}, False),
        ("fpu avx512f avx512_vnni", {}, False),
        ("avx512f avx512_bf16", {}, True),
        ("amx_bf16 amx_tile", {}, True),
        ("amx_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
        ("amx_bf16", {"ONEDNN_MAX_CPU_ISA": "avx512_core_vnni"}, False),
        ("amx_bf16", {"DNNL_MAX_CPU_ISA": "AVX512_CORE"}, False),
        ("amx_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True),
        ("amx_bf16", {"ONEDNN_MAX_CPU_ISA": "DEFAULT"}, True),
        ("amx_bf16", {"ONEDNN_MAX_CPU_ISA": ""}, True),
        ("amx_bf16", {"ATEN_CPU_CAPABILITY": "avx2"}, False),
        ("amx_bf16", {"ATEN_CPU_CAPABILITY": "default"}, False),
        ("amx_bf16", {"ATEN_CPU_CAPABILITY": "avx512"}, True),
    ],
)
def test_bf16_is_fast_on_a_cpu_with_instructions_for_it(flags: str, environ: dict[str, str], fast: bool) -> None:
    assert has_fast_bf16(flags.split(), environ) is fast


@pytest.mark.parametrize(
    ("wanted", "capability", "fast_cpu_bf16", "chosen"),
    [
        ("auto", None, True, "bf16"),
        ("auto", None, False, "fp32"),
        ("auto", (9, 0), False, "bf16"),
        ("auto", (8, 0), False, "bf16"),
        ("auto", (7, 5), True, "fp16"),
        ("auto", (7, 0), True, "fp16"),
        ("auto", (6, 1), True, "fp32"),
        ("fp32", (9, 0), True, "fp32"),
        ("bf16", None, False, "bf16"),
        ("fp16", (9, 0), False, "fp16"),
    ],
)
def test_auto_takes_what_the_hardware_is_fast_at(
    wanted: str, capability: tuple[int, int] | None, fast_cpu_bf16: bool, chosen: str
) -> None:
    assert choose_precision(wanted, capability, fast_cpu_bf16) == chosen


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(ConfigurationError, match="type --precision bf16 or --precision fp32"):
        choose_precision("fp16", None, True)


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_flags(cpuinfo) == {"fpu", "amx_bf16"}
    assert cpu_flags(tmp_path / "missing") == set()
