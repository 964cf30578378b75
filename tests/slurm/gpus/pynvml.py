# ruff: noqa: N802  # the names are NVML's
"""A driver that shows four GPUs: what the launcher asks of pynvml, on machines that have none."""

NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND = 9, 12


class NVMLError(Exception):
    value = 3  # NVML_ERROR_NOT_SUPPORTED


def nvmlInit() -> None:
    pass


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "550.54.15"


def nvmlDeviceGetCount() -> int:
    return 4


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(gpu: int) -> str:
    return "NVIDIA H100"


def nvmlDeviceGetCudaComputeCapability(gpu: int) -> list[int]:
    return [9, 0]


def nvmlDeviceGetUUID(gpu: int) -> str:
    return f"GPU-{gpu}"


def nvmlDeviceGetMigMode(gpu: int) -> list[int]:
    raise NVMLError
