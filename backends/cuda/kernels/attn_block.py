"""`attn_block`: `sparse_attn` between two rotations, quantised before it is written; see _attention_kernels.py."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels._attention_kernels import attend
from tandem.contract.types import KVCache, QTensor

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
    """See core/ops/attn_block.py.  The number of rows says better than `hint` which kernels fit."""
    rows, heads, dim = q.shape
    output = activations.empty(rows, heads * dim, q.device)
    caches = ((window, window_slots),)
    if main is not None and main_slots is not None:
        caches += ((main, main_slots),)
    attend("attn_block", q, cos_sin, caches, sink, scale, output)
    return output


OPS: dict[str, Any] = {"attn_block": attn_block}
