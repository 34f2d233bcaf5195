"""`kv_load`: see csrc/ascend/kv_load.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.accelerator.caches import require_canonical
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def kv_load(cache: KVCache, slots: Tensor) -> Tensor:
    """See core/ops/kv_load.py."""
    require_canonical("kv_load", cache)
    dim, rows = cache.layout.dim, slots.numel()
    x = torch.empty((*slots.shape, dim), dtype=torch.bfloat16, device=slots.device)
    native.run("kv_load", cache.data, slots, x, rows, dim, _rows.FORMATS[cache.layout.fmt])
    return x


def _plan(device: Device, cache: KVCache, slots: Tensor) -> list[Plan]:
    """Every slot is counted as held."""
    dim, rows = cache.layout.dim, slots.numel()
    entries, written = rows * cache.layout.entry_bytes, rows * dim * 2
    ub = entries + rows * _rows.decode_ub(dim, cache.layout.fmt) + written
    return _rows.plan(device, rows, rows * 4 + entries, written, ub)


OPS: dict[str, Any] = {"kv_load": kv_load}
PLAN: dict[str, Any] = {"kv_load": _plan}
