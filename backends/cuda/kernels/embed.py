"""`embed` as one kernel: each row comes from the table or from the rows that replace it."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._rows import place
from tandem.backends.cuda.launch import launch
from tandem.backends.cuda.weights import PLAIN
from tandem.contract.types import PackedWeight
from tandem.errors import LayoutError

Tensor = torch.Tensor


@triton.jit
def _embed(ids, table, override, override_index, y, rows, WIDTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program takes C columns of R rows."""
    row, column = place(R, C)
    inside = (row < rows) & (column < WIDTH)
    token = tl.load(ids + row, mask=row < rows, other=0).to(tl.int64)
    if override is None:
        value = tl.load(table + token * WIDTH + column, mask=inside, other=0.0).to(tl.bfloat16)
    else:
        given = tl.load(override_index + row, mask=row < rows, other=-1).to(tl.int64)
        looked_up = tl.load(table + token * WIDTH + column, mask=inside & (given < 0), other=0.0)
        replaced = tl.load(override + given * WIDTH + column, mask=inside & (given >= 0), other=0.0)
        value = tl.where(given < 0, looked_up.to(tl.bfloat16), replaced.to(tl.bfloat16))
    tl.store(y + row * WIDTH + column, value, mask=inside)


def embed(
    ids: Tensor, table: PackedWeight, override: Tensor | None = None, override_index: Tensor | None = None
) -> Tensor:
    """See core/ops/embed.py."""
    if table.layout != PLAIN:
        raise LayoutError(
            "'embed' got a table that it does not read",
            where=f"op 'embed', {table!r}",
            why=f"its layout is '{table.layout}', the kernel reads '{PLAIN}'",
            fix="pack a bf16 or f32 table with pack_weight() of this backend",
        )
    rows, width = ids.shape[0], table.shape[1]
    y = torch.empty((rows, width), dtype=torch.bfloat16, device=ids.device)
    if override is None or override_index is None:
        override = override_index = None
    split = _rows.tile(width)
    tensors = (ids, table.token, override, override_index, y)
    launch(_embed, _rows.grid(rows, width, split), *tensors, rows, width, *split)
    return y


def _traffic(
    ids: Tensor, table: PackedWeight, override: Tensor | None = None, override_index: Tensor | None = None
) -> tuple[int, int]:
    """A row is read from one of both; counted as if all came from the table."""
    written = ids.shape[0] * table.shape[1] * 2
    return written + ids.shape[0] * (4 if override is None else 8), written


OPS: dict[str, Any] = {"embed": embed}
TRAFFIC: dict[str, Any] = {"embed": _traffic}
