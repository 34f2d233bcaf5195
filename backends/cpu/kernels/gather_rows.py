"""`gather_rows`: see csrc/cpu/ops/gather_rows.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import row_bytes

Tensor = torch.Tensor


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """See core/ops/gather_rows.py."""
    rows = index.shape[0]
    y = temporary.empty((rows, *x.shape[1:]), dtype=x.dtype)
    native.run("gather_rows", x, index, y, x.shape[0], rows, row_bytes(x))
    return y


OPS: dict[str, Any] = {"gather_rows": gather_rows}
