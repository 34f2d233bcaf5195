"""Block tables inside kernels: entry numbers to cache slots."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up(entry, table_row, columns, valid, BLOCK_ENTRIES: tl.constexpr, WRAP: tl.constexpr):
    """Slots of the entries of one request, -1 where not valid or where the table holds no block.

    entry is not negative where valid; table_row points at the request's row of the table, and is not read elsewhere.
    """
    block = entry // BLOCK_ENTRIES
    block = block % columns if WRAP else tl.minimum(block, columns - 1)
    held = tl.load(table_row + block, mask=valid, other=-1)
    return tl.where(held >= 0, held * BLOCK_ENTRIES + entry % BLOCK_ENTRIES, -1)


@triton.jit
def table_rows(table, slot, columns):
    """Pointers at the rows of request slots; slot -1 gives an address that must not be read."""
    return table + slot.to(tl.int64) * columns
