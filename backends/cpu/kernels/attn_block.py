"""`attn_block`: see csrc/cpu/ops/attn_block.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native
from tandem.backends.cpu.kernels import _attention, _shapes
from tandem.contract.types import KVCache, QFormat, QTensor

Tensor = torch.Tensor


def attn_block(
    q: Tensor,
    cos_sin: Tensor,
    window: KVCache,
    window_slots: Tensor,
    main: KVCache | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    hint: str,
) -> QTensor:
    """See core/ops/attn_block.py."""
    rows, heads, dim = q.shape
    turned = cos_sin.shape[-1]
    _shapes.require("attn_block", sink=(sink, (heads,)), cos_sin=(cos_sin, (rows, turned)))
    arrays, sizes = _attention.caches("attn_block", q, window, window_slots, main, main_slots)
    out = activations.empty("attn_block", (rows, heads * dim), QFormat.MXFP8)
    scratch = _attention.scratch(q, *sizes[:2])
    shape = (*q.shape, turned, *sizes, *scratch.shape, hint == "prefill")
    native.run("attn_block", q.contiguous(), cos_sin, *arrays, sink, out.data, out.scale, scratch, *shape, scale)
    return out


OPS: dict[str, Any] = {"attn_block": attn_block}
