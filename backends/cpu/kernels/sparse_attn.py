"""`sparse_attn`: see csrc/cpu/ops/sparse_attn.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _attention, _shapes
from tandem.contract.types import KVCache

Tensor = torch.Tensor


def sparse_attn(
    q: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    hint: str,
) -> Tensor:
    """See core/ops/sparse_attn.py."""
    _shapes.require("sparse_attn", sink=(sink, q.shape[1:2]))
    arrays, sizes = _attention.caches("sparse_attn", q, window, window_slots, main, main_slots)
    out = temporary.empty(q.shape, dtype=torch.bfloat16)
    scratch = _attention.scratch(q, *sizes[:2])
    shape = (*q.shape, *sizes, *scratch.shape, hint == "prefill")
    native.run("sparse_attn", q.contiguous(), *arrays, sink, out, scratch, *shape, scale)
    return out


OPS: dict[str, Any] = {"sparse_attn": sparse_attn}
