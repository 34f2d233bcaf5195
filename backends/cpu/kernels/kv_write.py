"""`kv_write`: see csrc/cpu/ops/kv_write.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _caches, _shapes
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def kv_write(x: Tensor, norm_weight: Tensor, eps: float, cos_sin: Tensor, cache: KVCache, slots: Tensor) -> Tensor:
    """See core/ops/kv_write.py."""
    rows, dim = x.shape
    angles = cos_sin.shape[-1]
    _shapes.require(
        "kv_write", norm_weight=(norm_weight, (dim,)), cos_sin=(cos_sin, (rows, angles)), slots=(slots, (rows,))
    )
    fmt = _caches.check("kv_write", cache, dim)
    normed = temporary.empty((rows, dim), dtype=torch.bfloat16)
    sizes = (rows, dim, angles, cache.data.shape[0], fmt)
    native.run("kv_write", x.contiguous(), norm_weight, cos_sin, normed, cache.data, slots, *sizes, eps)
    return normed


OPS: dict[str, Any] = {"kv_write": kv_write}
