"""`kv_load` as one kernel: entries decoded in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.caches import require_canonical
from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._entries import load_entries
from tandem.backends.cuda.kernels._rows import place
from tandem.backends.cuda.launch import launch
from tandem.contract.types import KVCache

Tensor = torch.Tensor


@triton.jit
def _kv_load(cache, slots, x, rows, FMT: tl.constexpr, DIM: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program takes R whole entries."""
    row, column = place(R, C)
    slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    value = load_entries(cache, slot, FMT, DIM, C).to(tl.bfloat16)
    tl.store(x + row * DIM + column, value, mask=(row < rows) & (column < DIM))


def kv_load(cache: KVCache, slots: Tensor) -> Tensor:
    """See core/ops/kv_load.py."""
    require_canonical("kv_load", cache)
    dim, rows = cache.layout.dim, slots.numel()
    x = torch.empty((*slots.shape, dim), dtype=torch.bfloat16, device=slots.device)
    split = _rows.whole(dim)
    launch(_kv_load, _rows.grid(rows, dim, split), cache.data, slots, x, rows, cache.layout.fmt.value, dim, *split)
    return x


def _traffic(cache: KVCache, slots: Tensor) -> tuple[int, int]:
    return slots.numel() * (4 + cache.layout.entry_bytes), slots.numel() * cache.layout.dim * 2


OPS: dict[str, Any] = {"kv_load": kv_load}
TRAFFIC: dict[str, Any] = {"kv_load": _traffic}
