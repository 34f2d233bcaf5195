"""The host reference of the library's matrix products: the packed layouts read as they are, multiplied in f32.

It stands in for the library where the device is emulated.  It takes codes and packed scales where the kernels take
them, at the same addresses, so that a layout that is wrong shows here; its sums are those of the host, a row's bits
independent of the other rows.
"""

from __future__ import annotations

import functools

import torch

from tandem.backends.cuda import activations, scales, weights
from tandem.contract.types import PackedWeight, QFormat, QTensor
from tandem.ops.numerics import decode_rows, fixed_matmul, row_position_invariant

Tensor = torch.Tensor


def activation_values(op: str, x: Tensor | QTensor, depth: int) -> Tensor:
    """bf16 rows or mxfp8 rows in the backend's own layout -> f32 [T, K]."""
    activations.check_operand(op, x, depth)
    if not isinstance(x, QTensor):
        return x.to(torch.float32)
    return decode_rows(x.data, scales.unpack(x.scale, x.shape[0], x.shape[1] // 32), x.fmt)


def matrix_values(op: str, weight: PackedWeight, index: int | None = None) -> Tensor:
    """A packed weight, or one matrix of it -> f32 [.., N, K]."""
    if weight.layout == weights.PLAIN:
        plain: Tensor = weight.token if index is None else weight.token[index]
        return plain.to(torch.float32)
    if weight.layout != weights.SCALED:
        raise weights.unreadable(op, weight)
    token: weights.Scaled = weight.token
    codes, packed = (token.codes, token.scale) if index is None else (token.codes[index], token.scale[index])
    rows, depth = weight.shape[-2:]
    scale = scales.unpack(packed, rows, -(-depth // 32))
    if weight.fmt is QFormat.MXFP4:
        return decode_rows(codes, scale, QFormat.MXFP4)
    return _ragged(codes, scale, depth)


def _ragged(codes: Tensor, scale: Tensor, depth: int) -> Tensor:
    """e4m3 rows, the last group of which may be short."""
    if depth % 32:
        codes = torch.nn.functional.pad(codes, (0, -depth % 32))
    return decode_rows(codes, scale, QFormat.MXFP8)[..., :depth].contiguous()


def linear(x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Tensor:
    """See core/ops/linear.py."""
    return _product(activation_values("linear", x, weight.shape[1]), matrix_values("linear", weight)).to(out_dtype)


def group_linear(x: QTensor, weight: PackedWeight) -> Tensor:
    """See core/ops/group_linear.py."""
    values = activation_values("group_linear", x, weight.shape[0] * weight.shape[2])
    groups, width, depth = weight.shape
    y = values.new_empty((values.shape[0], groups, width))
    for g in range(groups):
        part = values[:, g * depth : (g + 1) * depth].contiguous()
        y[:, g] = _product(part, matrix_values("group_linear", weight, g))
    return y.flatten(1).to(torch.bfloat16)


def grouped_linear(x: QTensor, weight: PackedWeight, ends: Tensor) -> Tensor:
    """See core/ops/grouped_linear.py."""
    values = activation_values("grouped_linear", x, weight.shape[2])
    if weight.layout not in (weights.PLAIN, weights.SCALED):  # as the device says it, with rows or without
        raise weights.unreadable("grouped_linear", weight)
    y = torch.zeros((values.shape[0], weight.shape[1]), dtype=torch.bfloat16)
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            y[start:end] = _product(values[start:end], matrix_values("grouped_linear", weight, expert))
            start = end
    return y


def _product(values: Tensor, matrix: Tensor) -> Tensor:
    """A row at a time where this machine's library does not treat the rows of a tile alike."""
    if _tiles_agree(matrix.shape[1], matrix.shape[0]):
        return fixed_matmul(values, matrix)
    result = values.new_empty((values.shape[0], matrix.shape[0]))
    for row in range(values.shape[0]):
        result[row : row + 1] = torch.mm(values[row : row + 1], matrix.t())
    return result


_tiles_agree = functools.cache(row_position_invariant)
