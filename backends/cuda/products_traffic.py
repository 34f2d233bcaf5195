"""Planned device-memory traffic of the matrix products, for the roofline table.

Both operands of a product are read once: a tile reads its part of an operand again for each tile of the other, and
those reads hit L2 (126 MB), which holds the smaller operand of every official shape.  Sums that are split go through
memory as f32 parts.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.types import PackedWeight, QFormat, QTensor

Tensor = torch.Tensor
Bytes = tuple[int, int]

# As sum_splits in csrc/cuda/plan.h; a test compares them.
SPLIT_OUTPUTS, SPLIT_DEPTH, SPLITS, SPLIT_STEP = 18 * 128, 2048, 4, 128


def sum_splits(outputs: int, depth: int) -> int:
    """Parts of the sum of a product by its weight alone."""
    few = outputs <= SPLIT_OUTPUTS and depth >= SPLIT_DEPTH and depth % (SPLITS * SPLIT_STEP) == 0
    return SPLITS if few else 1


def _matrix_bytes(fmt: QFormat, rows: int, depth: int) -> int:
    """Values and scales; scales of fp8_block32 stand in memory once for each row."""
    return rows * depth * fmt.bits // 8 + (rows * -(-depth // 32) if fmt.group else 0)


def _rows_bytes(x: Tensor | QTensor) -> int:
    rows, depth = x.shape
    return _matrix_bytes(x.fmt if isinstance(x, QTensor) else QFormat.BF16, rows, depth)


def linear(x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Bytes:
    """Operands once, the output once, and f32 parts or unrounded values written and read."""
    rows, (width, depth) = x.shape[0], weight.shape
    out = rows * width * (4 if out_dtype is torch.float32 else 2)
    splits = sum_splits(width, depth)
    rounds = out_dtype is torch.bfloat16 and not isinstance(x, QTensor)
    parts = splits * rows * width * 4 if splits > 1 or rounds else 0
    return _rows_bytes(x) + _matrix_bytes(weight.fmt, width, depth) + parts, out + parts


def group_linear(x: QTensor, weight: PackedWeight) -> Bytes:
    """Operands once and the output once."""
    groups, width, depth = weight.shape
    return _rows_bytes(x) + _matrix_bytes(weight.fmt, groups * width, depth), x.shape[0] * groups * width * 2


def grouped_linear(x: QTensor, weight: PackedWeight, ends: Tensor) -> Bytes:
    """Weights of as many experts as rows can reach, once; scales of the rows are packed anew: read, written, read."""
    rows, (experts, width, depth) = x.shape[0], weight.shape
    scales = rows * depth // 32
    reached = min(experts, rows)
    return _rows_bytes(x) + scales + _matrix_bytes(weight.fmt, reached * width, depth), rows * width * 2 + scales


TRAFFIC: dict[str, Any] = {"linear": linear, "group_linear": group_linear, "grouped_linear": grouped_linear}
WHY: dict[str, str] = {
    "linear": "weights of at most 2304 rows have too few tiles to stream them: their sums are split in four, and the "
    "f32 parts cost 32 bytes an output, which many rows pay so that their bits are those of few; products of bf16 to "
    "bf16 round in a second pass",
}
