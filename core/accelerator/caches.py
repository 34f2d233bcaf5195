"""Paged caches that kernels read in place: canonical memory, uint8 [entries + 1, entry_bytes]."""

from __future__ import annotations

from tandem.contract.types import CANONICAL, KVCache, QFormat
from tandem.errors import LayoutError


def require_canonical(op: str, cache: KVCache, fmt: QFormat | None = None) -> None:
    """Refuse a cache that an op's kernel would misread.

    Args:
        op: name, for the error.
        cache: what it got.
        fmt: the one format that it reads; None where it reads all.

    Raises:
        LayoutError: the memory is not canonical, or its entries have another format.
    """
    layout = cache.memory_layout
    if layout == CANONICAL and fmt in (None, cache.layout.fmt):
        return
    reads = "" if fmt is None else f"{fmt.value} "
    raise LayoutError(
        f"'{op}' got a cache it does not read",
        where=f"op '{op}', {cache.layout.kind.value} cache",
        why=f"it is {cache.layout.fmt.value} in memory layout '{layout}', the kernel reads {reads}in '{CANONICAL}'",
        fix="allocate it with kv_alloc() of this backend",
    )
