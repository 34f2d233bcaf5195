"""Paged caches as kernels get them."""

from __future__ import annotations

from tandem.accelerator.caches import require_canonical
from tandem.backends.cpu import activations
from tandem.contract.types import KVCache
from tandem.errors import LayoutError


def check(op: str, cache: KVCache, dim: int) -> int:
    """The number of the cache's format.

    Raises:
        LayoutError: it is not canonical memory, or its entries do not have ``dim`` channels.
    """
    require_canonical(op, cache)
    layout, shape = cache.layout, cache.data.shape
    if layout.dim != dim or len(shape) != 2 or shape[1] != layout.entry_bytes:
        raise LayoutError(
            f"'{op}' got a cache of another width",
            where=f"op '{op}', {layout.kind.value} cache",
            why=f"its entries hold {layout.dim} channels in arrays of shape {tuple(shape)}; the rows have {dim}",
            fix="pass rows and a cache of one width, the latter from kv_alloc() of this backend",
        )
    return activations.FORMATS[layout.fmt]
