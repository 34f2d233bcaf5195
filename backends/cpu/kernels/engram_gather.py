"""`engram_gather`: see csrc/cpu/ops/engram_gather.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, weights
from tandem.contract.types import PackedWeight, QFormat, QTensor
from tandem.errors import LayoutError

Tensor = torch.Tensor


def engram_gather(rows: Tensor, table: PackedWeight, first_row: int) -> QTensor:
    """See core/ops/engram_gather.py.

    Raises:
        LayoutError: the table was packed by another backend, or is not mxfp8.
    """
    held = weights.stored("engram_gather", table, weights.MAPPED)
    if held.scale is None or table.fmt is not QFormat.MXFP8:
        raise LayoutError(
            "'engram_gather' got a table it does not read",
            where=repr(table),
            why=f"it is {table.fmt.value}, the op reads mxfp8",
            fix="pack the canonical table in mxfp8",
        )
    (count, entries), (total, dim) = rows.shape, table.shape
    q = activations.empty("engram_gather", (count, entries * dim), QFormat.MXFP8)
    sizes = (first_row, count, entries, total, dim)
    native.run("engram_gather", rows.contiguous(), held.data, held.scale, q.data, q.scale, *sizes)
    return q


OPS: dict[str, Any] = {"engram_gather": engram_gather}
