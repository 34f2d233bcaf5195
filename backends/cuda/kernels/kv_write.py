"""`kv_write` as one kernel: key rows are read once; normalised, rotated, encoded and stored from registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.accelerator.caches import require_canonical
from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._entries import store_entries
from tandem.backends.cuda.kernels._rows import normalise, place, rotate
from tandem.backends.cuda.launch import launch
from tandem.contract.types import KVCache

Tensor = torch.Tensor


@triton.jit
def _kv_write(
    x,
    weight,
    cos_sin,
    normed,
    cache,
    slots,
    rows,
    eps,
    FMT: tl.constexpr,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """A program takes R whole rows; rounding to bf16 is that of the ops it is made of."""
    row, column = place(R, C)
    inside = (row < rows) & (column < DIM)
    value = tl.load(x + row * DIM + column, mask=inside, other=0.0).to(tl.float32)
    rounded = normalise(value, weight, eps, column, DIM).to(tl.bfloat16)
    tl.store(normed + row * DIM + column, rounded, mask=inside)
    slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    turned = rotate(rounded.to(tl.float32), cos_sin, row, slot >= 0, 0, DIM, ROPE, False).to(tl.bfloat16)
    store_entries(cache, slot, turned.to(tl.float32), FMT, DIM)


def kv_write(x: Tensor, norm_weight: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor) -> Tensor:
    """See core/ops/kv_write.py."""
    require_canonical("kv_write", cache)
    rows, dim = x.shape
    normed = torch.empty_like(x)
    split = _rows.whole(dim)
    tensors = (x, norm_weight, cos_sin, normed, cache.data, slots)
    shape = (cache.layout.fmt.value, dim, cos_sin.shape[1], *split)
    launch(_kv_write, _rows.grid(rows, dim, split), *tensors, rows, eps, *shape)
    return normed


def _traffic(
    x: Tensor, norm_weight: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor
) -> tuple[int, int]:
    read = x.numel() * 2 + (norm_weight.numel() + cos_sin.numel() + slots.numel()) * 4
    return read, x.numel() * 2 + slots.numel() * cache.layout.entry_bytes


OPS: dict[str, Any] = {"kv_write": kv_write}
TRAFFIC: dict[str, Any] = {"kv_write": _traffic}
