"""The rows of `slipway check --burn`: one for each device, and what the comparison of devices of one kind shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stand_ins import Slipway, make_devices

from slipway.check import examination, products
from slipway.check.finding import ok
from slipway.check.products import ProbeEnding, compare_digests, look_at_burn
from slipway.launch.resolve.devices import Devices, Gpu

GPUS = tuple(Gpu(index, f"GPU-{index}", "H100" if index < 3 else "L4", (9, 0)) for index in range(4))


@pytest.mark.parametrize(
    ("digests", "rows"),
    [
        ({"GPU 0": 1}, []),
        ({"GPU 0": 1, "GPU 1": 1}, [("burn", "ok")]),
        ({"GPU 0": 1, "GPU 1": 2, "GPU 2": 1}, [("GPU 1 burn", "error")]),
        ({"GPU 0": 1, "GPU 1": 2}, [("burn", "warning")]),
        ({"GPU 0": 1, "GPU 1": 2, "GPU 2": 3, "GPU 3": 1}, [("burn", "warning")]),
    ],
)
def test_devices_of_a_kind_are_compared_and_a_minority_is_named(
    digests: dict[str, int], rows: list[tuple[str, str]]
) -> None:
    assert [(row.what, row.level) for row in compare_digests("H100", digests)] == rows


def test_each_gpu_has_a_row_and_only_gpus_of_one_kind_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def probe_devices(
        devices: Devices, environ: dict[str, str], seconds: float, module: str, *words: str
    ) -> Iterator[tuple[str, ProbeEnding]]:
        asked.append((environ["OMP_NUM_THREADS"], seconds, module, words))
        for gpu in devices.gpus:
            yield f"GPU {gpu.number}", ProbeEnding({"right": "all", "digest": 9 if gpu.number in (1, 3) else 7}, 0)

    monkeypatch.setattr(products, "probe_devices", probe_devices)
    monkeypatch.setattr(products.importlib.util, "find_spec", lambda name: name)
    rows = [(row.what, row.level) for row in look_at_burn(Devices(GPUS), {}, 60, 120)]
    assert rows == [*((f"GPU {index} burn", "ok") for index in range(4)), ("GPU 1 burn", "error")]
    assert asked == [("1", 180, "slipway.train.measure.burn", ("60",))]


def test_a_burn_is_part_of_the_check_only_where_it_is_asked_for(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch
) -> None:
    burnt = []
    monkeypatch.setattr(examination, "look_at_products", lambda devices, environ: [ok("CPU product", "right")])
    monkeypatch.setattr(examination, "read_devices", lambda environ: make_devices())
    monkeypatch.setattr(
        examination, "look_at_burn", lambda devices, environ, burn: burnt.append(burn) or [ok("CPU burn", "right")]
    )
    assert "CPU burn" not in slipway("check", "--local").out
    assert "CPU burn" in slipway("check", "--local", "--burn", "60").out
    assert burnt == [60]


@pytest.mark.parametrize("typed", ["0", "-3", "soon", "1.5"])
def test_seconds_that_are_no_whole_number_above_0_are_refused(slipway: Slipway, typed: str) -> None:
    answer = slipway("check", "--burn", typed)
    assert answer.code == 2
    assert f"'{typed}' is not a whole number of 1 or more" in answer.err
