"""Large files with the checksum of what was written, and the safetensors format without a second copy in memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PIECE = 2**24  # bytes

# Names of the safetensors format: https://huggingface.co/docs/safetensors#format
DTYPES: Mapping[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip


def write_file(
    path: Path, chunks: Iterable[bytes | memoryview], note: Callable[[int], None] = lambda size: None
) -> dict[str, int | str]:
    """Write and fsync a new file. Returns size and sha256 of what was meant to be written, not of what is read back.

    `note` is told the size of each piece that is written.
    """
    digest = hashlib.sha256()
    size = 0
    path.unlink(missing_ok=True)
    with path.open("xb") as file:  # a link that somebody put there is not followed
        for piece in pieces(chunks):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            note(len(piece))
        file.flush()
        os.fsync(file.fileno())
        # Whoever reads it back shall see what the disk holds, and the memory is worth more to the training data.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"size": size, "sha256": digest.hexdigest()}


def pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """The same bytes, none longer than PIECE."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]


def safetensors_chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, tensor by tensor, so that no second copy of the model is held in memory.

    In the order of their names, so that equal tensors make equal files: a resumed optimizer lists its state differently.
    """
    import torch  # only here: whatever else writes files need not wait for it

    tensors = dict(sorted(tensors.items()))
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        if tensor.numel():
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
