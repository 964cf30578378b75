"""Xid errors, which NVIDIA's driver reports of a GPU by their numbers: what each means, and whose fault it is.

Names and actions are those of the catalog for Ampere and newer GPUs, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
as read on 2026-11-29 (numbers 1 to 172), in its column "Immediate Action".
"""

from types import MappingProxyType

# A program's own mistakes, such as an access out of bounds, or its end. NVIDIA's device plugin for Kubernetes keeps a node with
# these in use as well (internal/rm/health.go), though the catalog wants a reset after 109.
PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
# IGNORE: corrected, or a report about another Xid (154).
HARMLESS = frozenset({14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 154, 157, 160, 161})
# RESTART_APP: the program has to be started again, and the GPU is not said to be broken. 94 is a memory error of the GPU's.
RESTART = frozenset(
    {
        8,
        11,
        25,
        32,
        39,
        40,
        41,
        60,
        *range(69, 73),
        75,
        76,
        77,
        80,
        *range(82, 87),
        88,
        89,
        *range(96, 106),
        *range(126, 136),
        139,
    }
)
NVLINK_5 = range(144, 151)  # whose lines in the kernel's log say Fatal or Nonfatal

RESET = "reset the GPU: drain the node, then nvidia-smi --gpu-reset -i {gpu}, or reboot"
ACTIONS = MappingProxyType(
    {
        **dict.fromkeys(PROGRAMS, ""),  # what they printed says more
        **dict.fromkeys(RESTART, "start the program again"),
        **dict.fromkeys((46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), RESET),  # RESET_GPU
        **dict.fromkeys((48, 74, *NVLINK_5), RESET + "; if it comes back, contact support"),  # WORKFLOW_…
        79: "restart the machine (not only the virtual machine); if it comes back, contact support",  # RESTART_BM
        94: "start the job again; reset the GPU when convenient",
        54: "check the GPU's power cables",  # CHECK_MECHANICALS
        78: "update the driver and firmware",  # UPDATE_SWFW
        151: "restart the virtual machine",  # RESTART_VM
    }
)
NAMES = MappingProxyType(
    {
        13: "graphics engine exception",
        31: "GPU memory page fault",
        32: "invalid or corrupted push buffer stream",
        43: "GPU stopped processing",
        45: "preemptive cleanup, due to previous errors",
        46: "GPU stopped processing",
        48: "double bit ECC error",
        54: "auxiliary power is not connected to the GPU board",
        62: "internal micro-controller halt",
        63: "GPU memory remapping event",
        64: "GPU memory remapping failure",
        68: "NVDEC0 exception",
        69: "graphics engine class error",
        74: "NVLink error",
        79: "GPU has fallen off the bus",
        92: "high single-bit ECC error rate",
        94: "contained memory error",
        95: "uncontained memory error",
        109: "context switch timeout error",
        110: "security fault error",
        119: "GSP RPC timeout",
        120: "GSP error",
        121: "C2C error",
        136: "link training failed",
        137: "NVLink privilege error",
        140: "ECC unrecovered error",
        143: "GPU initialization error",
        144: "NVLink SAW error",
        145: "NVLink RLW error",
        146: "NVLink TLW error",
        147: "NVLink TREX error",
        148: "NVLink NVLPW_CTRL error",
        149: "NVLink NETIR error",
        150: "NVLink MSE error",
        154: "GPU recovery action changed",
        155: "NVLink software defined error",
        156: "resource retirement event",
        158: "GPU fatal timeout",
    }
)


def describe(number: int) -> str:
    """An error by its number and its name, where that is known."""
    return f"Xid {number}" + (f", {NAMES[number]}" if number in NAMES else "")


def is_sick(number: int) -> bool:
    """Whether a node with this error is to be left: a GPU, a link or the driver is broken, or nobody knows the number."""
    return number not in PROGRAMS | HARMLESS | RESTART


def is_serious(number: int, text: str) -> bool:
    """Whether a record of the kernel's log is more than a program's mistake or what the driver has mended."""
    if number == 154:  # it sums up others: what has to be done about the GPU
        return not text.endswith("(None)")
    return number not in PROGRAMS | HARMLESS and not (number in NVLINK_5 and " Nonfatal " in text)


def action(number: int, gpu: str) -> str:
    """What to do about a GPU, by its number for nvidia-smi; empty after a program's own mistake."""
    return ACTIONS.get(number, "contact support: the catalog has no more advice").format(gpu=gpu)
