"""`kv_store` as one kernel: rows encoded in registers, entries written whole."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.caches import require_canonical
from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._entries import store_entries
from tandem.backends.cuda.kernels._rows import place
from tandem.backends.cuda.launch import launch
from tandem.contract.types import KVCache

Tensor = torch.Tensor


@triton.jit
def _kv_store(x, cache, slots, rows, FMT: tl.constexpr, DIM: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program takes R whole rows."""
    row, column = place(R, C)
    slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    value = tl.load(x + row * DIM + column, mask=(slot >= 0) & (column < DIM), other=0.0).to(tl.float32)
    store_entries(cache, slot, value, FMT, DIM)


def kv_store(x: Tensor, cache: KVCache, slots: Tensor) -> None:
    """See core/ops/kv_store.py."""
    require_canonical("kv_store", cache)
    rows, dim = x.shape
    split = _rows.whole(dim)
    launch(_kv_store, _rows.grid(rows, dim, split), x, cache.data, slots, rows, cache.layout.fmt.value, dim, *split)


def _traffic(x: Tensor, cache: KVCache, slots: Tensor) -> tuple[int, int]:
    return x.numel() * 2 + slots.numel() * 4, slots.numel() * cache.layout.entry_bytes


OPS: dict[str, Any] = {"kv_store": kv_store}
TRAFFIC: dict[str, Any] = {"kv_store": _traffic}
