"""Xid errors: what the NVIDIA driver wrote into the kernel's log since the machine started.

https://docs.nvidia.com/deploy/xid-errors/ lists their numbers.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway.launch.health.finding import ok, skipped, warning
from slipway.launch.muster.card import Finding

KMSG = Path("/dev/kmsg")
RECORD = 8192  # bytes; the kernel gives one record per read and refuses smaller buffers
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]+)\): (\d+)(?:, (.*))?")
# A program's own mistakes, such as an access out of bounds, or its end: 13 graphics exception, 31 MMU fault, 43 stopped
# processing, 45 preemptive cleanup. All others speak of hardware, firmware or driver.
PROGRAMS = frozenset({13, 31, 43, 45})


@dataclass(frozen=True)
class Xid:
    """One error: seconds since the machine started, the GPU's PCI address, its number and the driver's words."""

    at: float
    pci: str
    number: int
    text: str


def look_at_kernel_log(log: Path = KMSG) -> Iterator[Finding]:
    """The row about Xid errors."""
    try:
        records = read_kernel_log(log)
    except OSError as error:
        reason = (
            f"{log} cannot be read ({error.strerror}), which takes privileges; on the node itself: dmesg | grep Xid"
        )
        yield skipped("Xid errors", reason)
        return
    yield judge_xids(find_xids(records), time.clock_gettime(time.CLOCK_MONOTONIC))


def read_kernel_log(log: Path = KMSG) -> list[str]:
    """All records that the kernel still has, without waiting for more. Raises OSError."""
    records: list[str] = []
    file = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(file, RECORD)
            except BrokenPipeError:  # overwritten meanwhile: the next read goes on with the oldest
                continue
            except BlockingIOError:
                return records
            if not record:
                return records
            records.append(record.decode(errors="replace"))
    finally:
        os.close(file)


def find_xids(records: Sequence[str]) -> list[Xid]:
    """The Xid errors among records of the form `level,number,microseconds,flags;text`."""
    found = []
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        if (match := XID.search(text)) and len(fields) > 2 and fields[2].isdigit():
            found.append(Xid(int(fields[2]) / 1e6, match[1], int(match[2]), (match[3] or "").strip()))
    return found


def judge_xids(xids: Sequence[Xid], now: float) -> Finding:
    """One row; `now` in seconds since the machine started."""
    serious = [xid for xid in xids if xid.number not in PROGRAMS]
    if not serious:
        programs = f"; {len(xids)} of programs (numbers 13, 31, 43, 45)" if xids else ""
        return ok("Xid errors", f"none of hardware or driver in the kernel's log{programs}")
    last = serious[-1]
    hours = max(0.0, now - last.at) / 3600
    numbers = ", ".join(str(number) for number in sorted({xid.number for xid in serious}))
    return warning(
        "Xid errors",
        f"{len(serious)} in the kernel's log (numbers {numbers}); the last {hours:.1f} hours ago: "
        f"Xid {last.number} of {last.pci}: {last.text[:160]}",
        "https://docs.nvidia.com/deploy/xid-errors/ says what each number asks for",
    )
