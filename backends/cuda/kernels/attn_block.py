"""`attn_block`: `sparse_attn` between two rotations, quantised before it is written; see _attention_kernels.py."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels._attention_kernels import SPLIT_WHY, attend, traffic
from tandem.contract.types import KVCache, QTensor
from tandem.errors import LayoutError

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
    if dim % 32:
        raise LayoutError(
            "'attn_block' cannot quantise heads of this width",
            where=f"op 'attn_block', q {tuple(q.shape)}",
            why="a group of 32 elements that share a scale would belong to two heads",
            fix="use a head dim that is a multiple of 32",
        )
    output = activations.empty(rows, heads * dim, q.device)
    attend("attn_block", q, cos_sin, window, window_slots, main, main_slots, sink, scale, output)
    return output


def _traffic(
    q: Tensor, window: KVCache, window_slots: Tensor, main: KVCache | None, main_slots: Tensor | None, **others: Any
) -> tuple[int, int]:
    return traffic(q, window, window_slots, main, main_slots, q.numel() + q.numel() // 32)


OPS: dict[str, Any] = {"attn_block": attn_block}
TRAFFIC: dict[str, Any] = {"attn_block": _traffic}
WHY: dict[str, str] = {"attn_block": SPLIT_WHY}
