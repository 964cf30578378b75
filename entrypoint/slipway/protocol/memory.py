"""Snapshots in memory, as launcher and workers both know them.

The launcher of a node holds two buffers for each process, files without a name (memfd_create) that outlive the workers of an
attempt, and tells the workers where: VARIABLE holds their paths. The first process uses its own, the others only where parameters
are spread over them. A buffer is a page with a header, the tensors, and JSON that describes them. Its
header is written last and cleared first, so of two that are used in turn one is always whole, whenever a worker dies.
"""

import os
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

VARIABLE = "SLIPWAY_MEMORY"
BUFFERS = 2  # of each process
LOADS = 2  # attempts that may resume from one snapshot in memory; if both fail, the snapshot may be the cause
PAGE = 4096  # bytes; where the tensors begin
MAGIC = b"slipway1"
FIELDS = struct.Struct("<8s5qQI")  # what Header holds, between the magic word and the checksum of both
SUM = struct.Struct("<I")


class Header(NamedTuple):
    """What a buffer says of the snapshot in it.

    `loads`: how often training went on from it. `data` and `described`: bytes of the tensors, and of the JSON behind them.
    `checksum` is that of the tensors, `crc` that of the JSON.
    """

    step: int
    attempt: int
    loads: int
    data: int
    described: int
    checksum: int
    crc: int


def write_header(buffer: int, header: Header | None) -> None:
    """Write a header into an open buffer, or clear it. Raises OSError."""
    content = FIELDS.pack(MAGIC, *header) if header else bytes(FIELDS.size)
    os.pwrite(buffer, content + SUM.pack(zlib.crc32(content) if header else 0), 0)


def read_header(buffer: int) -> Header | None:
    """The header of an open buffer; None where there is no snapshot in it. ValueError where it is damaged, OSError."""
    content = os.pread(buffer, FIELDS.size + SUM.size, 0)
    if not any(content):
        return None
    if len(content) < FIELDS.size + SUM.size:
        raise ValueError("its header is truncated")
    magic, *fields = FIELDS.unpack(content[: FIELDS.size])
    header = Header(*fields)
    if magic != MAGIC or SUM.unpack(content[FIELDS.size :]) != (zlib.crc32(content[: FIELDS.size]),):
        raise ValueError("its header is damaged")
    if min(header.step, header.attempt, header.loads, header.data, header.described) < 0:
        raise ValueError("its header is invalid")
    if PAGE + header.data + header.described > os.fstat(buffer).st_size:
        raise ValueError("it is truncated")
    return header


def newest_in(buffers: Iterable[int]) -> Header | None:
    """The header of the newest snapshot in these buffers that workers would take, by what their headers say; None without any."""
    found = []
    for buffer in buffers:
        try:
            header = read_header(buffer)
        except (OSError, ValueError):  # a worker will say so
            continue
        found += [header] if header and header.loads < LOADS else []
    return max(found, key=lambda header: (header.attempt, header.step), default=None)
