"""What the matrix products of the CUDA library plan to move in device memory, for the roofline table.

Tiles that share weights run together, so a weight comes from memory once; rows of activations that several tiles of
weights need are found in L2.  f32 parts of a split sum are written and read again.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda import scales
from tandem.contract.types import PackedWeight, QTensor

Tensor = torch.Tensor
# As `sum_splits` of csrc/cuda/plan.h: weights of few rows have their sum split, so that more blocks draw on memory.
SPLIT_OUTPUTS, SPLIT_DEPTH, SPLITS, TILE_DEPTH = 18 * 128, 2048, 4, 128


def sum_splits(outputs: int, depth: int) -> int:
    """Parts of the sum of a product with ``outputs`` rows of weights."""
    few = outputs <= SPLIT_OUTPUTS and depth >= SPLIT_DEPTH and depth % (SPLITS * TILE_DEPTH) == 0
    return SPLITS if few else 1


def _rows(x: Tensor | QTensor) -> int:
    if isinstance(x, QTensor):
        return x.data.numel() + x.shape[0] * (x.shape[1] // 32)
    return x.numel() * x.element_size()


def _matrix(weight: PackedWeight) -> int:
    """Bytes of one matrix of a weight, with a scale byte for each row and 32 elements."""
    outputs, depth = weight.shape[-2:]
    return outputs * depth * weight.fmt.bits // 8 + (
        scales.packed_size(outputs, depth // 32) if weight.fmt.group else 0
    )


def linear(x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> tuple[int, int]:
    """See core/ops/linear.py; a bf16 product goes through f32 values where its output is bf16."""
    outputs, depth = weight.shape
    wide = out_dtype is torch.float32
    count, splits = x.shape[0] * outputs, sum_splits(outputs, depth)
    passes = splits > 1 or (not wide and not isinstance(x, QTensor))
    parts = 4 * splits * count if passes else 0
    return _rows(x) + _matrix(weight) + parts, count * (4 if wide else 2) + parts


def group_linear(x: QTensor, weight: PackedWeight) -> tuple[int, int]:
    """See core/ops/group_linear.py."""
    groups, outputs, _ = weight.shape
    return _rows(x) + groups * _matrix(weight), x.shape[0] * groups * outputs * 2


def grouped_linear(x: QTensor, weight: PackedWeight, ends: Tensor) -> tuple[int, int]:
    """See core/ops/grouped_linear.py; experts as they have rows when these are spread at random, scales packed anew."""
    experts, outputs, _ = weight.shape
    rows, groups = x.shape[0], x.shape[1] // 32
    used = experts * (1.0 - (1.0 - 1.0 / experts) ** rows)
    read = _rows(x) + int(used * _matrix(weight)) + rows * groups
    return read, rows * outputs * 2 + rows * groups


TRAFFIC: dict[str, Any] = {"linear": linear, "group_linear": group_linear, "grouped_linear": grouped_linear}
WHY: dict[str, str] = {
    "linear": "weights of at most 2304 rows have too few tiles to stream them: their sums are split in four, and the "
    "f32 parts cost 32 bytes an output, which many rows pay so that their bits are those of few; products of bf16 to "
    "bf16 round in a second pass",
}
