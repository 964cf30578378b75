"""Tensors as files and as raw bits: the safetensors format without a second copy in memory, and sums of bits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

# Names of the safetensors format: https://huggingface.co/docs/safetensors#format
DTYPES: Mapping[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip


def safetensors_chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, tensor by tensor, so that no second copy of the model is in memory.

    Tensors are in the order of their names, so that equal tensors make equal files: a resumed optimizer lists its state
    in another order.
    """
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


WORD = 8  # bytes of an int64


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's raw bits, in words of 8 bytes, as an int64 that wraps around: a scalar on its device.

    One flipped bit changes it by a power of two, so it is always detected; lost pieces and a mixture of two tensors are
    missed with a probability of 2**-64. It does not protect against forgery. Measured on a CPU with ten million fp32
    values: 2.4 ms, where the same as int32 takes 87 ms and crc32 40 ms. Does not wait for a GPU.
    """
    raw = raw_bytes(tensor)
    whole = raw.numel() // WORD * WORD
    rest = torch.nn.functional.pad(raw[whole:], (0, WORD - (raw.numel() - whole))).view(torch.int64)[0]
    return raw[:whole].view(torch.int64).sum() + rest if whole else rest


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values as uint8 of shape (bytes,), in memory order; without a copy if they are dense and aligned."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.contiguous().view(-1)
    if flat.storage_offset() * flat.element_size() % WORD:
        flat = flat.clone()
    return flat.view(torch.uint8)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the values are contiguous in memory, in any order of dimensions (channels_last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return tensor.numel() > 0


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a type that every operation supports; few support unsigned integers and 8-bit floats."""
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor.view(torch.uint8)
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)
