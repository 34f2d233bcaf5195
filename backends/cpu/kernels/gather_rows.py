"""`gather_rows`: see csrc/cpu/ops/gather_rows.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels._shapes import as_bytes

Tensor = torch.Tensor


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """See core/ops/gather_rows.py."""
    rows = index.shape[0]
    y = torch.empty((rows, *x.shape[1:]), dtype=x.dtype)
    (source, size), (target, _) = as_bytes("gather_rows", x), as_bytes("gather_rows", y)
    native.run("gather_rows", source, index, target, x.shape[0], rows, size)
    return y


OPS: dict[str, Any] = {"gather_rows": gather_rows}
