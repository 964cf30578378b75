"""How busy each rank's GPU is, by NVML."""

from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import FakeNvml, NvmlError

from slipway.launch.attempt.gpu_use import GpuUse
from slipway.launch.resolve.devices import Gpu


class BusyNvml(FakeNvml):
    """Card 1 is in use for 93 % of the time; `refuses` is the error that NVML answers instead."""

    refuses: Exception | None = None
    started = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.started += 1
        super().nvmlInit()

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return f"card {index}"

    def nvmlDeviceGetUtilizationRates(self, card: str) -> Any:  # noqa: N802
        if self.refuses:
            raise self.refuses
        return SimpleNamespace(gpu={"card 1": 93}[card])


def make_use(nvml: FakeNvml, uuid: str = "GPU-b") -> GpuUse:
    return GpuUse({3: Gpu(1, uuid, "NVIDIA H100", (9, 0))}, nvml)


def test_it_is_asked_of_the_ranks_own_gpu_and_nvml_is_started_once() -> None:
    nvml = BusyNvml()
    use = make_use(nvml)
    assert [use(3), use(3), use(0)] == [93, 93, None]
    assert nvml.started == 1
    use.close()
    assert nvml.shut_down


def test_without_gpus_nvml_is_left_alone() -> None:
    nvml = BusyNvml()
    use = GpuUse({}, nvml)
    assert use(0) is None
    use.close()
    assert (nvml.started, nvml.shut_down) == (0, False)


def test_of_a_mig_slice_nobody_says() -> None:
    assert make_use(BusyNvml(), "MIG-1")(3) is None


@pytest.mark.parametrize("error", [NvmlError(15), NvmlError(3), OSError("no driver")])
def test_what_nvml_refuses_is_unknown_and_ends_nothing(error: Exception) -> None:
    nvml = BusyNvml()
    nvml.refuses = error
    assert make_use(nvml)(3) is None


def test_a_driver_that_is_away_is_asked_no_more() -> None:
    nvml = BusyNvml(init_error=NvmlError(9))
    use = make_use(nvml)
    assert [use(3), use(3)] == [None, None]
    assert nvml.started == 1
