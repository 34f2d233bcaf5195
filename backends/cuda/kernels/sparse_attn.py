"""`sparse_attn`: see _attention_kernels.py."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda.kernels._attention_kernels import SPLIT_WHY, attend, traffic
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
    """See core/ops/sparse_attn.py.  The number of rows says better than `hint` which kernels fit."""
    output = torch.empty_like(q)
    attend("sparse_attn", q, None, window, window_slots, main, main_slots, sink, scale, output)
    return output


def _traffic(
    q: Tensor, window: KVCache, window_slots: Tensor, main: KVCache | None, main_slots: Tensor | None, **others: Any
) -> tuple[int, int]:
    return traffic(q, window, window_slots, main, main_slots, q.numel() * 2)


OPS: dict[str, Any] = {"sparse_attn": sparse_attn}
TRAFFIC: dict[str, Any] = {"sparse_attn": _traffic}
WHY: dict[str, str] = {"sparse_attn": SPLIT_WHY}
