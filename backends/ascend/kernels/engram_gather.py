"""`engram_gather`: stored rows of the table, which lies in host memory, as a quantised activation.

On a device the table is mapped, and SIMT threads read it where it lies: rows are small and depend on tokens only, so
they are fetched for all layers ahead of the first.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan
from tandem.backends.ascend.scales import packed_shape
from tandem.backends.ascend.weights import HOST
from tandem.contract.types import PackedWeight, QFormat, QTensor
from tandem.errors import LayoutError

Tensor = torch.Tensor
WORD = 16  # bytes that a thread copies at a time


def engram_gather(rows: Tensor, table: PackedWeight, first_row: int) -> QTensor:
    """See core/ops/engram_gather.py.

    Raises:
        LayoutError: the table was packed by another backend, or is not mxfp8.
    """
    if table.layout != HOST or table.fmt is not QFormat.MXFP8:
        raise LayoutError(
            "'engram_gather' got a table it does not read",
            where=repr(table),
            why=f"the op reads mxfp8 in layout '{HOST}'",
            fix="pack the canonical table, in mxfp8, with this backend",
        )
    count, entries = rows.shape
    dim = table.shape[1]
    gathered = activations.empty(count, entries * dim, rows.device)
    stored = (table.token.data.view(torch.uint8), table.token.scale.view(torch.uint8))
    native.run("engram_gather", rows, *stored, gathered.data, gathered.scale, first_row, count, entries, dim)
    return gathered


def _plan(device: Device, rows: Tensor, table: PackedWeight, first_row: int) -> list[Plan]:
    """Codes and scales, written; what comes over the bus is not read from global memory."""
    count, entries = rows.shape
    codes, groups = rows.numel() * table.shape[1], entries * table.shape[1] // QFormat.MXFP8.group
    return _grid.plan(device, codes // WORD, 8 * rows.numel(), codes + count * packed_shape(count, groups)[1])


OPS: dict[str, Any] = {"engram_gather": engram_gather}
PLAN: dict[str, Any] = {"engram_gather": _plan}
