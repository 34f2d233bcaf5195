"""`scatter_rows`: see csrc/cpu/ops/scatter_rows.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels._shapes import require, row_bytes
from tandem.errors import LayoutError

Tensor = torch.Tensor


def scatter_rows(x: Tensor, index: Tensor, values: Tensor) -> None:
    """See core/ops/scatter_rows.py."""
    rows = index.shape[0]
    require("scatter_rows", (values, (rows, *x.shape[1:])))
    if values.dtype is not x.dtype:
        raise LayoutError(
            "'scatter_rows' got rows of another type than the array's",
            where=f"op 'scatter_rows', shape {tuple(x.shape)}",
            why=f"the array is {x.dtype}, the rows are {values.dtype}",
            fix="pass rows of the array's type",
        )
    native.run("scatter_rows", x, index, values, x.shape[0], rows, row_bytes(x))


OPS: dict[str, Any] = {"scatter_rows": scatter_rows}
