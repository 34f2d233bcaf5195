"""`kv_store`: see csrc/cpu/ops/kv_store.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native
from tandem.backends.cpu.kernels import _caches, _shapes
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def kv_store(x: Tensor, cache: KVCache, slots: Tensor) -> None:
    """See core/ops/kv_store.py."""
    _shapes.require("kv_store", slots=(slots, x.shape[:1]))
    fmt = _caches.check("kv_store", cache, x.shape[1])
    native.run("kv_store", x.contiguous(), cache.data, slots, *x.shape, cache.data.shape[0], fmt)


OPS: dict[str, Any] = {"kv_store": kv_store}
