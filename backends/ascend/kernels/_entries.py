"""Entries of paged caches in canonical memory: uint8 [entries + 1, entry_bytes], codes, then scales."""

from __future__ import annotations

from tandem.contract.types import CANONICAL, KVCache
from tandem.errors import LayoutError


def require(op: str, cache: KVCache) -> None:
    """Raise LayoutError unless the memory of a cache is canonical."""
    if cache.memory_layout != CANONICAL:
        raise LayoutError(
            f"'{op}' got a cache it does not read",
            where=f"op '{op}', {cache.layout.kind.value} cache",
            why=f"its memory layout is '{cache.memory_layout}', kernels of backend 'ascend' use '{CANONICAL}'",
            fix="allocate it with kv_alloc() of this backend",
        )
