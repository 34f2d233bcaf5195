"""What the kernels of index scores are told, and the memory for queries as they read them."""

from __future__ import annotations

import torch

from tandem.accelerator.caches import require_canonical
from tandem.backends.cpu import temporary
from tandem.contract.types import KVCache, QFormat, QTensor
from tandem.errors import LayoutError

Tensor = torch.Tensor
MOST_DIM = 1024  # kMostDim of csrc/cpu/index_keys.h


def sizes(op: str, q: QTensor, w: Tensor, cache: KVCache, table: Tensor, width: int) -> tuple[int, ...]:
    """Rows, heads, scale groups of a head, columns of the result, shape of the table, block and cache sizes.

    Raises:
        LayoutError: queries or keys are not what the kernels read.
    """
    q.require(op, QFormat.MXFP4)
    require_canonical(op, cache, QFormat.MXFP4)
    (rows, heads), layout = w.shape, cache.layout
    if layout.dim > MOST_DIM or q.shape != (rows, heads * layout.dim):
        raise LayoutError(
            f"'{op}' got queries that do not fit the keys",
            where=f"op '{op}', queries {tuple(q.shape)}, keys of dim {layout.dim}",
            why=f"it takes [{rows}, {heads} heads times dim], with a dim of {MOST_DIM} at most",
            fix="pass queries of the cache's dim, one head for each head weight",
        )
    entries = cache.data.shape[0]
    return rows, heads, layout.dim // QFormat.MXFP4.group, width, *table.shape, layout.block_entries, entries


def room(rows: int, heads: int, groups: int) -> tuple[Tensor, Tensor]:
    """Memory for the queries: bytes and numbers."""
    size = heads * (groups * QFormat.MXFP4.group + 1)
    codes = temporary.empty((rows, size), dtype=torch.uint8)
    return codes, temporary.empty((rows, heads * (groups + 2)), dtype=torch.float32)
