"""`kv_write`: see csrc/ascend/kv_write.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.accelerator.caches import require_canonical
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def kv_write(x: Tensor, norm_weight: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor) -> Tensor:
    """See core/ops/kv_write.py."""
    require_canonical("kv_write", cache)
    rows, dim = x.shape
    normed = torch.empty_like(x)
    sizes = (rows, dim, cos_sin.shape[1], _rows.FORMATS[cache.layout.fmt])
    native.run("kv_write", x, norm_weight, cos_sin, normed, cache.data, slots, *sizes, eps)
    return normed


def _plan(
    device: Device, x: Tensor, norm_weight: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor
) -> list[Plan]:
    """A row is read once; every block reads the weights once.  Every row is counted, skipped ones too."""
    rows, dim = x.shape
    turned, fmt, entry = cos_sin.shape[1], cache.layout.fmt, cache.layout.entry_bytes
    read = rows * (dim * 2 + turned * 4 + 4) + dim * 4
    written = rows * (dim * 2 + entry)
    normalised = _rows.steps(dim) * _rows.STEP * (2 + 2 + 4) + dim * 2
    rotated = (_rows.steps((dim - turned) // 2) + 3 * _rows.steps(turned // 2)) * _rows.STEP * 4 + dim * 2
    moved = dim * 2 + turned * 4 + dim * 2 + entry
    ub = rows * (normalised + rotated + _rows.encode_ub(dim, fmt, 2) + moved) + min(rows, device.vector_cores) * dim * 4
    return _rows.plan(device, rows, read, written, ub)


OPS: dict[str, Any] = {"kv_write": kv_write}
PLAN: dict[str, Any] = {"kv_write": _plan}
