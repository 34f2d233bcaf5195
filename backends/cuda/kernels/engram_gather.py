"""`engram_gather`: stored rows of the table, which lies in host memory, as a quantised activation.

On a device the table is pinned, and a kernel reads it over the bus where it lies: rows are small and depend on tokens
only, so they are fetched for all layers ahead of the first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels._codec import sf_offset
from tandem.backends.cuda.launch import launch
from tandem.backends.cuda.weights import HOST
from tandem.contract.types import PackedWeight, QFormat, QTensor
from tandem.errors import LayoutError

Tensor = torch.Tensor
ENTRIES = 8  # a multiple of four, so that the programs of a row also cover the groups that fill up its last word


@triton.jit
def _engram_gather(
    index,
    table,
    table_scale,
    codes,
    scales,
    first_row,
    N: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """ENTRIES table rows of one row: codes as they are, and their scale bytes in the packed layout."""
    GROUPS: tl.constexpr = DIM // 32
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * ENTRIES
    entry = begin + tl.arange(0, ENTRIES)
    column = tl.arange(0, COLUMNS)[None, :]
    source = tl.load(index + row * N + entry, mask=entry < N, other=first_row) - first_row
    inside = (entry < N)[:, None] & (column < DIM)
    code = tl.load(table + source[:, None] * DIM + column, mask=inside, other=0)
    tl.store(codes + (row * N + entry[:, None]) * DIM + column, code, mask=inside)

    within = tl.arange(0, COLUMNS // 32)[None, :]
    held = (entry < N)[:, None] & (within < GROUPS)
    scale = tl.load(table_scale + source[:, None] * GROUPS + within, mask=held, other=127)
    group = entry[:, None] * GROUPS + within
    written = (within < GROUPS) & (group < (N * GROUPS + 3) // 4 * 4)
    tl.store(scales + sf_offset(row, group, N * GROUPS), scale, mask=written)


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
    launch(
        _engram_gather,
        (count, -(-entries // ENTRIES)),
        *(rows, table.token.data.view(torch.uint8), table.token.scale.view(torch.uint8)),
        *(gathered.data, gathered.scale, first_row),
        **{"N": entries, "DIM": dim, "COLUMNS": triton.next_power_of_2(dim), "ENTRIES": ENTRIES, "num_warps": 4},
    )
    return gathered


def _traffic(rows: Tensor, table: PackedWeight, first_row: int) -> tuple[int, int]:
    """The table is read over the bus, which is not counted here."""
    written = rows.numel() * (table.shape[1] + table.shape[1] // 32)
    return 8 * rows.numel(), written


OPS: dict[str, Any] = {"engram_gather": engram_gather}
TRAFFIC: dict[str, Any] = {"engram_gather": _traffic}
