"""`kv_store`: quantise rows and write them into a paged cache.

Reads x bf16 [T, D] and slots int32 [T]; writes entry slots[t] of the cache (codes, then scales) in the cache's format.
Slot -1 writes nothing that is ever read: canonical memory ends with one scratch entry that takes such rows.
Slots >= 0 of one call are distinct.  Class Q (X from values that the format holds exactly).
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
from tandem.contract.types import CANONICAL, KVCache
from tandem.errors import LayoutError
from tandem.ops.numerics import encode_rows

Tensor = torch.Tensor


@op("kv_store", classes={"cache": "Q"}, attrs=("fmt", "dim"))
def kv_store(x: Tensor, cache: KVCache, slots: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    require_canonical("kv_store", cache)
    codes, scales = encode_rows(x, cache.layout.fmt)
    cache.data[slots.to(torch.int64)] = torch.cat((codes, scales), dim=-1)


def require_canonical(op_name: str, cache: KVCache) -> None:
    """The composite reads and writes canonical memory only."""
    if cache.memory_layout != CANONICAL:
        raise LayoutError(
            f"the composite of '{op_name}' cannot use this cache",
            where=f"op '{op_name}', {cache.layout.kind.value} cache",
            why=f"its memory layout is '{cache.memory_layout}', the composite uses '{CANONICAL}'",
            fix=f"implement '{op_name}' in the backend that owns the layout, or allocate canonical caches",
        )
