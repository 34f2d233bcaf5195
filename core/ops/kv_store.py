"""`kv_store`: quantise rows and write them into a paged cache.

Args: x[T,D] bf16, cache, slots[T] i32 -> None; writes cache

Reads x bf16 [T, D] and slots int32 [T]; writes entry slots[t] of the cache (codes, then scales) in the
cache's format. Slot -1 writes nothing that is ever read: canonical memory ends with one scratch entry that
takes such rows. Slots >= 0 of one call are distinct.  Class Q (X from values that the format holds exactly).
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw, PartlyUsed
from tandem.contract.opspec import case, op
from tandem.contract.types import CANONICAL, KVCache, QFormat
from tandem.errors import LayoutError
from tandem.ops.numerics import encode_rows

Tensor = torch.Tensor


@op("kv_store", classes={"cache": "Q"}, attrs=("fmt", "dim", "layout"), reads={"layout": frozenset({CANONICAL})})
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


@case("kv_store", "main", FEW_ROWS)
def _main(seed: int, rows: int) -> dict[str, Any]:
    return store_arguments(seed, rows, QFormat.NVFP4)


@case("kv_store", "index", FEW_ROWS)
def _index(seed: int, rows: int) -> dict[str, Any]:
    return store_arguments(seed, rows, QFormat.MXFP4)


@case("kv_store", "window", FEW_ROWS)
def _window(seed: int, rows: int) -> dict[str, Any]:
    return store_arguments(seed, rows, QFormat.MXFP8)


def store_arguments(seed: int, rows: int, fmt: QFormat) -> dict[str, Any]:
    """Rows for distinct slots in random order; from the third on some are skipped, their values junk."""
    draw = Draw(seed)
    slots = torch.from_numpy(draw.rng.permutation(40)[:rows]).to(torch.int32)
    slots[2::3] = -1
    x = PartlyUsed(draw.bf16(rows, 64, scale=4.0), (slots >= 0).unsqueeze(-1))
    return {"x": x, "cache": draw.cache(fmt, 64, 8, 5), "slots": slots}
