"""`kv_store`: see csrc/ascend/kv_store.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.accelerator.caches import require_canonical
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def kv_store(x: Tensor, cache: KVCache, slots: Tensor) -> None:
    """See core/ops/kv_store.py."""
    require_canonical("kv_store", cache)
    rows, dim = x.shape
    native.run("kv_store", x, cache.data, slots, rows, dim, _rows.FORMATS[cache.layout.fmt])


def _plan(device: Device, x: Tensor, cache: KVCache, slots: Tensor) -> list[Plan]:
    """Every row is counted, skipped ones too."""
    rows, dim = x.shape
    written = rows * cache.layout.entry_bytes
    ub = rows * (dim * 2 + _rows.encode_ub(dim, cache.layout.fmt, 2)) + written
    return _rows.plan(device, rows, rows * (dim * 2 + 4), written, ub)


OPS: dict[str, Any] = {"kv_store": kv_store}
PLAN: dict[str, Any] = {"kv_store": _plan}
