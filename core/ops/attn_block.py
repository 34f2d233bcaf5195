"""`attn_block`: attention between the query projection and the output projection.

Composite of rope, sparse_attn, inverse rope and quantize, in one call because accelerators fuse exactly this.
Reads q bf16 [T, Hq, D] before RoPE, what `sparse_attn` reads, and cos_sin f32 [T, rd].
Returns mxfp8 [T, Hq * D], the rotated-back output quantised in groups of 32.  Class A before the quantisation.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import KVCache, QFormat, QTensor

Tensor = torch.Tensor


@op(
    "attn_block",
    classes={"q": "A"},
    parts=("rope", "sparse_attn", "quantize"),
    attrs=("heads", "dim", "rope_dim", "main", "window"),
)
def attn_block(
    parts: Any,
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
    """Plain-torch reference; see the module docstring."""
    rotated = parts.rope(q, cos_sin)
    output = parts.sparse_attn(rotated, window, window_slots, main, main_slots, sink, scale, hint)
    result: QTensor = parts.quantize(parts.rope(output, cos_sin, True).flatten(1), QFormat.MXFP8)
    return result
