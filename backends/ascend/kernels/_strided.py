"""Rows that stand apart, for entries that take dense memory and a stride."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def with_stride(x: Tensor) -> tuple[Tensor, int]:
    """All memory from the first to the last element of x [N, V], whose rows are dense, as one line; and the stride."""
    rows, width = x.shape
    stride = x.stride(0) if rows > 1 else width
    return x.as_strided((max(rows - 1, 0) * stride + (width if rows else 0),), (1,)), stride
