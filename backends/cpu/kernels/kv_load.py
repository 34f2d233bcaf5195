"""`kv_load`: see csrc/cpu/ops/kv_load.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _caches
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def kv_load(cache: KVCache, slots: Tensor) -> Tensor:
    """See core/ops/kv_load.py."""
    dim = cache.layout.dim
    fmt = _caches.check("kv_load", cache, dim)
    x = temporary.empty((*slots.shape, dim), dtype=torch.bfloat16)
    native.run("kv_load", cache.data, slots, x, slots.numel(), dim, cache.data.shape[0], fmt)
    return x


OPS: dict[str, Any] = {"kv_load": kv_load}
