"""How arrays lie where kernels read them: dense, or as dense rows that stand apart."""

from __future__ import annotations

import torch

from tandem.errors import LayoutError

Tensor = torch.Tensor


def with_stride(x: Tensor) -> tuple[Tensor, int]:
    """All memory from the first to the last element of x [N, V], whose rows are dense, as one line; and the stride.

    Raises:
        LayoutError: elements of a row do not follow one another.
    """
    rows, width = x.shape
    if rows and width > 1 and x.stride(1) != 1:
        raise LayoutError(
            "a kernel got rows that are not dense",
            where=f"shape {tuple(x.shape)}, strides {x.stride()}",
            why=f"elements of a row are {x.stride(1)} apart, and kernels read neighbours",
            fix="pass contiguous rows; the rows themselves may stand apart",
        )
    stride = x.stride(0) if rows > 1 else width
    return x.as_strided((max(rows - 1, 0) * stride + (width if rows else 0),), (1,), x.storage_offset()), stride
